"""Which processes a probe has to tell about: those its maps count, and those that ended, for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from exporter.model import Labels
from exporter.node import Processes

RETENTION = 300.0
"""Seconds for which the series of an ended process stay."""
MOST_ENDED = 1024


class Activity(Protocol):
    """What was counted of one process."""

    def ended(self) -> None: ...
    def absorb(self, late: Self) -> None:
        """Adds what was counted after this was read."""


A = TypeVar("A", bound=Activity)


@dataclass(frozen=True, slots=True)
class Process(Generic[A]):
    """One process to tell about. `since` is the wall time in seconds from which its counters count."""

    pid: int
    labels: Labels
    activity: A
    since: float
    ended: bool = False


@dataclass(slots=True)
class _Ended(Generic[A]):
    process: Process[A]
    expires: float


class Ledger(Generic[A]):
    """The activity of processes. Safe from any thread.

    `read` gives what the kernel has counted by pid; `take` removes all that the kernel keeps of some pids, and gives
    what it had counted of those that have a count. The kernel's rows have only pids: they are frozen and deleted when a
    process ends, so that who gets the pid next starts from nothing. Both are called under the lock, at most one walk
    over the maps each, so that the ends of many processes hold up no scrape.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[int, A]],
        take: Callable[[Collection[int]], Mapping[int, A]],
        processes: Processes,
        proc: Path,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._take, self._processes, self._proc, self._now = read, take, processes, proc, now
        self._lock = threading.Lock()
        self._told: set[int] = set()
        self._known: dict[int, tuple[Labels, float]] = {}
        self._ended: dict[int, _Ended[A]] = {}

    def __contains__(self, pid: int) -> bool:
        """Whether a process was told of, and not yet its end."""
        with self._lock:
            return pid in self._told

    def started(self, pid: int) -> None:
        """A process uses the library. Harmless when told already."""
        labels = self._processes.labels(pid)
        with self._lock:
            if pid not in self._told:
                self._told.add(pid)
                self._known[pid] = labels, time.time()

    def ended(self, pids: Collection[int]) -> None:
        """Processes ended, or run other programs now: their counts stand still from here on."""
        with self._lock:
            self._retire(pids)
            self._told.difference_update(pids)

    def processes(self) -> list[Process[A]]:
        """Every process that was counted, those that ended up to five minutes ago included."""
        with self._lock:
            seen = dict(self._read())
            # Those that ended before anybody found that they were there.
            unseen = [pid for pid in seen if pid not in self._told and not (self._proc / str(pid)).exists()]
            self._retire(unseen)
            for pid in unseen:
                del seen[pid]
            living = [self._living(pid, activity) for pid, activity in seen.items()]
            now = self._now()
            self._ended = {pid: it for pid, it in self._ended.items() if it.expires > now and pid not in seen}
            return [*living, *(ended.process for ended in self._ended.values())]

    def _living(self, pid: int, activity: A) -> Process[A]:
        """Labels are asked for each time: the names of a pod are known later than its processes."""
        labels = self._processes.labels(pid)
        since = self._known[pid][1] if pid in self._known else time.time()
        self._known[pid] = labels, since
        return Process(pid, labels, activity, since)

    def _retire(self, pids: Collection[int]) -> None:
        if not pids:
            return
        taken = self._take(pids)
        known = {pid: self._known.pop(pid, None) for pid in pids}
        for pid, activity in taken.items():
            self._keep(pid, activity, known.get(pid))

    def _keep(self, pid: int, activity: A, known: tuple[Labels, float] | None) -> None:
        labels, since = known or (self._processes.labels(pid), time.time())
        activity.ended()
        before = self._ended.pop(pid, None)
        if before:  # a thread was still in a call when the end was noticed
            before.process.activity.absorb(activity)
            activity, since = before.process.activity, before.process.since
        self._ended[pid] = _Ended(Process(pid, labels, activity, since, ended=True), self._now() + RETENTION)
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
