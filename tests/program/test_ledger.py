"""Processes with counts of a probe, and counts of those that have ended."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.ledger import MOST_ENDED, RETENTION, Ledger, Process
from exporter.model import Labels
from exporter.resolve.process import ProcessTable
from tests.support import PATIENCE
from tests.unit.cuda.fakes import FakeProcesses


@dataclass
class Count:
    calls: int
    live: int = 1

    def ended(self) -> None:
        self.live = 0

    def absorb(self, late: Count) -> None:
        self.calls += late.calls


class World:
    """A ledger over counts that a test fills."""

    def __init__(self, proc: Path) -> None:
        self.counts = dict[int, int]()
        self.takes, self.now = list[set[int]](), 0.0
        self.reads = 0
        self.proc, self.processes = proc, FakeProcesses()
        self.folded = list[Process[Count]]()
        self.ledger = Ledger[Count](
            self._read, self._take, self.processes, proc, lambda: self.now, fold=self.folded.append
        )

    def _read(self) -> dict[int, Count]:
        self.reads += 1
        return {pid: Count(calls) for pid, calls in self.counts.items()}

    def _take(self, pids: Collection[int]) -> dict[int, Count]:
        self.takes.append(set(pids))
        return {pid: Count(self.counts.pop(pid)) for pid in pids if pid in self.counts}

    def run(self, pid: int, calls: int) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        self.ledger.started(pid)
        self.counts[pid] = calls

    def processes_by_pid(self) -> dict[int, Process[Count]]:
        found = self.ledger.processes()
        assert len(found) == len({process.pid for process in found})
        return {process.pid: process for process in found}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_living_process(world: World) -> None:
    """The counts are read each time, with the labels of now."""
    world.run(7, 23)
    assert 23 == world.processes_by_pid()[7].activity.calls
    world.counts[7] = 24
    world.processes.names[7] = "named"
    assert (24, 1) == (world.processes_by_pid()[7].activity.calls, world.processes_by_pid()[7].activity.live)
    assert {"pid": "7", "comm": "named"} == world.processes_by_pid()[7].labels
    assert 7 in world.ledger


def test_counted_before_it_was_noticed(world: World) -> None:
    """A page may have the counts of a process before its start is noticed: they go on, as those of the same process."""
    (world.proc / "7").mkdir()
    world.counts[7] = 23
    since = world.processes_by_pid()[7].since
    world.run(7, 24)
    assert (24, since) == (world.processes_by_pid()[7].activity.calls, world.processes_by_pid()[7].since)
    world.ledger.ended([7])
    world.run(7, 1)
    living = [it for it in world.ledger.processes() if not it.ended]
    assert [1] == [it.activity.calls for it in living] and living[0].since > since


def test_an_ended_process(world: World) -> None:
    """An ended process keeps its last counts for five minutes; the kernel's maps forget it at once."""
    world.run(7, 23)
    since = world.processes_by_pid()[7].since
    world.ledger.ended([7])
    assert [{7}] == world.takes and 7 not in world.ledger
    found = world.processes_by_pid()[7]
    assert (23, 0, True, since) == (found.activity.calls, found.activity.live, found.ended, found.since)
    world.now = RETENTION
    assert {} == world.processes_by_pid()


def test_a_late_call(world: World) -> None:
    """Counts of a thread after the reported end of its process are added."""
    world.run(7, 23)
    world.ledger.ended([7])
    world.counts[7] = 2
    world.ledger.ended([7])
    assert 25 == world.processes_by_pid()[7].activity.calls


def test_ended_before_it_was_looked_at(world: World) -> None:
    """The process keeps its counts and its pid; nothing else of it is known, and nothing is guessed."""
    subject = Ledger[Count](world._read, world._take, ProcessTable(world.proc, world.proc), world.proc)
    world.counts[7] = 23
    [process] = subject.processes()
    assert ({"pid": "7"}, 23, True) == (process.labels, process.activity.calls, process.ended)


def test_the_pid_of_a_process_that_ended_long_ago(world: World) -> None:
    """A process that gets the pid and ends before it is looked at has none of its predecessor's labels."""
    subject = Ledger[Count](
        world._read, world._take, ProcessTable(world.proc, world.proc), world.proc, now=lambda: world.now
    )
    folder = world.proc / "7"
    folder.mkdir()
    (folder / "comm").write_text("first\n")
    (folder / "stat").write_text(f"7 (first) S {'1 ' * 18}100 4096\n")
    subject.started(7)
    world.counts[7] = 1
    for path in (folder / "comm", folder / "stat"):
        path.unlink()
    folder.rmdir()
    subject.ended([7])
    assert ["first"] == [it.labels.get("comm") for it in subject.processes()]
    world.now = RETENTION + 1
    assert [] == subject.processes()
    world.counts[7] = 23
    assert [({"pid": "7"}, 23)] == [(it.labels, it.activity.calls) for it in subject.processes()]


