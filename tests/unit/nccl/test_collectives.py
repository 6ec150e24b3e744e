"""Collectives of which calls are left out: their cost, what is shown, and which processes lose calls when."""

from __future__ import annotations

import struct
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf.sampled_file import SampledFile
from exporter.nccl.activity import Activity, Calls, Durations, Errors
from exporter.nccl.collectives import Collectives
from exporter.nccl.functions import FUNCTIONS, nests
from exporter.nccl.left_out import LeftOut
from exporter.nccl.messages import Messages
from exporter.nccl.samples import Kinds
from exporter.nccl.sight import NONE_NOW, OPEN, Sight
from tests.unit.cuda.fakes import FakeMap, row
from tests.unit.priced import Probes

NAMES = (*dict.fromkeys(it.kind for it in FUNCTIONS if it.kind not in ("GroupEnd", "none")), "GroupEnd", "none")
KINDS = Kinds(dict(enumerate(NAMES)), group_end=NAMES.index("GroupEnd"), none=NAMES.index("none"))
REDUCE, SEND, INIT = (NAMES.index(it) for it in ("AllReduce", "Send", "Init"))
GROUP, INNER = KINDS.group_end, KINDS.none
API = {it.name: api for api, it in enumerate(FUNCTIONS, 1)}
PRICES = {"ncclAllReduce": 5e-6, "ncclGroupStart": 1e-6, "ncclGroupEnd": 3e-6, "ncclSend": 1e-6}
WINDOW_PRICE = 1e-6
LIBRARY: Any = SimpleNamespace(path="/lib/libnccl.so.2")


def calls(count: int, bytes_: int = 0) -> SimpleNamespace:
    return SimpleNamespace(calls=count, bytes=bytes_, bus_bytes=bytes_, unsized=0, anonymous=0, last_ns=9)


class Rows(dict[int, int]):
    """A map with plain keys."""

    set = dict.__setitem__

    def take(self, pids: Collection[int]) -> None:
        for pid in pids:
            self.pop(pid, None)

    def delete(self, pid: int) -> bool:
        return self.pop(pid, None) is not None


class Scene:
    """A file that processes use, and what is done with it. `left` are those of which calls are missed."""

    def __init__(self, *pids: int) -> None:
        self.pids, self.done, self.kept, self.returns = [*pids], list[Any](), set[int](), True
        self.gaps, self.state, self.covered, self.held = Rows(), Rows(), Rows(), dict[int, Any]()
        self.calls = FakeMap()
        maps = {"gaps": self.gaps, "gap_state": self.state, "covered": self.covered, "held": self.held}
        maps |= {"calls": self.calls}
        lose = SimpleNamespace(run=lambda raw: self.done.append(("numbers", *struct.unpack("=Q", raw))))
        loaded: Any = SimpleNamespace(maps=maps, programs={"lose_calls": lose})
        self.sight = Sight(loaded, lambda: self.returns, lambda pid: None)
        self.files = self.sight.files = LeftOut(self._files, self.sight)
        for pid in pids:
            self.sight.start(pid, LIBRARY, from_first_call=True)

    def _files(self) -> dict[int, SampledFile]:
        probe = lambda on: self.done.append(("probe", on))  # noqa: E731
        restore = lambda: self.done.append("restore")  # noqa: E731
        return {id(LIBRARY): SampledFile("libnccl.so.2", (), [*self.pids], probe, self._keep, restore)}

    def _keep(self, pids: Collection[int]) -> Collection[int]:
        self.done.append(("keep", *sorted(pids)))
        return sorted(pids)

    @property
    def file(self) -> Any:
        return self.files.sampled_files()[id(LIBRARY)]

    def since(self) -> list[Any]:
        done, self.done[:] = [*self.done], []
        return done

    def states(self, *pids: int) -> list[tuple[bool, bool, bool]]:
        """For each: calls are left out, some were missed, and numbers on new communicators begin with the first."""
        return [(self.sight.is_left_out(it), self.sight.is_partial(it), it in self.covered) for it in pids]


SEEN, LEFT_OUT, PARTIAL = (False, False, True), (True, True, False), (False, True, False)


