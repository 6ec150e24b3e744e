"""Profiles of jobs that hang, with the stacks of all threads of their processes, and calls that have not returned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from exporter.model import Labels
from exporter.stack_profiles.bounds import bounded, labels
from exporter.stack_profiles.kept import Kept
from exporter.stack_profiles.model import StackProfile, StackSample, ValueType

TYPES: tuple[ValueType, ...] = (("hang", "count"),)
"""The value of a profile of a hang: threads."""


class Standing(NamedTuple):
    """A call of a process that has not returned, or a thread that has not run: since when, on the monotonic clock."""

    pid: int
    since_ns: int
    what: str
    """The function, as "ncclAllReduce", or what the thread waits in."""


Look = Callable[[], Iterable[Standing]]


class StandingCalls:
    """Calls that have not returned, as known to collectors. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: dict[str, Look] = {}

    def add(self, name: str, look: Look) -> None:
        """Add what returns the calls that a collector sees; for its `start`."""
        with self._lock:
            self._looks[name] = look

    def remove(self, name: str) -> None:
        """Take a collector's away; for its `close`."""
        with self._lock:
            self._looks.pop(name, None)

    def oldest(self) -> dict[int, Standing]:
        """Return the oldest call of each process, by pid."""
        with self._lock:
            looks = [*self._looks.values()]
        found: dict[int, Standing] = {}
        for it in (it for look in looks for it in look()):
            if it.pid not in found or it.since_ns < found[it.pid].since_ns:
                found[it.pid] = it
        return found


@dataclass(frozen=True, slots=True)
class Hang:
    """A kept profile of TYPES: the stacks of all threads, when a call had not returned for `seconds`.

    `number` counts from 1 since the exporter's start; `time_ns` is wall time; `labels` are those of a sample
    (model.LABELS) of the process with this call, `what` names it.
    """

    number: int
    time_ns: int
    profile: StackProfile
    labels: Labels
    what: str
    seconds: float

    def document(self) -> dict[str, Any]:
        """Return number, time in seconds, the call, how long it had lasted, and numbers of processes and threads."""
        return {
            "n": self.number,
            "time": self.time_ns / 1e9,
            "call": self.what,
            "seconds": round(self.seconds, 1),
            "processes": len({sample.labels.get("pid") for sample in self.profile.samples}),
            "threads": self.profile.total(),
            "labels": dict(labels(StackSample((), self.labels, ()))),
        }


class HangProfiles(Kept[Hang]):
    """The last profiles of hangs. Safe from any thread."""

    def add(self, profile: StackProfile, of: Labels, call: Standing, now_ns: int, time_ns: int) -> Hang:
        """Keep a profile of TYPES taken at the wall time `time_ns`; `now_ns` is the same on the monotonic clock."""
        profile, seconds = bounded(profile), (now_ns - call.since_ns) / 1e9
        return self.keep(lambda number: Hang(number, time_ns, profile, of, call.what, seconds))
