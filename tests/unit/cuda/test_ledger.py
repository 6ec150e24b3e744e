"""Which processes are told about, and what becomes of those that end."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.cuda.ledger import MOST_ENDED, RETENTION, Ledger
from exporter.cuda.samples import Process
from tests.unit.cuda.fakes import FakeMap, FakeProcesses, empty_maps, row

API = 1


class World:
    """A ledger over maps that a test fills."""

    def __init__(self, proc: Path) -> None:
        self.maps = empty_maps()
        self.processes, self.forgotten, self.now = FakeProcesses(), list[int](), 0.0
        self.proc = proc
        self.ledger = Ledger(self.maps, self.forgotten.append, self.processes, proc, now=lambda: self.now)

    def count(self, pid: int, calls: int) -> None:
        """The kernel has counted so many calls of a process."""
        self.maps["calls"] = FakeMap(*((k, v) for k, v in self.maps["calls"].rows if k.tgid != pid))
        self.maps["calls"].rows.append((row(tgid=pid, api=API), calls))
        self.ledger._maps = self.maps

    def hold(self, pid: int, allocated: int, freed: int, implicit: int = 0, untracked: int = 0) -> None:
        total = row(allocated=allocated, freed=freed, implicit=implicit, untracked=untracked, strangers=0)
        self.maps["totals"].rows.append((row(tgid=pid, layer=0, memory=0), total))

    def run(self, pid: int) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        self.ledger.started(pid)

    def told(self) -> dict[int, Process]:
        found = self.ledger.processes()
        assert len(found) == len({process.pid for process in found})
        return {process.pid: process for process in found}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_living_process_is_read_each_time(world: World) -> None:
    """What the kernel counted is told, with the labels of now: a pod's name may come later than its process."""
    world.run(7)
    world.count(7, 23)
    assert {API: 23} == world.told()[7].activity.whole().calls
    world.count(7, 24)
    world.processes.names[7] = "named"
    assert {API: 24} == world.told()[7].activity.whole().calls
    assert {"pid": "7", "comm": "named"} == world.told()[7].labels


def test_an_ended_process_stands_still(world: World) -> None:
    """Its counts stay for five minutes, its memory counts as freed implicitly, and the kernel's rows are gone."""
    world.run(7)
    world.count(7, 23)
    world.hold(7, allocated=100, freed=30, implicit=20, untracked=10)
    world.told()
    world.ledger.ended(7)
    assert [7] == world.forgotten
    assert [[], []] == [world.maps[name].rows for name in ("calls", "totals")]
    process = world.told()[7]
    assert {API: 23} == process.activity.whole().calls
    [memory] = process.activity.whole().memory.values()
    assert (100, 30, 70, 0) == (memory.allocated, memory.freed, memory.implicit, memory.usage)
    world.now = RETENTION - 1
    assert [7] == list(world.told())
    world.now = RETENTION
    assert [] == list(world.told())


def test_the_next_process_with_a_pid_starts_from_nothing(world: World) -> None:
    """Once a new process with that pid is counted, the old one is not told about any more, so no series is doubled."""
    world.run(7)
    world.count(7, 23)
    first = world.told()[7].since
    world.ledger.ended(7)
    world.run(7)
    assert {API: 23} == world.told()[7].activity.whole().calls  # it has not called anything yet
    world.count(7, 2)
    assert {API: 2} == world.told()[7].activity.whole().calls
    assert world.told()[7].since >= first


def test_a_late_thread_is_added_to_its_process(world: World) -> None:
    """A call that is counted after the end was told belongs to the process that ended."""
    world.run(7)
    world.count(7, 23)
    world.ledger.ended(7)
    (world.proc / "7").rmdir()
    world.count(7, 1)
    assert {API: 24} == world.told()[7].activity.whole().calls
    assert {API: 24} == world.told()[7].activity.whole().calls


def test_a_process_that_ended_before_it_was_known(world: World) -> None:
    """One that nobody told of and that is not there any more is told about like any that ended."""
    world.count(9, 5)
    assert {API: 5} == world.told()[9].activity.whole().calls
    assert [] == world.maps["calls"].rows
    assert [9] == world.forgotten


def test_hits_never_fall(world: World) -> None:
    """Calls by function outlive their processes."""
    seen = []
    for pid in (1, 2):
        world.run(pid)
        world.count(pid, 10)
        world.told()
        seen.append(world.ledger.hits()[API])
        world.ledger.ended(pid)
        world.now += 2 * RETENTION
        world.told()
        seen.append(world.ledger.hits()[API])
    assert [10, 10, 20, 20] == seen


def test_ended_processes_are_bounded(world: World) -> None:
    """Of very many short processes the last ones are kept."""
    for pid in range(1, MOST_ENDED + 11):
        world.count(pid, 1)
        world.ledger.ended(pid)
    assert list(range(11, MOST_ENDED + 11)) == list(world.told())


def test_a_process_that_did_nothing_leaves_no_trace(world: World) -> None:
    """One that had the library mapped and called nothing is not told about after its end either."""
    world.run(7)
    world.ledger.ended(7)
    assert {} == world.told()
