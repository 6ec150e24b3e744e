"""The limit on the series of one answer to /metrics, and what the last answer cost."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from exporter.model import Kind, Metric, Sample
from exporter.series import SeriesLimit, lines

SERIES = Metric(
    "accel_exporter.page.series",
    "Series of the last answer to a request for all collectors, each bucket of a histogram being one.",
    Kind.GAUGE,
)
BYTES = Metric("accel_exporter.page.size", "Size of that answer before it is compressed.", Kind.GAUGE, "By")
SECONDS = Metric(
    "accel_exporter.page.render.time",
    "Time that writing that answer took, the limit of its series and compression included, collectors not.",
    Kind.GAUGE,
    "s",
)
MOST_SELECTIONS = 8
"""Selections of collectors that are remembered; of more the least recently requested is forgotten."""

Selection = frozenset[str] | None


class PageLimit:
    """Limits each answer to `most` series; 0 is no limit. Safe from any thread.

    What was folded is remembered for each selection of collectors (collect[] and exclude[]; None: all): a counter that
    one request leaves out is not gone for another.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._most, self._clock = most, clock
        self._lock = threading.Lock()
        self._limits: OrderedDict[Selection, SeriesLimit] = OrderedDict()
        self._last: tuple[int, int, float] | None = None

    def write(
        self, samples: Sequence[Sample], names: Selection, write: Callable[[Sequence[Sample]], tuple[bytes, int]]
    ) -> bytes:
        """Return the answer that `write` makes of the samples within the limit.

        `write` returns it with its size in bytes before compression.
        """
        began = self._clock()
        within = self._within(samples, names)
        body, size = write(within)
        if names is None:
            self._last = lines(within), size, self._clock() - began
        return body

    def collect(self) -> Iterator[Sample]:
        """Yield what the last answer cost; nothing before the first one."""
        if self._last is not None:
            for metric, value in zip((SERIES, BYTES, SECONDS), self._last, strict=True):
                yield metric.sample(value)

    def _within(self, samples: Sequence[Sample], names: Selection) -> Sequence[Sample]:
        if not self._most:
            return samples
        with self._lock:
            limit = self._limits.setdefault(names, SeriesLimit("page", self._most))
            self._limits.move_to_end(names)
            if len(self._limits) > MOST_SELECTIONS:
                self._limits.popitem(last=False)
            return limit.apply(samples)
