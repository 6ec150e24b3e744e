"""Arithmetic of samples' values: keys, lines, sums and differences."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import add, itemgetter, sub

from exporter.model import Distribution, Metric, Sample, Value


def key(metric: Metric, labels: Mapping[str, str]) -> str:
    """Return the key of a series, whatever the order of its labels.

    A string, because its hash is cached and faster than that of a set of pairs. Of metrics that others declare two may
    have one name and different kinds.
    """
    names, of = ordered(tuple(labels))
    name = f"{metric.name} {metric.kind.value}" if metric.literal else metric.name
    return "\0".join((name, *names, *of(labels)))


@lru_cache(4096)
def ordered(names: tuple[str, ...]) -> tuple[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]]:
    """Return label names in order, and what fetches their values in that order."""
    ordered = tuple(sorted(names))
    if len(ordered) > 1:
        return ordered, itemgetter(*ordered)
    return ordered, lambda labels: tuple(labels.values())


def lines_of(value: Value) -> int:
    """Return the lines of /metrics for a value: of a histogram its buckets, its sum and its count."""
    return _buckets(value) + 2 if isinstance(value, Distribution) else 1


def lines(samples: Iterable[Sample]) -> int:
    """Return the lines of /metrics for samples."""
    own = [sample.value for sample in samples]
    return len(own) + sum(_buckets(value) + 1 for value in own if isinstance(value, Distribution))


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
    if isinstance(value, Distribution):
        return Distribution(value.bounds, (0,) * len(value.counts), 0.0, shown=value.shown)
    return 0


def plus(a: Value, b: Value) -> Value:
    """Return the sum of two counters or histograms."""
    if isinstance(a, Distribution) and isinstance(b, Distribution):
        a, b = _aligned(a, b)
        return Distribution(a.bounds, _each(add, a, b), a.sum + b.sum, shown=a.shown)
    assert not isinstance(a, Distribution) and not isinstance(b, Distribution)
    return a + b


def minus(a: Value, b: Value) -> Value:
    """Return the difference of two counters or histograms."""
    if isinstance(a, Distribution) and isinstance(b, Distribution):
        a, b = _aligned(a, b)
        return Distribution(a.bounds, _each(sub, a, b), a.sum - b.sum, shown=a.shown)
    assert not isinstance(a, Distribution) and not isinstance(b, Distribution)
    return a - b


def least(a: Value, b: Value) -> Value:
    """Return the lesser counts of two counters, or of two histograms with the same buckets, number by number."""
    if isinstance(a, Distribution) and isinstance(b, Distribution):
        return Distribution(a.bounds, _each(min, a, b), min(a.sum, b.sum), shown=a.shown)
    assert not isinstance(a, Distribution) and not isinstance(b, Distribution)
    return min(a, b)


def most(a: Value, b: Value) -> Value:
    """Return the greater counts of two counters, or of two histograms with the same buckets, number by number."""
    if isinstance(a, Distribution) and isinstance(b, Distribution):
        return Distribution(a.bounds, _each(max, a, b), max(a.sum, b.sum), shown=a.shown) if alike(a, b) else a
    assert not isinstance(a, Distribution) and not isinstance(b, Distribution)
    return max(a, b)


def _each(do: Callable[[int, int], int], a: Distribution, b: Distribution) -> tuple[int, ...]:
    """Return the results for the counts of each bucket of two histograms. Raises ValueError for unequal numbers."""
    if len(a.counts) != len(b.counts):
        raise ValueError(f"histograms of {len(a.counts)} and {len(b.counts)} buckets")
    return tuple(map(do, a.counts, b.counts))


def alike(a: Value, b: Value) -> bool:
    """Return whether two values have the same buckets, if they are histograms."""
    return not isinstance(a, Distribution) or not isinstance(b, Distribution) or a.bounds == b.bounds


def _aligned(a: Distribution, b: Distribution) -> tuple[Distribution, Distribution]:
    """Return two histograms with the bounds that both have, of which the counts are exact.

    Those that others declare, as inference engines do, may have other bounds in another process.
    """
    if alike(a, b):
        return a, b
    common = set(a.bounds) & set(b.bounds)
    first, second = (
        replace(it, exemplars={}, shown=tuple(at for at, bound in enumerate(it.bounds) if bound in common))
        for it in (a, b)
    )
    return classic(first), classic(second)


def merged(value: Distribution, most: int) -> Distribution:
    """Return the histogram with at most so many classic buckets: every n-th of the shown bounds stays shown."""
    bounds = range(len(value.bounds)) if value.shown is None else value.shown
    step = -(-len(bounds) // max(1, most - 1))
    return value if step <= 1 else replace(value, shown=tuple(bounds[step - 1 :: step]))


def classic(value: Distribution) -> Distribution:
    """Return the histogram with the shown bounds alone: each bucket is the sum of neighbours, so counts are exact.

    The exemplar of a bucket is that of the highest of its parts.
    """
    if value.shown is None:
        return value
    if len(value.counts) != len(value.bounds) + 1:
        raise ValueError(f"{len(value.counts)} counts of {len(value.bounds)} bounds")
    starts = (0, *(at + 1 for at in value.shown))
    ends = (*starts[1:], len(value.counts))
    counts = tuple(sum(value.counts[start:end]) for start, end in zip(starts, ends, strict=True))
    exemplars = {bisect_left(value.shown, at): value.exemplars[at] for at in sorted(value.exemplars)}
    return Distribution(tuple(value.bounds[at] for at in value.shown), counts, value.sum, exemplars)


def _buckets(value: Distribution) -> int:
    """Return the number of classic buckets."""
    return len(value.counts) if value.shown is None else len(value.shown) + 1