def test_numbers_are_lost_before_the_first_call_is_missed() -> None:
    """And once. Processes with links of their own lose none, until they lose these; all have the next gap's number."""
    scene = Scene(1, 2, 3)
    scene.file.keep([2, 3])
    assert [SEEN] * 3 == scene.states(1, 2, 3) and [("keep", 2, 3)] == scene.since()
    scene.file.probe(False)
    assert [("numbers", 1), ("probe", False)] == scene.since() and OPEN == scene.state[0]
    assert [LEFT_OUT, SEEN, SEEN] == scene.states(1, 2, 3)
    scene.file.probe(True)
    first = scene.state[1]
    scene.file.probe(False)
    scene.file.probe(True)
    assert first != scene.state[1], "each window has a number"
    scene.since()
    scene.file.keep([2])
    assert [("numbers", 3), ("keep", 2)] == scene.since()
    assert [LEFT_OUT, SEEN, LEFT_OUT] == scene.states(1, 2, 3)
    scene.file.keep([1, 2])
    assert [PARTIAL, SEEN, LEFT_OUT] == scene.states(1, 2, 3)
    scene.file.restore()
    scene.file.keep([])
    assert [PARTIAL, SEEN, PARTIAL] == scene.states(1, 2, 3) and NONE_NOW == scene.state[0]
    assert {1: 2, 2: 0, 3: 2} == scene.gaps and ["restore", ("keep",)] == scene.since()[1:]


def test_a_process_that_starts_meanwhile() -> None:
    """A process is seen whole if it made no call before it had links, and no communicator."""
    scene = Scene(1)
    scene.file.probe(False)
    scene.pids += [4, 5, 6]
    for pid in (4, 5, 6):
        scene.sight.start(pid, LIBRARY, from_first_call=True)
    assert [LEFT_OUT] * 3 == scene.states(4, 5, 6)
    scene.held[5] = SimpleNamespace(communicators=1)
    scene.file.keep([4, 5])
    assert [SEEN, PARTIAL, LEFT_OUT] == scene.states(4, 5, 6)
    scene.file.restore()
    assert [SEEN, PARTIAL, PARTIAL] == scene.states(4, 5, 6)
    scene.sight.forget([4, 5, 6])
    scene.sight.start(5, LIBRARY, from_first_call=True)
    assert [SEEN] == scene.states(5) and {1, 5} == scene.gaps.keys()


def test_a_process_that_cannot_be_known_whole() -> None:
    """Without return probes its communicators are unknown; one that called before it was first seen is not whole."""
    scene = Scene(1)
    scene.sight.start(2, LIBRARY, from_first_call=False)
    assert [PARTIAL] == scene.states(2)
    scene.file.probe(False)
    scene.pids += [3, 4]
    scene.sight.start(3, LIBRARY, from_first_call=False)
    scene.file.keep([3])
    scene.returns = False
    scene.sight.start(4, LIBRARY, from_first_call=True)
    scene.file.keep([3, 4])
    assert [PARTIAL, PARTIAL] == scene.states(3, 4)


def test_returns_that_are_not_seen() -> None:
    """Numbers are read again, as a call may have been refused."""
    scene = Scene(1, 2)
    scene.sight.miss_returns("collectives", [1])
    assert [PARTIAL, SEEN] == scene.states(1, 2) and [("numbers", 1)] == scene.since()
    assert {1: 2, 2: 0} == scene.gaps


def test_a_file_that_goes_away() -> None:
    """Calls of its processes are not seen any more."""
    scene = Scene(1)
    scene.file.probe(False)
    files, scene.files._files = scene._files, lambda: {}
    assert {} == scene.files.sampled_files() and not scene.files.is_detached(LIBRARY)
    assert [LEFT_OUT] == scene.states(1) and files


def maps() -> dict[str, Any]:
    counted = FakeMap(
        (row(tgid=1, kind=REDUCE), calls(20, 4000)),
        (row(tgid=1, kind=GROUP), calls(10)),
        (row(tgid=1, kind=INNER), calls(5)),
        (row(tgid=1, kind=SEND), calls(7, 70)),
        (row(tgid=3, kind=REDUCE), calls(1, 1)),
    )
    windows = FakeMap((row(tgid=1, kind=REDUCE), 12), (row(tgid=1, kind=GROUP), 4), (row(tgid=4, kind=REDUCE), 2))
    return {"calls": counted, "window_calls": windows}


def made() -> Collectives:
    sight: Any = SimpleNamespace(have_called=lambda pids: {1}, is_exempt=lambda pid: pid == 5)
    return Collectives(Probes(PRICES), maps(), KINDS, lambda: WINDOW_PRICE, sight, lambda pid: 60.0 + pid)


