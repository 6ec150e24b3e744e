"""Counts of faults by series: live ones, replayed ones from before the start, and bursts. All tables are bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from exporter.model import Labels, Metric, Sample
from exporter.series import FOLDED
from exporter.xid import catalog, metrics
from exporter.xid.fault import DriverFault, Family

SILENCE = 180.0
"""Seconds after which another fault of the same series starts another burst."""
MOST_SERIES = 1024
_MOST_UNDESCRIBED = 256
"""Codes outside the catalog get less room: they must not crowd out the others."""
_MOST_FOLDED = 4096
_MOST_DEVICES = 256
_KEPT = ("action", "category", "severity")

Key = tuple[Family, str, frozenset[tuple[str, str]]]


@dataclass(slots=True)
class _SeriesCount:
    last: float
    live: int = 0
    replayed: int = 0
    bursts: int = 0


_METRICS: dict[Family, tuple[Metric, Metric, Metric]] = {
    Family.XID: (metrics.XIDS, metrics.XIDS_REPLAYED, metrics.XID_LAST),
    Family.SXID: (metrics.SXIDS, metrics.SXIDS_REPLAYED, metrics.SXID_LAST),
    Family.BUS_LOSS: (metrics.LOSSES, metrics.LOSSES_REPLAYED, metrics.LOSS_LAST),
}


class FaultCounts:
    """Counts of faults. `labels` returns the labels of a fault's device (Directory.labels). Thread-safe."""

    def __init__(self, labels: Callable[[str], Labels]) -> None:
        self._labels = labels
        self._lock = threading.Lock()
        self._counts: dict[Key, _SeriesCount] = {}
        self._folded: set[Key] = set()
        self._recoveries: dict[str, int] = {}

    def add(self, fault: DriverFault, time: float, replayed: bool = False) -> bool:
        """Counts a fault of wall time `time` (seconds). Returns whether the fault starts a burst and is no replay."""
        with self._lock:
            key = self._key(fault)
            count = self._counts.get(key)
            begins = count is None or time - count.last > SILENCE
            if count is None:
                count = self._counts[key] = _SeriesCount(time)
            count.last = max(count.last, time)
            if fault.recovery is not None and (
                fault.device in self._recoveries or len(self._recoveries) < _MOST_DEVICES
            ):
                self._recoveries[fault.device] = fault.recovery
            if replayed:
                count.replayed += 1
                return False
            count.live += 1
            count.bursts += begins
            return begins

    def samples(self) -> Iterator[Sample]:
        """Yields all series, and the number of series folded into others."""
        with self._lock:
            rows = [(key, count.live, count.replayed, count.last, count.bursts) for key, count in self._counts.items()]
            recoveries, folded = list(self._recoveries.items()), len(self._folded)
        for (family, device, own), live, replayed, last, bursts in rows:
            labels = {**self._labels(device), **dict(own)}
            errors, before, newest = _METRICS[family]
            yield errors.sample(live, labels)
            yield before.sample(replayed, labels)
            yield newest.sample(last, labels)
            if family is Family.XID:
                yield metrics.XID_BURSTS.sample(bursts, labels)
        for device, recovery in recoveries:
            yield metrics.RECOVERY.sample(recovery, self._labels(device))
        yield FOLDED.sample(folded, {"collector": "xid"})

    def _key(self, fault: DriverFault) -> Key:
        """Returns the series of a fault, or the series with its action, category and severity alone when full."""
        key = (fault.family, fault.device, frozenset(fault.labels.items()))
        undescribed = fault.labels["category"] == catalog.UNKNOWN
        if key in self._counts or len(self._counts) < (_MOST_UNDESCRIBED if undescribed else MOST_SERIES):
            return key
        if len(self._folded) < _MOST_FOLDED:
            self._folded.add(key)
        kept = {name: value for name, value in fault.labels.items() if name in _KEPT}
        return (fault.family, "", frozenset({**kept, "overflow": "true"}.items()))
