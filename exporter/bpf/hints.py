"""Hints of processes to examine and the time to do so: soon after a process maps a file, at a bounded rate."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from exporter.bpf.mappings import Mapping

MAX_HINTS = 1 << 14
MAX_PLACES = 1 << 12


@dataclass(slots=True)
class Hint:
    """A process to look at once `due` (time.monotonic). What it newly mapped was mapped at `since_ns` or later."""

    since_ns: int
    due: float
    places: list[tuple[int, bytes]] = field(default_factory=list)
    """Addresses at which files were mapped, and the files as the kernel's records name them."""
    times: list[int] = field(default_factory=list)
    """Times of the mappings in `places`, CLOCK_MONOTONIC in nanoseconds, in the same order."""
    attempts: int = 0

    def mapped_ns(self, mapping: Mapping) -> int:
        """Return since when, at the earliest, the process has had the file of a mapping."""
        files = {file for address, file in self.places if mapping.start <= address < mapping.end}
        times = [at for (_, file), at in zip(self.places, self.times, strict=True) if file in files]
        return min(times, default=self.since_ns)


class Hints:
    """At most one hint for each process: news of the same process joins it."""

    def __init__(self) -> None:
        self._hints: dict[int, Hint] = {}
        self._rest_until: dict[int, float] = {}
        self._taken: dict[int, Hint] = {}

    def __contains__(self, pid: int) -> bool:
        return pid in self._hints

    def add(
        self, pid: int, since_ns: int, delay: float = 0.0, place: tuple[int, bytes] | None = None, attempts: int = 0
    ) -> bool:
        """Schedules a look at a process in `delay` seconds, or when it is due already. False if there is no room."""
        due = time.monotonic() + delay
        hint = self._hints.get(pid)
        if hint is None:
            if len(self._hints) >= MAX_HINTS:
                return False
            hint = self._hints[pid] = Hint(since_ns, due)
        hint.since_ns = min(hint.since_ns, since_ns)
        hint.due = max(min(hint.due, due), self._rest_until.get(pid, 0.0))
        hint.attempts = max(hint.attempts, attempts)
        if place and len(hint.places) < MAX_PLACES:
            hint.places.append(place)
            hint.times.append(since_ns)
        return True

    def add_again(self, pid: int, hint: Hint, delay: float, attempts: int) -> None:
        """Schedules another look at a process, for what its hint has not led to yet."""
        self.add(pid, hint.since_ns, delay, attempts=attempts)
        if again := self._hints.get(pid):
            again.times += hint.times[: MAX_PLACES - len(again.times)]
            again.places += hint.places[: MAX_PLACES - len(again.places)]

    def mapped_before(self, pid: int, time_ns: int) -> set[bytes]:
        """Return the files that a process mapped before this time, of its hint and of the one that was taken last."""
        hints = [hint for hint in (self._hints.get(pid), self._taken.get(pid)) if hint]
        return {file for hint in hints for (_, file), at in zip(hint.places, hint.times, strict=True) if at < time_ns}

    def rest(self, pid: int, seconds: float) -> None:
        """Lets a process wait at least this long for its next look."""
        self._rest_until[pid] = time.monotonic() + seconds

    def next_due(self) -> float:
        return min((hint.due for hint in self._hints.values()), default=float("inf"))

    def take_due(self) -> dict[int, Hint]:
        """Removes and returns what is due."""
        now = time.monotonic()
        self._rest_until = {pid: until for pid, until in self._rest_until.items() if until > now}
        due = {pid: hint for pid, hint in self._hints.items() if hint.due <= now}
        for pid in due:
            del self._hints[pid]
        self._taken = due
        return due

    def take_all(self) -> dict[int, Hint]:
        """Removes and returns everything."""
        self._taken, self._hints = self._hints, {}
        return self._taken
