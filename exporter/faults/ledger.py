"""Counts of faults by category, component and signal, in a bounded number of series."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from exporter.faults import metrics
from exporter.model import Labels, Sample
from exporter.series import FOLDED

MOST_SERIES, MOST_OF_CATEGORY = 1024, 256
"""Series at most, and a quarter of them per category: processes, which choose their names and may crash at will, leave
the series of hardware faults alone."""
_MOST_FOLDED = 4096


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A fault of the node. `time` is wall time in seconds; a `replayed` fault is older than the exporter's start."""

    category: str
    component: str
    signal: str
    time: float
    replayed: bool = False


@dataclass(slots=True)
class _Count:
    last: float
    live: int = 0
    replayed: int = 0


Key = tuple[str, str, str]


class FaultLedger:
    """The counts of faults. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Key, _Count] = {}
        self._of_category: Counter[str] = Counter()
        self._folded: set[Key] = set()

    def add(self, fault: NodeFault, times: int = 1) -> None:
        """Count a fault `times` times; 0 only updates the time at which the fault was last seen."""
        with self._lock:
            key = self._key(fault)
            count = self._counts.setdefault(key, _Count(fault.time))
            count.last = max(count.last, fault.time)
            if fault.replayed:
                count.replayed += times
            else:
                count.live += times

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self._counts)

    def samples(self) -> Iterator[Sample]:
        """Yield all series, and the number of those folded into others."""
        with self._lock:
            rows = [(key, count.live, count.replayed, count.last) for key, count in self._counts.items()]
            folded = len(self._folded)
        for key, live, replayed, last in rows:
            labels = _labels(key)
            yield metrics.FAULTS.sample(live, labels)
            yield metrics.FAULTS_REPLAYED.sample(replayed, labels)
            yield metrics.FAULT_LAST.sample(last, labels)
        yield FOLDED.sample(folded, {"collector": "faults"})

    def _key(self, fault: NodeFault) -> Key:
        """Return the key of the fault's series. Beyond the limits the key has no component."""
        key = (fault.category, fault.component, fault.signal)
        if key in self._counts:
            return key
        if len(self._counts) < MOST_SERIES and self._of_category[fault.category] < MOST_OF_CATEGORY:
            self._of_category[fault.category] += 1
            return key
        if len(self._folded) < _MOST_FOLDED:
            self._folded.add(key)
        return (fault.category, "", fault.signal)


def _labels(key: Key) -> Labels:
    category, component, signal = key
    overflow = "" if component else "true"
    return {"category": category, "component": component, "signal": signal, "overflow": overflow}
