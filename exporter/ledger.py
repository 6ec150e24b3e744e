"""Which processes a probe has to tell about: those its maps count, and those that ended, for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
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

    `read` gives what the kernel has counted by pid, `clear` removes all that the kernel keeps of a pid. The kernel's
    rows have only pids: they are frozen and deleted when a process ends, so that who gets the pid next starts from
    nothing.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[int, A]],
        clear: Callable[[int], object],
        processes: Processes,
        proc: Path,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clear, self._processes, self._proc, self._now = read, clear, processes, proc, now
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

    def ended(self, pid: int) -> None:
        """A process ended, or runs another program now: its counts stand still from here on."""
        with self._lock:
            self._retire(pid, self._read().get(pid))
            self._told.discard(pid)

    def processes(self) -> list[Process[A]]:
        """Every process that was counted, those that ended up to five minutes ago included."""
        with self._lock:
            seen = dict(self._read())
            for pid in [pid for pid in seen if pid not in self._told and not (self._proc / str(pid)).exists()]:
                self._retire(pid, seen.pop(pid))  # ended before anybody told us that it was there
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

    def _retire(self, pid: int, activity: A | None) -> None:
        self._clear(pid)
        known = self._known.pop(pid, None)
        if activity is None:
            return
        labels, since = known or (self._processes.labels(pid), time.time())
        activity.ended()
        before = self._ended.pop(pid, None)
        if before:  # a thread that was still in a call when we were told
            before.process.activity.absorb(activity)
            activity, since = before.process.activity, before.process.since
        self._ended[pid] = _Ended(Process(pid, labels, activity, since, ended=True), self._now() + RETENTION)
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