def test_ended_before_the_first_read(world: World) -> None:
    """A process that has counts but no entry in /proc at the first read has ended; one that runs is living."""
    world.counts |= {7: 1, 8: 2}
    (world.proc / "8").mkdir()
    found = world.processes_by_pid()
    assert {7: True, 8: False} == {pid: it.ended for pid, it in found.items()}
    assert [{7}] == world.takes


def test_the_pid_is_used_again(world: World) -> None:
    """The process that gets the pid next starts from nothing and takes its predecessor's place."""
    world.run(7, 23)
    world.ledger.ended([7])
    world.run(7, 1)
    assert (1, False) == (world.processes_by_pid()[7].activity.calls, world.processes_by_pid()[7].ended)
    assert [(7, 23)] == [(it.pid, it.activity.calls) for it in world.folded]


def test_many_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of processes that end only so many are kept, the newest; the labels of others are read again for their pids."""
    forgotten: list[int] = []
    monkeypatch.setattr(world.processes, "forget", forgotten.append)
    for pid in range(MOST_ENDED + 3):
        world.run(pid, 1)
        world.ledger.ended([pid])
    assert set(range(3, MOST_ENDED + 3)) == world.processes_by_pid().keys()
    again = [pid for pid, times in Counter(forgotten).items() if times > 1]  # once at the start of each
    assert ([0, 1, 2], 3) == (again, world.ledger.folded)


def test_many_of_one_workload_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of one workload take no place of others: another job's last counts stay, and the newest of the many."""

    def labels(pid: int) -> dict[str, str]:
        return {"pid": str(pid), "slurm_job_id": "1" if pid == 7 else "2"}

    monkeypatch.setattr(world.processes, "labels", labels)
    for pid in (7, *range(1000, 1000 + 2 * MOST_ENDED)):
        world.run(pid, 1)
        world.ledger.ended([pid])
    kept = world.processes_by_pid()
    assert MOST_ENDED == len(kept)
    assert 7 in kept
    assert 1000 + 2 * MOST_ENDED - 1 in kept
    world.now = RETENTION + 1
    assert {} == world.processes_by_pid()
    assert {} == world.ledger.ends.workloads


def test_many_end_at_once(world: World) -> None:
    """The maps are gone over once for all that end together, and never as a whole: also those that nobody had found."""
    for pid in range(500):
        world.run(pid, pid)
    world.ledger.ended(range(300))
    assert ([set(range(300))], 0) == (world.takes, world.reads)
    for pid in range(300, 500):
        world.ledger.live.discard(pid)
        (world.proc / str(pid)).rmdir()
    assert {pid: pid for pid in range(500)} == {pid: it.activity.calls for pid, it in world.processes_by_pid().items()}
    assert ([set(range(300)), set(range(300, 500))], 1) == (world.takes, world.reads)


def test_ends_of_processes_that_did_nothing(world: World) -> None:
    """Idle processes leave nothing behind, and their pid is not known any more."""
    world.run(7, 23)
    del world.counts[7]
    world.ledger.ended([7, 8])
    assert {} == world.processes_by_pid() and {} == world.ledger.known


def test_exec(world: World) -> None:
    """The counts of the program before keep its own labels, and are folded once the next one has any."""
    world.processes.names[7] = "first"
    world.run(7, 23)
    world.ledger.ended([7], replaced=True)
    world.processes.names[7] = "second"
    world.ledger.started(7)
    shown = world.processes_by_pid()[7]
    assert ("first", 23, True, True) == (shown.labels["comm"], shown.activity.calls, shown.ended, shown.replaced)
    world.counts[7] = 5
    shown = world.processes_by_pid()[7]
    assert ("second", 5, False) == (shown.labels["comm"], shown.activity.calls, shown.ended)
    world.ledger.ended([7])
    assert ("second", 5) == (world.processes_by_pid()[7].labels["comm"], world.processes_by_pid()[7].activity.calls)
    assert [("first", 23)] == [(it.labels["comm"], it.activity.calls) for it in world.folded]


def test_exec_again_and_again(world: World) -> None:
    """No program's counts get among another's, seen on a page or not."""
    for number in range(4):
        world.processes.names[7] = str(number)
        world.run(7, 10**number)
        world.ledger.ended([7], replaced=number < 3)
    assert [("3", 1000)] == [(it.labels["comm"], it.activity.calls) for it in world.ledger.processes()]
    assert [("0", 1), ("1", 10), ("2", 100)] == [(it.labels["comm"], it.activity.calls) for it in world.folded]


def test_exec_before_it_was_looked_at(world: World) -> None:
    """Counts from before exec have no name: the name in /proc belongs to the next program."""
    world.processes.names[7] = "second"
    world.counts[7] = 23
    world.ledger.ended([7], replaced=True)
    assert {"pid": "7"} == world.processes_by_pid()[7].labels
    world.counts[7] = 5  # of the next one, which ends before it is looked at too
    world.ledger.ended([7])
    assert [5, 23] == [it.activity.calls for it in (world.processes_by_pid()[7], *world.folded)]


