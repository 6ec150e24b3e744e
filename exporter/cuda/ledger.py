"""Which processes there are to tell about: those the maps count, and those that ended, for a while."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.cuda.activity import Activity, Map, clear, read
from exporter.cuda.samples import Process
from exporter.model import Labels
from exporter.node import Processes

RETENTION = 300.0
"""Seconds for which the series of an ended process stay."""
MOST_ENDED = 1024


@dataclass(slots=True)
class _Ended:
    process: Process
    expires: float


class Ledger:
    """The CUDA activity of processes, over the maps of a loaded object. Safe from any thread.

    `forget` removes what the kernel keeps of a process besides its counts, `gpus` names the GPUs of its devices. The
    kernel's rows have only pids: they are
    frozen and deleted when a process ends, so that who gets the pid next starts from nothing.
    """

    def __init__(
        self,
        maps: Mapping[str, Map],
        forget: Callable[[int], object],
        processes: Processes,
        proc: Path,
        gpus: Callable[[int, Activity], Mapping[int, Labels]] = lambda pid, activity: {},
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._maps, self._forget, self._processes, self._proc, self._now = maps, forget, processes, proc, now
        self._gpus = gpus
        self._lock = threading.Lock()
        self._told: set[int] = set()
        self._known: dict[int, tuple[Labels, float]] = {}
        self._ended: dict[int, _Ended] = {}
        self._hits: Counter[int] = Counter()
        self._retired: Counter[int] = Counter()

    def started(self, pid: int) -> None:
        """A process uses CUDA. Harmless when told already."""
        labels = self._processes.labels(pid)
        with self._lock:
            if pid not in self._told:
                self._told.add(pid)
                self._known[pid] = labels, time.time()

    def ended(self, pid: int) -> None:
        """A process ended, or runs another program now: its counts stand still from here on."""
        with self._lock:
            self._retire(pid, read(self._maps).get(pid))
            self._told.discard(pid)

    def processes(self) -> list[Process]:
        """Every process that used CUDA, those that ended up to five minutes ago included."""
        with self._lock:
            seen = read(self._maps)
            for pid in [pid for pid in seen if pid not in self._told and not (self._proc / str(pid)).exists()]:
                self._retire(pid, seen.pop(pid))  # ended before anybody told us that it was there
            self._hits = self._retired + _hits(seen.values())
            living = [self._living(pid, activity) for pid, activity in seen.items()]
            now = self._now()
            self._ended = {pid: it for pid, it in self._ended.items() if it.expires > now and pid not in seen}
            return [*living, *(ended.process for ended in self._ended.values())]

    def hits(self) -> Mapping[int, int]:
        """Calls by function number as of the last `processes()`; they never fall."""
        return self._hits

    def _living(self, pid: int, activity: Activity) -> Process:
        """Labels are asked for each time: the names of a pod are known later than its processes."""
        labels = self._processes.labels(pid)
        since = self._known[pid][1] if pid in self._known else time.time()
        self._known[pid] = labels, since
        return Process(pid, labels, activity, since, gpus=self._gpus(pid, activity))

    def _retire(self, pid: int, activity: Activity | None) -> None:
        clear(self._maps, pid)
        self._forget(pid)
        known = self._known.pop(pid, None)
        if activity is None:
            return
        labels, since = known or (self._processes.labels(pid), time.time())
        gpus = self._gpus(pid, activity)
        self._retired += _hits([activity])
        activity.ended()
        before = self._ended.pop(pid, None)
        if before:  # a thread that was still in a call when we were told
            before.process.activity.absorb(activity)
            activity, since, gpus = before.process.activity, before.process.since, before.process.gpus
        process = Process(pid, labels, activity, since, ended=True, gpus=gpus)
        self._ended[pid] = _Ended(process, self._now() + RETENTION)
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]


def _hits(activities: Iterable[Activity]) -> Counter[int]:
    hits: Counter[int] = Counter()
    for activity in activities:
        for counts in activity.devices.values():
            hits.update(counts.calls)
            hits.update({api: launches.calls for api, launches in counts.launches.items()})
    return hits
