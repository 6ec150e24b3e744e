"""The hooks of a library: those that are left out for a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf import uprobe
from exporter.bpf.hooks import Hook, Hooked, Places
from exporter.bpf.libbpf import Link
from exporter.bpf.placement import Placement
from exporter.bpf.uprobe import AttachError, Point


class Kernel:
    """What is attached, as the names of programs; attaching fails while `refuses`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attached: list[str] = []
        self.refuses = False
        monkeypatch.setattr(uprobe, "attach", self._attach)

    def _attach(self, program: str, path: str, points: list[Point], returns: bool = False) -> Link:
        if self.refuses:
            raise AttachError(28, "no space", points)
        self.attached.append(program)
        return Link(lambda: self.attached.remove(program))


def hooked() -> Hooked:
    table = {"send": [Hook("message", sampled=True)], "receive": [Hook("message", 2, sampled=True)]}
    table["end"] = [Hook("call")]
    functions = {name: SimpleNamespace(offset=at) for at, name in enumerate(table)}
    library: Any = SimpleNamespace(path="/lib.so", open_path="/lib.so", functions=functions)
    places = Places({name: Placement(it.offset, "emulated", moved=False) for name, it in functions.items()}, {}, {})
    programs: Any = {"message": "message", "call": "call"}
    return Hooked(programs, library, table, places)


def test_hooks_that_are_left_out_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended hooks go and come in one link, and count as attached; others stay. Nothing comes after the end."""
    kernel, hooks = Kernel(monkeypatch), hooked()
    assert {"send", "receive"} == hooks.sampled
    assert ["call", "message"] == kernel.attached
    for on, left in ((True, ["call", "message"]), (False, ["call"]), (False, ["call"]), (True, ["call", "message"])):
        hooks.sample(on)
        assert left == kernel.attached
        assert {True} == {it.attached for it in hooks.states()}
    hooks.close()
    hooks.sample(True)
    assert [] == kernel.attached


def test_hooks_that_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states have the reason, until they do."""
    kernel, hooks = Kernel(monkeypatch), hooked()
    hooks.sample(False)
    kernel.refuses = True
    hooks.sample(True)
    assert {"send": "no space", "receive": "no space", "end": ""} == {it.symbol: it.reason for it in hooks.states()}
    kernel.refuses = False
    hooks.sample(True)
    assert ["call", "message"] == kernel.attached
    assert {""} == {it.reason for it in hooks.states()}