def test_no_count_is_lost_when_many_end(world: World) -> None:
    """Processes beyond the limit are folded, each once."""
    for pid in range(3 * MOST_ENDED):
        world.run(pid, 3)
        world.ledger.ended([pid])
    kept = world.processes_by_pid()
    assert (MOST_ENDED, 2 * MOST_ENDED, 2 * MOST_ENDED) == (len(kept), len(world.folded), world.ledger.folded)
    assert 9 * MOST_ENDED == sum(it.activity.calls for it in (*kept.values(), *world.folded))


def test_counts_of_a_page_are_not_folded_meanwhile(world: World) -> None:
    """While a page is made, another thread folds nothing that is on it, and its own part is folded before."""

    def end(*pids: int) -> None:
        for pid in pids:
            world.run(pid, 1)
        thread = threading.Thread(target=world.ledger.ended, args=(pids,))
        thread.start()
        thread.join()

    end(*range(MOST_ENDED))
    with world.ledger.page():
        world.run(5, 1)  # a pid that is used again
        assert [] == world.folded
        assert MOST_ENDED == len(world.processes_by_pid()) and [5] == [it.pid for it in world.folded]
        end(*range(MOST_ENDED, MOST_ENDED + 4))
        thread = threading.Thread(target=world.ledger.processes)
        thread.start()
        thread.join()
        assert 1 == len(world.folded)
    assert 4 == len(world.folded)
    assert MOST_ENDED + 5 == len(world.processes_by_pid()) + len(world.folded)


class SlowProcesses(FakeProcesses):
    """Labels for which one process is waited for."""

    def __init__(self, slow: int) -> None:
        super().__init__()
        self.slow, self.queried, self.answers = slow, threading.Event(), threading.Event()

    def labels(self, pid: int) -> Labels:
        if pid == self.slow:
            self.queried.set()
            assert self.answers.wait(60)
        return super().labels(pid)


@pytest.mark.parametrize("replaced", [False, True])
def test_one_that_is_waited_for_holds_up_no_others(tmp_path: Path, replaced: bool) -> None:
    """While the labels of one process are read, others start and end; its counts are not lost."""
    world = World(tmp_path)
    slow = SlowProcesses(1)
    world.ledger._processes = slow
    world.counts[1] = 5
    (tmp_path / "1").mkdir()
    found = list[Process[Count]]()
    action = (lambda: world.ledger.ended([1], replaced=True)) if replaced else world.ledger.processes
    waiting = threading.Thread(target=lambda: found.extend(action() or ()), daemon=True)
    waiting.start()
    assert slow.queried.wait(60)

    def others() -> None:
        world.run(2, calls=3)
        world.ledger.ended([2])

    free = threading.Thread(target=others, daemon=True)
    free.start()
    free.join(PATIENCE)
    held_up = free.is_alive()
    slow.answers.set()
    waiting.join(60)
    free.join(60)
    assert not held_up
    assert {1: 5, 2: 3} == {process.pid: process.activity.calls for process in world.ledger.processes()}
    assert replaced or [(1, 5)] == [(it.pid, it.activity.calls) for it in found]


def test_one_that_ends_while_its_labels_are_read(tmp_path: Path) -> None:
    """The page shows it as it was; the next process of its pid has labels and counts of its own."""
    world = World(tmp_path)
    slow = SlowProcesses(1)
    world.ledger._processes = slow
    world.counts[1] = 5
    (tmp_path / "1").mkdir()
    waiting = threading.Thread(target=world.ledger.processes, daemon=True)
    waiting.start()
    assert slow.queried.wait(60)
    ending = threading.Thread(target=world.ledger.ended, args=([1],), daemon=True)
    ending.start()
    slow.answers.set()
    waiting.join(60)
    ending.join(60)
    [process] = world.ledger.processes()
    assert (5, True) == (process.activity.calls, process.ended)
    assert not world.ledger.known


def test_a_pid_that_another_process_had_a_moment_ago(tmp_path: Path) -> None:
    """A process has labels of its own, though those of the one before it are not read again for some seconds."""

    def run(start: int, program: str) -> None:
        folder = tmp_path / "7"
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"7 ({program}) S " + "1 " * 18 + f"{start} 0\n")
        (folder / "comm").write_text(program + "\n")

    processes = ProcessTable(tmp_path, tmp_path)
    ledger = Ledger[Count](dict, lambda pids: {pid: Count(23) for pid in pids}, processes, tmp_path)
    run(1, "before")
    ledger.started(7)
    assert "before" == processes.labels(7)["comm"]
    ledger.ended([7])
    run(2, "after")
    ledger.started(7)
    ledger.ended([7])
    assert ["after"] == [process.labels["comm"] for process in ledger.processes() if process.ended]
