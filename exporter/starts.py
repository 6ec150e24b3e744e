"""Start times of counters without a start of their own: that of the exporter, or of the last reset."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 16_384


@dataclass(slots=True)
class _Counted:
    value: float
    start: float
    read: int


class Starts:
    """Start times of cumulative series over readings; `first` is the exporter's start. Wall times in seconds.

    A counter falls when the settings are reloaded, a library is probed a second time or a driver is loaded again. OTLP
    requires a new start time then: that of the previous reading, the last time at which the counter's value is known.
    OTLP permits no start after the reading either. If the wall clock was set back beyond a start, the start becomes the
    time of the first reading after that, which in OTLP means that the true start is unknown. One thread at a time.
    """

    def __init__(self, first: float) -> None:
        self._first = self._before = self._now = first
        self._readings = 0
        self._known: dict[int, _Counted] = {}
        self._moved: dict[float, float] = {}
        """Starts that were after a reading, with the starts that replace them."""

    def read(self, now: float) -> None:
        """Begin a reading of all series. Beyond MOST the series not read for longest are dropped."""
        self._before, self._now = min(self._now, now), now
        self._readings += 1
        if len(self._known) > MOST:
            by_age = sorted(self._known, key=lambda series: self._known[series].read)
            for series in by_age[: len(self._known) - MOST]:
                del self._known[series]
        while len(self._moved) > MOST:
            del self._moved[next(iter(self._moved))]

    def of(self, series: int, value: float) -> float:
        """Return the start time of a series (a hash of its name and labels) with this value in this reading."""
        counted = self._known.get(series)
        if counted is None:
            counted = self._known[series] = _Counted(value, self._first, self._readings)
        if value < counted.value:
            counted.start = self._before
        counted.value, counted.read = value, self._readings
        return self.within(counted.start)

    def within(self, start: float) -> float:
        """Return the start, or the start that replaces it if the wall clock was set back beyond it."""
        moved = self._moved.get(start, start)
        if moved > self._now:
            moved = self._moved[start] = self._now
        return moved

    def __len__(self) -> int:
        return len(self._known)
