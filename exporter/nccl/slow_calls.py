"""Slow calls: longer than a threshold, or than calls of their kind and process commonly are."""

from __future__ import annotations

from collections import OrderedDict

from exporter.nccl.records import NcclSpan

MOST_REMEMBERED = 8192
TIMES = 10
"""Beyond so many times the running median a call is slow ..."""
LEAST_NS = 10_000_000
"""... if it took this long: shorter ones vary by more than that for the scheduler's sake."""
_LEARN = 50
_STEP = 1.05


class SlowCalls:
    """Running medians of the host time in calls, by process and kind. One thread at a time."""

    def __init__(self, threshold_s: float) -> None:
        self._threshold_ns = threshold_s * 1e9
        self.medians: OrderedDict[tuple[int, int], tuple[int, float]] = OrderedDict()

    def slow(self, record: NcclSpan) -> bool:
        """Return whether this call was slow, compared with the calls before it."""
        took = record.end_ns - record.start_ns
        key = (record.tgid, record.kind)
        seen, median = self.medians.get(key, (0, float(took)))
        slow = took >= self._threshold_ns or (seen >= _LEARN and took > max(LEAST_NS, TIMES * median))
        median *= _STEP if took > median else 1 / _STEP  # half the calls push it up: it settles at the median
        self.medians[key] = min(seen + 1, _LEARN), max(1.0, median)
        self.medians.move_to_end(key)
        while len(self.medians) > MOST_REMEMBERED:
            self.medians.popitem(last=False)
        return slow
