"""The last minutes of a few values, for the plots of the page at /; bounded, and recorded also without scrapes."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan

from exporter.model import Sample

POINTS = 120
LEAST_STEP = 5.0
"""Shortest time between two points, however often samples are gathered."""
MOST_STEP = 20.0
"""Time without a scrape after which the history gathers samples itself."""
LONGEST_STEP = 60.0
"""Time without a point that counts as a gap."""
WINDOW = POINTS * LEAST_STEP
MOST_OF_A_KIND = 16
"""Plots of a kind, besides that of the node; with 8 kinds all plots take 0.25 MB (also stated in docs/http.md)."""
FIRST_AFTER = 5.0

Key = tuple[str, str]
"""The kind of a value, and the identity of its object; an empty identity is the node."""


@dataclass(frozen=True, slots=True)
class CounterValue:
    """A counter's value, and the wall time in seconds from which the counter counts; 0 is before the first reading."""

    value: float
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class ScrapeValues:
    """The values in the samples of one scrape. A counter missing from a kind in `watched` has counted nothing."""

    counts: Mapping[Key, CounterValue] = field(default_factory=dict)
    gauges: Mapping[Key, float] = field(default_factory=dict)
    watched: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Recent:
    """Data for the page: rates a second, the `seconds` they cover, and points as (age in seconds, value or NaN)."""

    rates: Mapping[Key, float] = field(default_factory=dict)
    seconds: float = 0.0
    plots: Mapping[Key, Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _TimedReading:
    """A reading with its time by the monotonic clock and by the wall clock."""

    at: float
    wall: float
    reading: ScrapeValues

    def increase(self, key: Key, count: CounterValue) -> float | None:
        """Return the increase of a counter since this reading, or None where it is unknown."""
        if count.start > self.wall:
            return count.value
        before = self.reading.counts.get(key)
        if before is None:
            return count.value if key[0] in self.reading.watched else None
        return count.value - before.value if count.value >= before.value else None


class History:
    """The recorded values. Safe from any thread.

    `read` extracts the values to plot from samples of `collectors`; kinds of counters in `added` are summed for the
    node. A rate is known between two readings of a counter that was not reset in between; else its point is a gap.
    """

    def __init__(
        self, read: Callable[[Sequence[Sample]], ScrapeValues], collectors: Collection[str], added: Collection[str]
    ) -> None:
        self.collectors = frozenset(collectors)
        self._read, self._added = read, added
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._times: deque[float] = deque(maxlen=POINTS)
        self._plots: dict[Key, array[float]] = {}
        self._rates: Mapping[Key, float] = {}
        self._seconds = 0.0
        self._before: _TimedReading | None = None

    def start(self, gather: Callable[[Collection[str]], object]) -> None:
        """Start a thread that calls `gather` whenever there was no scrape for MOST_STEP seconds."""
        threading.Thread(target=self._run, args=(gather,), name="history", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def add(self, samples: Sequence[Sample], names: Collection[str] | None) -> None:
        """Record the samples of a scrape of the collectors `names` (None: all), if complete and a point is due."""
        if names is not None and not self.collectors <= set(names):
            return
        with self._lock:
            now, wall = time.monotonic(), time.time()
            if self._before is None or now - self._before.at >= LEAST_STEP:
                self._record(self._read(samples), now, wall)

    def recent(self) -> Recent:
        with self._lock:
            now = time.monotonic()
            ages = [now - at for at in self._times]
            shown = [at for at, age in enumerate(ages) if age <= WINDOW]
            plots = {key: [(ages[at], values[at - len(ages)]) for at in shown] for key, values in self._plots.items()}
            return Recent(self._rates, self._seconds, plots)

    def _run(self, gather: Callable[[Collection[str]], object]) -> None:
        pause = FIRST_AFTER
        while not self._ended.wait(pause):
            with self._lock:
                pause = self._before.at + MOST_STEP - time.monotonic() if self._before else 0.0
            if pause <= 0:
                gather(self.collectors)
                pause = MOST_STEP

    def _record(self, reading: ScrapeValues, now: float, wall: float) -> None:
        before, self._before = self._before, _TimedReading(now, wall, reading)
        gap = before is not None and now - before.at > LONGEST_STEP
        self._seconds = 0.0 if before is None or gap else now - before.at
        self._rates = self._all_rates(reading, before) if before and not gap else {}
        if gap:
            self._append(now, {})
        self._append(now, {**reading.gauges, **self._rates})

    def _all_rates(self, reading: ScrapeValues, before: _TimedReading) -> dict[Key, float]:
        increases = {key: before.increase(key, count) for key, count in reading.counts.items()}
        for kind in self._added:
            own = [increase for key, increase in increases.items() if key[0] == kind]
            if own or kind in reading.watched:
                increases[kind, ""] = None if None in own else sum(filter(None, own))
        return {key: increase / self._seconds for key, increase in increases.items() if increase is not None}

    def _append(self, now: float, values: Mapping[Key, float]) -> None:
        self._times.append(now)
        for key in self._admitted(values):
            self._plots[key] = array("f", [nan]) * POINTS
        for key, plot in list(self._plots.items()):
            del plot[0]
            plot.append(values.get(key, nan))
            if not any(map(isfinite, plot)):
                del self._plots[key]

    def _admitted(self, values: Mapping[Key, float]) -> list[Key]:
        """Return the keys that get a plot: the node's, and the largest of each kind within the limit.

        Plots of vanished objects are dropped to make room.
        """
        new = values.keys() - self._plots.keys()
        admitted = [key for key in new if not key[1]]
        for kind in {kind for kind, of in new if of}:
            waiting = sorted((key for key in new if key[0] == kind and key[1]), key=lambda key: (-values[key], key))
            own = [key for key in self._plots if key[0] == kind and key[1]]
            for key in own if len(own) + len(waiting) > MOST_OF_A_KIND else ():
                if key not in values:
                    del self._plots[key]
            room = MOST_OF_A_KIND - sum(key in self._plots for key in own)
            admitted += waiting[:room]
        return admitted
