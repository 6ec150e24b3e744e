"""The hooks of a library: those that are left out for a time."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf import hook_group, uprobe
from exporter.bpf.find_places import Places
from exporter.bpf.gaps import GAP, Gaps
from exporter.bpf.hook import Hook
from exporter.bpf.hooks import Hooked
from exporter.bpf.libbpf import Link
from exporter.bpf.placement import Placement
from exporter.bpf.process_links import BLIND, LINKED_MARK, LinkedProcesses
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

    def delete(self, key: Any) -> None:
        del self.rows[key]


def hooked() -> Hooked:
    table = {"send": [Hook("message", sampled="posts")], "receive": [Hook("message", 2, sampled="posts")]}
    table["end"] = [Hook("call")]
    functions = {name: SimpleNamespace(offset=at) for at, name in enumerate(table)}
    library: Any = SimpleNamespace(path="/lib.so", open_path="/lib.so", functions=functions)
    places = Places({name: Placement(it.offset, "emulated", moved=False) for name, it in functions.items()}, {}, {})
    programs: Any = {"message": "message", "call": "call"}
    return Hooked(programs, library, table, places)


def test_hooks_that_are_left_out_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended hooks go and come in one link, and count as attached; others stay. Nothing comes after the end."""
    kernel, hooks = Kernel(monkeypatch), hooked()
    assert {"send", "receive"} == hooks.sampled("posts")
    assert ["call", "message"] == kernel.attached
    for on, left in ((True, ["call", "message"]), (False, ["call"]), (False, ["call"]), (True, ["call", "message"])):
        hooks.sample("posts", on)
        assert left == kernel.attached
        assert {True} == {it.attached for it in hooks.states()}
    hooks.close()
    hooks.sample("posts", True)
    assert [] == kernel.attached


def test_hooks_that_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states have the reason, until they do."""
    kernel, hooks = Kernel(monkeypatch), hooked()
    hooks.sample("posts", False)
    kernel.refuses = True
    hooks.sample("posts", True)
    assert {"send": "no space", "receive": "no space", "end": ""} == {it.symbol: it.reason for it in hooks.states()}
    kernel.refuses = False
    hooks.sample("posts", True)
    assert ["call", "message"] == kernel.attached
    assert {""} == {it.reason for it in hooks.states()}


def paired(gaps: bool = True) -> tuple[Hooked, Rows, Rows, Rows]:
    """A function with an entry and a return that may be left out, and the rows of gaps, linked processes, returns."""
    entry = Hook("enter", numbered=True, sampled="posts", of_one="enter_of_one")
    table = {"post": [entry, Hook("return", returns=True, sampled="posts", of_one="return")]}
    library: Any = SimpleNamespace(path="/lib.so", open_path="/lib.so", functions={"post": SimpleNamespace(offset=0)})
    places = Places({"post": Placement(0, "emulated", moved=False)}, {}, {})
    programs: Any = {it: it for it in ("enter", "enter_of_one", "return")}
    since, linked, returning = Rows(), Rows(), Rows()
    [switch] = [Switches(returning).take()]
    assert switch
    rows = LinkedProcesses(linked, Rows())
    known = Gaps(since, switch.library) if gaps else None
    return Hooked(programs, library, table, places, switch, {"posts": rows}, known), since, linked, returning


def test_entries_and_returns_that_are_left_out_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries come first, which end calls that were begun before a gap; programs know of gaps, and whether a call's
    return is seen: where return probes are attached, which is where they are allowed."""
    kernel, (hooks, since, _, returning) = Kernel(monkeypatch), paired()
    assert ["enter"] == kernel.attached and {"post"} == hooks.sampled("posts")
    hooks.review(True, "")
    assert ["enter", "return"] == kernel.attached and hooks.returned and returning.rows[0]
    hooks.sample("posts", False)
    assert [] == kernel.attached and {0: GAP} == since.rows and not returning.rows[0]
    hooks.sample("posts", True)
    assert ["enter", "return"] == kernel.attached and 0 < since.rows[0] < GAP and returning.rows[0]
    hooks.review(False, "forbidden")
    assert ["enter"] == kernel.attached and not returning.rows[0]
    hooks.sample("posts", False)
    hooks.sample("posts", True)
    assert ["enter"] == kernel.attached and not returning.rows[0]
    hooks.sample("posts", False)
    hooks.review(True, "")
    assert [] == kernel.attached and not returning.rows[0]
    hooks.sample("posts", True)
    assert ["enter", "return"] == kernel.attached and returning.rows[0]
    hooks.close()
    assert [] == kernel.attached and {0: 0} == since.rows


