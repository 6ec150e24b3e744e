"""Counts of what NVIDIA's driver reports, by series of Xids, SXids and lost GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exporter.faults.counts import MOST_OF_GROUP, MOST_SERIES, FaultCounts
from exporter.faults.xid import catalog, metrics
from exporter.faults.xid.report import DriverReport, Family
from exporter.model import Labels, Metric, Sample
from exporter.series import FOLDED

_MOST_DEVICES = 256
_KEPT = ("action", "category", "severity")

Key = tuple[Family, str, frozenset[tuple[str, str]]]

_METRICS: dict[Family, tuple[Metric, Metric, Metric]] = {
    Family.XID: (metrics.XIDS, metrics.XIDS_REPLAYED, metrics.XID_LAST),
    Family.SXID: (metrics.SXIDS, metrics.SXIDS_REPLAYED, metrics.SXID_LAST),
    Family.BUS_LOSS: (metrics.LOSSES, metrics.LOSSES_REPLAYED, metrics.LOSS_LAST),
}


class DriverCounts:
    """Counts of the driver's reports. `labels` returns the labels of a device (Directory.labels). Thread-safe."""

    def __init__(self, labels: Callable[[str], Labels]) -> None:
        self._labels = labels
        self._counts = FaultCounts[Key](_room, _fold)
        self._recoveries: dict[str, int] = {}

    def add(self, report: DriverReport, time: float, replayed: bool = False) -> bool:
        """Counts a report of wall time `time` (seconds). Returns whether the report starts a burst and is no replay."""
        device, recovery = report.device, report.recovery
        if recovery is not None and (device in self._recoveries or len(self._recoveries) < _MOST_DEVICES):
            self._recoveries[device] = recovery
        return self._counts.add((report.family, device, frozenset(report.labels.items())), time, replayed)

    def samples(self) -> Iterator[Sample]:
        """Yields all series, and the number of series folded into others."""
        for (family, device, own), count in self._counts.rows():
            labels = {**self._labels(device), **dict(own)}
            errors, before, newest = _METRICS[family]
            yield errors.sample(count.live, labels)
            yield before.sample(count.replayed, labels)
            yield newest.sample(count.last, labels)
            if family is Family.XID:
                yield metrics.XID_BURSTS.sample(count.bursts, labels)
        for device, recovery in list(self._recoveries.items()):
            yield metrics.RECOVERY.sample(recovery, self._labels(device))
        yield FOLDED.sample(self._counts.folded, {"collector": "xid"})


def _room(key: Key) -> tuple[str, int]:
    """Returns the group of a series: codes outside the catalog get less room, and must not crowd out the others."""
    category = dict(key[2])["category"]
    return (category, MOST_OF_GROUP) if category == catalog.UNKNOWN else ("", MOST_SERIES)


def _fold(key: Key) -> Key:
    """Returns the series with the action, category and severity of another alone."""
    family, _, labels = key
    return (family, "", frozenset((*((name, value) for name, value in labels if name in _KEPT), ("overflow", "true"))))
