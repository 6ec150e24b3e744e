"""Arithmetic of samples' values: keys, lines, sums and differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import itemgetter

from exporter.model import Distribution, Metric, Sample, Value


def key(metric: Metric, labels: Mapping[str, str]) -> str:
    """Return the key of a series, whatever the order of its labels.

    A string, because its hash is cached and faster than that of a set of pairs.
    """
    names, of = ordered(tuple(labels))
    return "\0".join((metric.name, *names, *of(labels)))


@lru_cache(4096)
def ordered(names: tuple[str, ...]) -> tuple[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]]:
    """Return label names in order, and what fetches their values in that order."""
    ordered = tuple(sorted(names))
    if len(ordered) > 1:
        return ordered, itemgetter(*ordered)
    return ordered, lambda labels: tuple(labels.values())


def lines_of(value: Value) -> int:
    """Return the lines of /metrics for a value: of a histogram its buckets, its sum and its count."""
    return len(value.counts) + 2 if isinstance(value, Distribution) else 1


def lines(samples: Iterable[Sample]) -> int:
    """Return the lines of /metrics for samples."""
    own = [sample.value for sample in samples]
    return len(own) + sum(len(value.counts) + 1 for value in own if isinstance(value, Distribution))


def combine(metric: Metric, a: Value, b: Value) -> Value:
    """Return what two gauges are together: their sum, or the larger of times, ratios, temperatures, states and lags."""
    assert not isinstance(a, Distribution) and not isinstance(b, Distribution)
    largest = metric.name.endswith(("timestamp", "info", "state", "behind", "lag")) or metric.unit in ("1", "Cel")
    return max(a, b) if largest else a + b


def count(value: Value) -> int | float:
    """Return what a counter has counted, or the observations of a histogram."""
    return sum(value.counts) if isinstance(value, Distribution) else value


def zero(value: Value) -> Value:
    """Return the counter or histogram before anything was counted."""
    return Distribution(value.bounds, (0,) * len(value.counts), 0.0) if isinstance(value, Distribution) else 0


def plus(a: Value, b: Value) -> Value:
    """Return the sum of two counters or histograms."""
    if isinstance(a, Distribution) and isinstance(b, Distribution):
        counts = tuple(x + y for x, y in zip(a.counts, b.counts, strict=True))
        return Distribution(a.bounds, counts, a.sum + b.sum)
    assert not isinstance(a, Distribution) and not isinstance(b, Distribution)
    return a + b


def minus(a: Value, b: Value) -> Value:
    """Return the difference of two counters or histograms."""
    if isinstance(a, Distribution) and isinstance(b, Distribution):
        counts = tuple(x - y for x, y in zip(a.counts, b.counts, strict=True))
        return Distribution(a.bounds, counts, a.sum - b.sum)
    assert not isinstance(a, Distribution) and not isinstance(b, Distribution)
    return a - b


def merged(value: Distribution, most: int) -> Distribution:
    """Return the histogram with at most so many buckets: each is the sum of neighbours, so the counts are exact.

    Every n-th bound is kept; the exemplar of a bucket is that of the highest of its parts.
    """
    step = -(-(len(value.counts) - 1) // max(1, most - 1))
    if step <= 1:
        return value
    kept = range(step - 1, len(value.bounds), step)
    starts = [0, *(at + 1 for at in kept)]
    ends = [*(at + 1 for at in kept), len(value.counts)]
    counts = tuple(sum(value.counts[start:end]) for start, end in zip(starts, ends, strict=True))
    exemplars = {
        at: value.exemplars[max(inside)]
        for at, (start, end) in enumerate(zip(starts, ends, strict=True))
        if (inside := [bucket for bucket in value.exemplars if start <= bucket < end])
    }
    return Distribution(tuple(value.bounds[at] for at in kept), counts, value.sum, exemplars)