def test_tallies() -> None:
    """Collectives and outermost groups, with their bytes, at the price of all programs; what windows saved is apart."""
    found = made().tallies([1, 2])
    counts = {key: it for key, it in found[1].counts.items() if it}
    assert {(REDUCE, "calls"): 20, (REDUCE, "bytes"): 4000, (REDUCE, "bus_bytes"): 4000, (GROUP, "calls"): 10} == counts
    assert pytest.approx(20 * 5e-6 + 15 * 4e-6) == found[1].cost
    assert pytest.approx(12 * 4e-6 + 4 * 2e-6) == found[1].saved
    assert (0.0, 0.0, 61.0, True) == (found[1].reference, found[1].other, found[1].cpu, found[1].begun)
    assert ({}, 0.0, False) == (found[2].counts, found[2].cost, found[2].begun)


def test_the_cost_of_all_calls() -> None:
    assert pytest.approx(21 * 5e-6 + 15 * 4e-6 - 14 * 4e-6 - 4 * 2e-6) == made().sampled_cost()
    sight: Any = SimpleNamespace()
    assert Collectives(Probes({}), maps(), KINDS, lambda: 0.0, sight).sampled_cost() is None


def activity() -> Activity:
    took = Durations(5, (1, 2))
    failed = Errors(1, 2)
    return Activity(
        calls={REDUCE: Calls(20, 80, 80, 0, 0, 77), GROUP: Calls(10, 0, 0, 0, 0, 78), SEND: Calls(7, 7, 7, 0, 0, 79)},
        errors={(API["ncclAllReduce"], 1): failed, (API["ncclCommInitRank"], 2): failed},
        durations={REDUCE: took, GROUP: took, INIT: took},
        in_flight=1,
    )


def test_what_is_shown_of_a_process_that_is_left_out() -> None:
    """Calls and bytes are estimated; what is known at their return is absent, of these functions only."""
    shown = activity()
    made().add(shown, {(REDUCE, "calls"): 5, (REDUCE, "bytes"): 20, (GROUP, "calls"): 3}, absent=True)
    assert (Calls(25, 100, 80, 0, 0, 77), 13, 7) == (
        shown.calls[REDUCE],
        shown.calls[GROUP].calls,
        shown.calls[SEND].calls,
    )
    assert ({INIT}, {(API["ncclCommInitRank"], 2)}) == (shown.durations.keys(), shown.errors.keys())
    assert shown.in_flight is None


def test_a_process_of_which_no_calls_can_be_left_out() -> None:
    """Counts are those that were seen, unlike those of a process that the governor has not met yet."""
    subject = made()
    subject.watch = SimpleNamespace(  # type: ignore[assignment]
        missed=lambda pid: None, finish=lambda pid, last: None, leaves_out=lambda pid: True, whole=lambda pid: False
    )
    assert [None, {}] == [subject.missed(it) for it in (4, 5)]
    assert [None, {}] == [subject.finish(it, Activity()) for it in (4, 5)]
    assert [(True, False), (False, True)] == [(subject.leaves_out(it), subject.is_whole(it)) for it in (4, 5)]
    scene = Scene(1)
    scene.sight.start(2, SimpleNamespace(path="/lib/libtracer.so"), from_first_call=True)  # type: ignore[arg-type]
    assert [False, True, False] == [scene.sight.is_exempt(it) for it in (1, 2, 3)]


def test_calls_that_are_not_known() -> None:
    """Estimates stay when all calls are probed again, and what calls did is shown again."""
    shown = activity()
    made().add(shown, None, absent=True)
    assert [(0, 77), (0, 78), (7, 79)] == [(it.calls, it.last_ns) for it in shown.calls.values()]
    later = activity()
    made().add(later, {(REDUCE, "calls"): 5}, absent=False)
    assert (25, 3, 2, 1) == (later.calls[REDUCE].calls, len(later.durations), len(later.errors), later.in_flight)


def test_messages_have_no_reference_without_groups() -> None:
    others: Any = SimpleNamespace(leaves_out=lambda pid: pid == 1, have_called=lambda pids: {1})
    table: Any = FakeMap(*((row(tgid=pid, kind=GROUP), calls(10)) for pid in (1, 2)))
    found = Messages(Probes(PRICES), table, dict, KINDS, cpu=lambda pid: 1.0, others=others).tallies([1, 2])
    assert (0, (4,), True) == (found[1].reference, found[1].measure, found[1].begun)
    assert (10, (), False) == (found[2].reference, found[2].measure, found[2].begun)


def test_functions_that_call_others() -> None:
    """Functions of RCCL are groups of its Send and Recv; NCCL's of the same names are not."""
    rccl = {"ncclAllToAll", "ncclGather", "ncclAllReduce"}
    assert [True, True, False] == [nests(it, rccl) for it in ("ncclAllToAll", "ncclGather", "ncclAllReduce")]
    assert not nests("ncclGather", {"ncclGather", "ncclAlltoAll"})