def test_entries_and_returns_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with links of its own has return probes only while allowed; its row has since when it is seen."""
    kernel, (hooks, since, linked, _) = Kernel(monkeypatch), paired()
    assert [7] == list(hooks.keep("posts", [7])) and {7: 0} == linked.rows, "it was seen all the time"
    assert [("enter_of_one", 7, False)] == kernel.of_one
    hooks.sample("posts", False)
    hooks.review(True, "")
    assert [("return", 7, True), ("enter_of_one", 7, False)] == kernel.of_one
    hooks.keep("posts", [7, 8])
    assert 0 < linked.rows[8] < GAP
    hooks.sample("posts", True)
    hooks.review(False, "forbidden")
    assert [("enter_of_one", 7, False), ("enter_of_one", 8, False)] == kernel.of_one
    assert linked.rows == {7: since.rows[0], 8: since.rows[0]}
    hooks.close()
    assert [] == kernel.of_one and {} == linked.rows


def test_functions_without_a_number_are_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without the number of a library could not know of a gap."""
    Kernel(monkeypatch)
    hooks, _, _, _ = paired(gaps=False)
    assert frozenset() == hooks.sampled("posts")


class Calls:
    """Calls that wait for their return, and the processes of which some were not waited for."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, bool], set[int]] = {}
        self.missed: list[tuple[str, set[int]]] = []

    def of(self, library: int, linked: bool) -> set[int]:
        return self.waiting.get((library, linked), set())

    def incomplete(self, group: str, pids: Collection[int]) -> None:
        self.missed.append((group, set(pids)))


def grouped() -> tuple[Hooked, Rows, Rows, Calls]:
    """A function that is always probed, and one that is not, with a program for windows."""
    free = Hook("free", numbered=True, sampled="memory", of_one="free_of_one", window="window")
    back = Hook("return", returns=True, numbered=True, sampled="memory", of_one="return")
    table = {"free": [free, back], "wait": [Hook("enter", numbered=True), Hook("return", 5, True, numbered=True)]}
    functions = {name: SimpleNamespace(offset=at) for at, name in enumerate(table)}
    library: Any = SimpleNamespace(path="/lib.so", open_path="/lib.so", functions=functions)
    places = Places({name: Placement(it.offset, "emulated", moved=False) for name, it in functions.items()}, {}, {})
    programs: Any = {it: it for it in ("enter", "free", "free_of_one", "return", "window")}
    linked, returning, calls = Rows(), Rows(), Calls()
    switches = Switches(returning)
    switch, own = switches.take(), switches.take()
    assert switch and own
    rows = LinkedProcesses(linked, Rows(), 2, waits=True)  # type: ignore[arg-type]
    made = Hooked(programs, library, table, places, switch, {"memory": rows}, None, {"memory": own}, calls)
    return made, linked, returning, calls


def test_functions_with_other_programs_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All programs go, those of windows come and go, and all are back at the end. Returns of other functions are seen
    meanwhile, as these have a number of their own, and each time has another one."""
    kernel, (hooks, _, returning, _) = Kernel(monkeypatch), grouped()
    hooks.review(True, "")
    assert [0, 1] == hooks.numbers and hooks.is_whole("memory")
    assert ["enter", "free", "return", "return"] == sorted(kernel.attached)
    first = {**returning.rows}
    for on, there in (
        (False, []),
        (True, ["window"]),
        (True, ["window"]),
        (False, []),
        (False, []),
        (True, ["window"]),
    ):
        hooks.sample("memory", on)
        assert ["enter", "return", *there] == sorted(kernel.attached)
        assert {0: first[0], 1: 0} == returning.rows and not hooks.is_whole("memory")
    hooks.restore("memory")
    assert ["enter", "free", "return", "return"] == sorted(kernel.attached)
    assert returning.rows[0] == first[0] and returning.rows[1] not in (0, first[1])
    hooks.close()
    assert [] == kernel.attached and [] == hooks.numbers


def test_return_probes_that_are_forbidden_and_allowed_during_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return probes of functions that are left out come back with them."""
    kernel, (hooks, linked, returning, _) = Kernel(monkeypatch), grouped()
    hooks.review(True, "")
    hooks.keep("memory", [7])
    hooks.sample("memory", False)
    hooks.review(False, "forbidden")
    assert ["enter"] == kernel.attached and [("free_of_one", 7, False)] == kernel.of_one
    assert [LINKED_MARK | BLIND | 2] == [*linked.rows.values()] and {0: 0, 1: 0} == returning.rows
    hooks.review(True, "")
    assert ["enter", "return"] == sorted(kernel.attached) and returning.rows[0] and not returning.rows[1]
    assert [("return", 7, True), ("free_of_one", 7, False)] == kernel.of_one
    hooks.restore("memory")
    assert ["enter", "free", "return", "return"] == sorted(kernel.attached) and returning.rows[1]


def test_calls_that_do_not_return_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of processes with links of their own the calls that began before them are waited for, and at the end those that
    began in them; not those of other processes, nor of functions that are left out from then on."""
    monkeypatch.setattr(hook_group, "RETURN_SECONDS", 0.01)
    _, (hooks, _, _, calls) = Kernel(monkeypatch), grouped()
    hooks.review(True, "")
    hooks.keep("memory", [7, 8])
    calls.waiting[1, False] = {8, 9}
    hooks.sample("memory", False)
    assert [("memory", {8})] == calls.missed
    calls.waiting[1, True] = {7, 8}
    hooks.keep("memory", [8])
    assert [("memory", {8})] == calls.missed
    hooks.restore("memory")
    hooks.keep("memory", [])
    assert [("memory", {8}), ("memory", {8})] == calls.missed
