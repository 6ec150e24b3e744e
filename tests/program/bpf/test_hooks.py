"""The hooks of a library: those that are left out for a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf import uprobe
from exporter.bpf.find_places import Places
from exporter.bpf.gaps import GAP, Gaps
from exporter.bpf.hook import Hook
from exporter.bpf.hooks import Hooked
from exporter.bpf.libbpf import Link
from exporter.bpf.placement import Placement
from exporter.bpf.process_links import LinkedProcesses
from exporter.bpf.return_switches import Switches
from exporter.bpf.uprobe import AttachError, Point


class Kernel:
    """Attached links, as the names of programs; attaching fails while `refuses` is true."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attached: list[str] = []
        self.refuses = False
        self.of_one: list[tuple[str, int, bool]] = []
        monkeypatch.setattr(uprobe, "attach", self._attach)
        monkeypatch.setattr(uprobe, "attach_to", self._attach_to)

    def _attach(self, program: str, path: str, points: list[Point], returns: bool = False) -> Link:
        if self.refuses:
            raise AttachError(28, "no space", points)
        self.attached.append(program)
        return Link(lambda: self.attached.remove(program))

    def _attach_to(self, program: str, path: str, points: list[Point], pid: int, returns: bool = False) -> Link:
        made = program, pid, returns
        self.of_one.append(made)
        return Link(lambda: self.of_one.remove(made))


class Rows:
    """A map of the object."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}

    def set(self, key: Any, value: Any) -> None:
        self.rows[key] = value

    def take(self, pids: Any) -> None:
        for pid in pids:
            del self.rows[pid]


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


def paired() -> tuple[Hooked, Rows, Rows, Rows]:
    """A function with an entry and a return that may be left out, and the rows of gaps, linked processes, returns."""
    entry = Hook("enter", numbered=True, sampled=True, of_one="enter_of_one")
    table = {"post": [entry, Hook("return", returns=True, sampled=True, of_one="return")]}
    library: Any = SimpleNamespace(path="/lib.so", open_path="/lib.so", functions={"post": SimpleNamespace(offset=0)})
    places = Places({"post": Placement(0, "emulated", moved=False)}, {}, {})
    programs: Any = {it: it for it in ("enter", "enter_of_one", "return")}
    since, linked, returning = Rows(), Rows(), Rows()
    [switch] = [Switches(returning).take()]
    assert switch
    rows = LinkedProcesses(linked, Rows())
    return Hooked(programs, library, table, places, switch, rows, Gaps(since, switch.library)), since, linked, returning


def test_entries_and_returns_that_are_left_out_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries come first, which end calls that were begun before a gap; programs know of gaps, and whether a call's
    return is seen: where return probes are attached, which is where they are allowed."""
    kernel, (hooks, since, _, returning) = Kernel(monkeypatch), paired()
    assert ["enter"] == kernel.attached and {"post"} == hooks.sampled
    hooks.review(True, "")
    assert ["enter", "return"] == kernel.attached and hooks.returned and returning.rows[0]
    hooks.sample(False)
    assert [] == kernel.attached and {0: GAP} == since.rows and not returning.rows[0]
    hooks.sample(True)
    assert ["enter", "return"] == kernel.attached and 0 < since.rows[0] < GAP and returning.rows[0]
    hooks.review(False, "forbidden")
    assert ["enter"] == kernel.attached and not returning.rows[0]
    hooks.sample(False)
    hooks.sample(True)
    assert ["enter"] == kernel.attached and not returning.rows[0]
    hooks.sample(False)
    hooks.review(True, "")
    assert [] == kernel.attached and not returning.rows[0]
    hooks.sample(True)
    assert ["enter", "return"] == kernel.attached and returning.rows[0]
    hooks.close()
    assert [] == kernel.attached and {0: 0} == since.rows


def test_entries_and_returns_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with links of its own has return probes only while allowed; its row has since when it is seen."""
    kernel, (hooks, since, linked, _) = Kernel(monkeypatch), paired()
    assert [7] == list(hooks.keep([7])) and {7: 0} == linked.rows, "it was seen all the time"
    assert [("enter_of_one", 7, False)] == kernel.of_one
    hooks.sample(False)
    hooks.review(True, "")
    assert [("return", 7, True), ("enter_of_one", 7, False)] == kernel.of_one
    hooks.keep([7, 8])
    assert 0 < linked.rows[8] < GAP
    hooks.sample(True)
    hooks.review(False, "forbidden")
    assert [("enter_of_one", 7, False), ("enter_of_one", 8, False)] == kernel.of_one
    assert linked.rows == {7: since.rows[0], 8: since.rows[0]}
    hooks.close()
    assert [] == kernel.of_one and {} == linked.rows


def test_functions_without_a_number_are_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without the number of a library could not know of a gap."""
    Kernel(monkeypatch)
    hooks, _, _, _ = paired()
    hooks.gaps = None
    assert frozenset() == hooks.sampled
