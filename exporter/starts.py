"""Since when counters count that name no start of their own: since the exporter's, until one falls."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 16_384


@dataclass(slots=True)
class _Counted:
    value: float
    start: float
    read: int


class Starts:
    """Starts of cumulative series, from reading to reading; `first` is the exporter's own. Wall times in seconds.

    A counter falls when the settings are read again, a library is probed a second time or a driver is loaded again.
    OTLP requires a new start then: the reading before, the last moment at which the counter is known to have been
    what it was. One thread at a time.
    """

    def __init__(self, first: float) -> None:
        self._first = self._before = self._now = first
        self._readings = 0
        self._known: dict[int, _Counted] = {}

    def read(self, now: float) -> None:
        """A reading of all series begins. Those longest gone are forgotten when there are too many."""
        self._before, self._now = min(self._now, now), now
        self._readings += 1
        if len(self._known) > MOST:
            gone = sorted(self._known, key=lambda series: self._known[series].read)
            for series in gone[: len(self._known) - MOST]:
                del self._known[series]

    def of(self, series: int, value: float) -> float:
        """The start of one series, by a hash of its name and labels, that shows this value in this reading."""
        counted = self._known.get(series)
        if counted is None:
            counted = self._known[series] = _Counted(value, self._first, self._readings)
        if value < counted.value:
            counted.start = self._before
        counted.value, counted.read = value, self._readings
        return counted.start

    def __len__(self) -> int:
        return len(self._known)
