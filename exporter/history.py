"""The last minutes of a few values, for the plots of the page at /; bounded, and there also where nobody scrapes."""

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
"""Seconds between two points at least, however often is gathered."""
MOST_STEP = 20.0
"""Seconds after which it has the collectors asked itself, when nobody else did."""
LONGEST_STEP = 60.0
"""Seconds without a look that are a gap."""
WINDOW = POINTS * LEAST_STEP
MOST_OF_A_KIND = 16
"""Plots of a kind, besides that of the node; with 8 kinds all of it takes 0.25 MB (docs/http.md says so too)."""
_FIRST_AFTER = 5.0

Key = tuple[str, str]
"""What kind of value, and of whom; nobody is the node."""


@dataclass(frozen=True, slots=True)
class Count:
    """A counter's value, and the wall time in seconds from which it counts; 0 is before anybody looked."""

    value: float
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What is in the samples of one gathering. Of who is missing in a kind that was `watched`, nothing was counted."""

    counts: Mapping[Key, Count] = field(default_factory=dict)
    gauges: Mapping[Key, float] = field(default_factory=dict)
    watched: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Recent:
    """What the page shows: rates a second, over how many seconds, and points as (age in seconds, value or NaN)."""

    rates: Mapping[Key, float] = field(default_factory=dict)
    seconds: float = 0.0
    plots: Mapping[Key, Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Look:
    """A reading, and when it was, by the monotonic clock and the wall's."""

    at: float
    wall: float
    reading: Reading

    def rise(self, key: Key, count: Count) -> float | None:
        """How much was counted since then; None where that cannot be known."""
        if count.start > self.wall:
            return count.value
        before = self.reading.counts.get(key)
        if before is None:
            return count.value if key[0] in self.reading.watched else None
        return count.value - before.value if count.value >= before.value else None


class History:
    """Safe from any thread.

    `read` says what there is to plot, `collectors` who has to have been asked for that, `added` which kinds of counters
    are summed for the node. A rate is known between two looks at a counter that went on; else its point is a gap.
    """

    def __init__(
        self, read: Callable[[Sequence[Sample]], Reading], collectors: Collection[str], added: Collection[str]
    ) -> None:
        self.collectors = frozenset(collectors)
        self._read, self._added = read, added
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._times: deque[float] = deque(maxlen=POINTS)
        self._plots: dict[Key, array[float]] = {}
        self._rates: Mapping[Key, float] = {}
        self._seconds = 0.0
        self._before: _Look | None = None

    def start(self, gather: Callable[[Collection[str]], object]) -> None:
        """Has `gather` ask the collectors whenever nobody has for MOST_STEP seconds, from a thread of its own."""
        threading.Thread(target=self._ask, args=(gather,), name="history", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def see(self, samples: Sequence[Sample], names: Collection[str] | None) -> None:
        """Takes what was gathered of the collectors named (None: all), if it is a whole look and time for a point."""
        if names is not None and not self.collectors <= set(names):
            return
        with self._lock:
            now, wall = time.monotonic(), time.time()
            if self._before is None or now - self._before.at >= LEAST_STEP:
                self._add(self._read(samples), now, wall)

    def recent(self) -> Recent:
        with self._lock:
            now = time.monotonic()
            ages = [now - at for at in self._times]
            shown = [at for at, age in enumerate(ages) if age <= WINDOW]
            plots = {key: [(ages[at], values[at - len(ages)]) for at in shown] for key, values in self._plots.items()}
            return Recent(self._rates, self._seconds, plots)

    def _ask(self, gather: Callable[[Collection[str]], object]) -> None:
        pause = _FIRST_AFTER
        while not self._ended.wait(pause):
            with self._lock:
                pause = self._before.at + MOST_STEP - time.monotonic() if self._before else 0.0
            if pause <= 0:
                gather(self.collectors)
                pause = MOST_STEP

    def _add(self, reading: Reading, now: float, wall: float) -> None:
        before, self._before = self._before, _Look(now, wall, reading)
        gap = before is not None and now - before.at > LONGEST_STEP
        self._seconds = 0.0 if before is None or gap else now - before.at
        self._rates = self._all_rates(reading, before) if before and not gap else {}
        if gap:
            self._append(now, {})
        self._append(now, {**reading.gauges, **self._rates})

    def _all_rates(self, reading: Reading, before: _Look) -> dict[Key, float]:
        risen = {key: before.rise(key, count) for key, count in reading.counts.items()}
        for kind in self._added:
            own = [rise for key, rise in risen.items() if key[0] == kind]
            if own or kind in reading.watched:
                risen[kind, ""] = None if None in own else sum(rise for rise in own if rise is not None)
        return {key: rise / self._seconds for key, rise in risen.items() if rise is not None}

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
        """Who gets a plot: the node, and of each kind the largest as long as there is room; who is gone makes room."""
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
