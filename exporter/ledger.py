"""The processes that a probe reports: those counted in its maps, and ended ones for a limited time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from exporter.model import Labels
from exporter.node import Processes

RETENTION = 300.0
"""Time for which the series of an ended process stay."""
MOST_ENDED = 1024
"""Ended processes that are kept one by one; the counts of more of them are folded (exporter/series.py)."""


class Activity(Protocol):
    """The counts of one process."""

    def ended(self) -> None: ...
    def absorb(self, late: Self) -> None:
        """Add counts from after this activity was read."""


A = TypeVar("A", bound=Activity)


@dataclass(frozen=True, slots=True)
class Process(Generic[A]):
    """One reported process. `since` is the wall time in seconds from which its counters count."""

    pid: int
    labels: Labels
    activity: A
    since: float
    ended: bool = False
    replaced: bool = False
    """The process did not end, but runs another program now."""


@dataclass(slots=True)
class _Ended(Generic[A]):
    process: Process[A]
    expires: float


_Workload = frozenset[tuple[str, str]]


class _Ends(Generic[A]):
    """Ended processes, one for each pid.

    Where they are too many, the oldest of the workload that has most of them goes first: no workload takes the places
    of others.
    """

    def __init__(self) -> None:
        self._by_pid: dict[int, _Ended[A]] = {}
        self.workloads: dict[_Workload, dict[int, None]] = {}

    def __iter__(self) -> Iterator[Process[A]]:
        return (it.process for it in self._by_pid.values())

    def __len__(self) -> int:
        return len(self._by_pid)

    def add(self, process: Process[A], expires: float) -> None:
        """Add a process; there is none of its pid."""
        self._by_pid[process.pid] = _Ended(process, expires)
        self.workloads.setdefault(_workload(process), {})[process.pid] = None

    def oldest(self) -> int:
        """Return the pid of the oldest of the largest workload; there is one."""
        largest = max(self.workloads, key=lambda workload: len(self.workloads[workload]))
        return next(iter(self.workloads[largest]))

    def pop(self, pid: int) -> Process[A] | None:
        """Remove and return the process of a pid, None without one."""
        if (ended := self._by_pid.pop(pid, None)) is None:
            return None
        workload = _workload(ended.process)
        del self.workloads[workload][pid]
        if not self.workloads[workload]:
            del self.workloads[workload]
        return ended.process

    def expired(self, now: float) -> list[int]:
        """Return the pids that are kept no longer."""
        return [pid for pid, it in self._by_pid.items() if it.expires <= now]


def _workload(process: Process[A]) -> _Workload:
    return frozenset(pair for pair in process.labels.items() if pair[0] not in ("pid", "comm"))


class Ledger(Generic[A]):
    """The activity of processes. Safe from any thread.

    `read` returns the kernel's counts by pid; `take` removes all rows of some pids from the kernel's maps and returns
    their counts. Rows are keyed by pid: they are deleted at the end of a process, so that the pid's next process starts
    from 0. Both are called under the lock and walk over the maps at most once, so that the ends of many processes delay
    no scrape. Labels are read without the lock, because a process may be waited for. `fold` gets the ended processes
    that are kept no longer though their time is not over, under the lock.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[int, A]],
        take: Callable[[Collection[int]], Mapping[int, A]],
        processes: Processes,
        proc: Path,
        now: Callable[[], float] = time.monotonic,
        fold: Callable[[Process[A]], None] = lambda _: None,
    ) -> None:
        self._read, self._take, self._processes, self._proc, self._now = read, take, processes, proc, now
        self._fold = fold
        self._lock = threading.Lock()
        self.live: set[int] = set()
        self.known: dict[int, tuple[Labels | None, float]] = {}
        """Labels as last read (None: not yet), and the wall time from which the counters count."""
        self.ends = _Ends[A]()
        self._superseded: list[Process[A]] = []
        """Ended processes with a pid that another one, or another program, has had since."""
        self._holder: int | None = None
        """The thread that makes a page."""
        self.folded = 0
        """Ended processes that were folded before RETENTION was over."""

    def __contains__(self, pid: int) -> bool:
        """Return whether a process has started and not yet ended."""
        with self._lock:
            return pid in self.live

    def started(self, pid: int) -> None:
        """Add a process that uses the library; does nothing when the process is known.

        Its labels are read now: those of the process that had its pid before may be known still.
        """
        if pid in self:
            return
        self._processes.forget(pid)
        labels = self._processes.labels(pid)
        with self._lock:
            if pid not in self.live:
                self.live.add(pid)
                # A page may have shown it before: a later beginning would be that of another process, counted again.
                _, since = self.known.get(pid, (None, time.time()))
                self.known[pid] = labels, since

    def ended(self, pids: Collection[int], replaced: bool = False) -> Collection[int]:
        """Freeze the counts of processes that have ended, or were `replaced` by other programs (exec). Return the
        processes that had counts.
        """
        for pid in [pid for pid in pids if replaced and self._labels_known(pid) is None]:
            self._processes.labels(pid)  # waits here, so that `_keep` does not
        with self._lock:
            counted = self._retire(pids, replaced)
            self.live.difference_update(pids)
        return counted

    @contextmanager
    def page(self) -> Iterator[None]:
        """Keep the ended processes from being folded by other threads while this one shows what `processes` returns.

        So the counts of each process are either among those or folded. One thread at a time.
        """
        with self._lock:
            self._holder = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._holder = None
                self._make_room()

    def processes(self) -> list[Process[A]]:
        """Return every counted process, including those that ended within RETENTION and were not folded."""
        with self._lock:
            seen = dict(self._read())
            # Processes that ended before they were discovered.
            unseen = [pid for pid in seen if pid not in self.live and not os.access(f"{self._proc}/{pid}", os.F_OK)]
            self._retire(unseen)
            for pid in unseen:
                del seen[pid]
            since = {pid: self.known.setdefault(pid, (None, time.time()))[1] for pid in seen}
            self._superseded += [before for pid in seen if (before := self.ends.pop(pid))]
            for pid in self.ends.expired(self._now()):
                self.ends.pop(pid)
                self._processes.forget(pid)  # the next one of this pid may end unseen
            self._make_room()
            ended = list(self.ends)
        return [*(self._living(pid, activity, since[pid]) for pid, activity in seen.items()), *ended]

    def _living(self, pid: int, activity: A, since: float) -> Process[A]:
        """Return a running process, with labels read again: a pod's names become known after its processes start."""
        labels = self._processes.labels(pid)
        with self._lock:
            if pid in self.known and self.known[pid][1] == since:  # it has not ended meanwhile
                self.known[pid] = labels, since
        return Process(pid, labels, activity, since)

    def _labels_known(self, pid: int) -> Labels | None:
        with self._lock:
            return self.known.get(pid, (None, 0.0))[0]

    def _retire(self, pids: Collection[int], replaced: bool = False) -> Collection[int]:
        if not pids:
            return ()
        taken = self._take(pids)
        known = {pid: self.known.pop(pid, None) for pid in pids}
        for pid, activity in taken.items():
            self._keep(pid, activity, known.get(pid), replaced)
        self._make_room()
        return taken.keys()

    def _keep(self, pid: int, activity: A, known: tuple[Labels | None, float] | None, replaced: bool) -> None:
        labels, since = known or (None, time.time())
        if labels is None:
            labels = self._processes.labels(pid)
            if replaced:  # the name is that of the program that runs now
                labels = {name: value for name, value in labels.items() if name != "comm"}
        activity.ended()
        before = self.ends.pop(pid)
        if before and (known or replaced or before.replaced):
            self._superseded.append(before)
        elif before:  # a thread was still in a call when the end was noticed
            before.activity.absorb(activity)
            activity, since = before.activity, before.since
        self.ends.add(Process(pid, labels, activity, since, True, replaced), self._now() + RETENTION)

    def _make_room(self) -> None:
        """Fold the ended processes that are too many, and those without a pid of their own."""
        if self._holder not in (None, threading.get_ident()):
            return
        while len(self.ends) > MOST_ENDED:
            pid = self.ends.oldest()
            if process := self.ends.pop(pid):
                self._fold_one(process)
            self._processes.forget(pid)  # as of those that expire
        superseded, self._superseded = self._superseded, []
        for process in superseded:
            self._fold_one(process)

    def _fold_one(self, process: Process[A]) -> None:
        self.folded += 1
        self._fold(process)
