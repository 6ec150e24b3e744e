"""Conditions for keeping a profile of a hang, and the processes in it."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import pytest

from exporter.model import Labels
from exporter.resolve.communicators import Communicators, Member
from exporter.stack_profiles.hangs import Standing
from exporter.stack_profiles.model import Frame, Stack
from exporter.stack_profiles.published import StackProfiles
from exporter.stacks import hang_watch
from exporter.stacks.hang_watch import HangWatch, StuckThreads
from exporter.stacks.threads import Key

SECOND = 10**9
LABELS: dict[int, Labels] = {
    7: {"pid": "7", "pod": "a-0", "namespace": "x", "gpu": "0"},
    8: {"pid": "8", "pod": "a-1", "namespace": "x"},
    9: {"pid": "9", "pod": "a-0", "namespace": "x", "gpu": "1"},
    10: {"pid": "10"},
    11: {"pid": "11"},
}


class Rig:
    """A watch for calls of more than ten seconds, of which the calls are chosen."""

    def __init__(self, proc: Path) -> None:
        self.calls: list[Standing] = []
        self.taken: list[list[int]] = []
        self.profiles = StackProfiles(wanted=True)
        self.profiles.standing.add("test", lambda: self.calls)
        self.communicators = Communicators()
        self.watch = HangWatch(
            10, self.profiles, self.communicators, proc, lambda: LABELS.keys(), LABELS.__getitem__, self._snapshot
        )

    def _snapshot(self, pids: Collection[int]) -> dict[Key, Stack]:
        self.taken.append([*pids])
        return {(pid, pid): (Frame("wait"),) for pid in pids}

    def lasts(self, pid: int, seconds: float, what: str = "ncclAllReduce") -> None:
        self.calls.append(Standing(pid, time.monotonic_ns() - round(seconds * SECOND), what))


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A rig for which no time passes."""
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(time, "monotonic", lambda: now / SECOND)
    return Rig(tmp_path)


def test_short_calls(rig: Rig) -> None:
    """A call within the limit is no hang."""
    rig.lasts(7, 9)
    rig.watch.look()

    assert ([], ()) == (rig.taken, rig.profiles.hangs.newest_first())


def test_the_processes_of_the_job(rig: Rig) -> None:
    """Processes in a communicator with that of the oldest call, or in its pod; with their ranks."""
    rig.communicators.replace(
        [Member(7, "c", 0, 2), Member(8, "c", 1, 2), Member(8, "d", 5, 16), Member(10, "e", 0, 2)]
    )
    rig.lasts(8, 11, "cuStreamSynchronize")
    rig.lasts(7, 12)
    rig.watch.look()

    assert [[7, 8, 9]] == rig.taken
    [hang] = rig.profiles.hangs.newest_first()
    document = hang.document()
    assert (1, "ncclAllReduce", 3, 3) == tuple(document[name] for name in ("n", "call", "processes", "threads"))
    assert 12 <= document["seconds"] < 13
    assert {"7": "0", "8": "5", "9": None} == {it.labels["pid"]: it.labels.get("rank") for it in hang.profile.samples}
    assert any("ncclAllReduce of process 7 had not returned for 12 s" in it for it in hang.profile.comments)


def test_more_processes_than_a_profile_has(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the oldest call is in it, whatever its pid."""
    monkeypatch.setattr(hang_watch, "MOST_PROCESSES", 2)
    rig.communicators.replace([Member(pid, "c", pid, 16) for pid in (7, 8, 9, 10)])
    rig.lasts(10, 11)
    rig.watch.look()

    assert [[10, 7]] == rig.taken


def test_a_job_without_labels_and_communicators(rig: Rig) -> None:
    """A profile has the one process: others without labels are of other jobs."""
    rig.lasts(10, 11)
    rig.watch.look()

    assert [[10]] == rig.taken


def test_each_call_once_and_not_too_often(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is in one profile; another hang waits until the last profile is old enough, and is kept then."""
    rig.lasts(7, 20)
    rig.watch.look()
    rig.watch.look()
    rig.lasts(10, 11)
    rig.watch.look()
    assert 1 == len(rig.taken)

    later = time.monotonic() + hang_watch.REST_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    rig.watch.look()
    rig.watch.look()
    assert [7, 9] == rig.taken[0]
    assert [10] == rig.taken[1]
    assert 2 == len(rig.taken)


def thread(proc: Path, pid: int, tid: int, state: str, switches: int) -> None:
    folder = proc / f"{pid}/task/{tid}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"{tid} (a (b) c) {state} 1 2 3\n")
    (folder / "status").write_text(f"voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t0\n")


def test_stuck_threads(tmp_path: Path) -> None:
    """A thread in state D counts from the first look on, and again from the first after it has run."""
    thread(tmp_path, 7, 7, "S", 1)
    thread(tmp_path, 7, 70, "D", 5)
    stuck = StuckThreads(tmp_path)

    [first] = stuck.look([7, 8])
    [again] = stuck.look([7, 8])
    thread(tmp_path, 7, 70, "D", 6)
    [later] = stuck.look([7, 8])

    assert first == again
    assert (7, "a system call in state D") == (first.pid, first.what)
    assert first.since_ns < later.since_ns
