"""Counting of faults by series, in a bounded number of series: the ledger of the node and the Xids count here."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

MOST_SERIES, MOST_OF_GROUP = 1024, 256
"""Series at most, and those of a group that must leave room for the others."""
SILENCE = 180.0
"""Seconds after which another fault of the same series starts another burst."""
_MOST_FOLDED = 4096


@dataclass(slots=True)
class FaultCount:
    """Faults of a series: the newest one's wall time in seconds, live ones, those from before the exporter's start, and
    bursts of live ones.
    """

    last: float
    live: int = 0
    replayed: int = 0
    bursts: int = 0


class FaultCounts(Generic[Key]):
    """Counts by series. Safe from any thread.

    `room` returns the group of a series and how many series the group may have. A series beyond that, or beyond
    MOST_SERIES, is counted in the series that `fold` returns.
    """

    def __init__(self, room: Callable[[Key], tuple[str, int]], fold: Callable[[Key], Key]) -> None:
        self._room, self._fold = room, fold
        self._lock = threading.Lock()
        self._counts: dict[Key, FaultCount] = {}
        self._of_group: Counter[str] = Counter()
        self._folded: set[Key] = set()

    def add(self, key: Key, time: float, replayed: bool = False, times: int = 1) -> bool:
        """Count a fault of wall time `time` so many times; 0 only updates the time of the newest one.

        Returns whether the fault starts a burst, which a replayed fault does not.
        """
        with self._lock:
            key = self._series(key)
            count = self._counts.get(key)
            begins = bool(times) and not replayed and (count is None or time - count.last > SILENCE)
            if count is None:
                count = self._counts[key] = FaultCount(time)
            count.last = max(count.last, time)
            if replayed:
                count.replayed += times
            else:
                count.live += times
            count.bursts += begins
            return begins

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def folded(self) -> int:
        """Number of series counted in others, 4,096 at most."""
        return len(self._folded)

    def rows(self) -> list[tuple[Key, FaultCount]]:
        """Return all series with their counts as of now."""
        with self._lock:
            return [(key, replace(count)) for key, count in self._counts.items()]

    def _series(self, key: Key) -> Key:
        if key in self._counts:
            return key
        group, most = self._room(key)
        if len(self._counts) < MOST_SERIES and self._of_group[group] < most:
            self._of_group[group] += 1
            return key
        if len(self._folded) < _MOST_FOLDED:
            self._folded.add(key)
        return self._fold(key)
