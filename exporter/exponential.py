"""Histograms the bounds of which are powers of two of the unit, as native and exponential histograms have them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from exporter.model import Distribution

COARSEST = -4
"""Of the schemas (OpenTelemetry: scales) the one with the fewest buckets that Prometheus takes."""
_MOST_EXPONENT = 1024
"""A float is below 2 to the power of this."""
_LAST_BOUND = 2.0 ** (1 << -COARSEST)
"""The bound of a bucket of the coarsest schema; that of the next one, in seconds, is longer than any computer ran."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """A histogram with exponential buckets, nothing of which is estimated.

    Bucket i holds base ** (i - 1) < v <= base ** i, and base is 2 ** (2 ** -schema). `counts` are of the buckets from
    `first` on. `zero` values are not above `threshold`, and `over` above the last bound: how far is not known.
    """

    schema: int
    threshold: float
    zero: int
    first: int
    counts: tuple[int, ...]
    over: int

    @property
    def infinite(self) -> int:
        """The index of the bucket up to infinity, behind that of the largest float."""
        return (_MOST_EXPONENT >> -self.schema) + 1

    def coarsest(self) -> Exponential:
        """Return the histogram in the coarsest schema, where the bucket behind the last bound holds what is `over`."""
        shift = self.schema - COARSEST
        indices = [-(-index >> shift) for index in range(self.first, self.first + len(self.counts))]
        counts = [0] * (indices[-1] + 2 - indices[0])
        for index, count in zip(indices, self.counts, strict=True):
            counts[index - indices[0]] += count
        counts[-1] = self.over
        return Exponential(COARSEST, self.threshold, self.zero, indices[0], tuple(counts), 0)


def exponential(value: Distribution) -> Exponential | None:
    """Return the same histogram with exponential buckets; None where its bounds are not those of any schema."""
    found = schema(value.bounds)
    if found is None or len(value.counts) != len(value.bounds) + 1:
        return None
    of, first = found
    zero, *counts, over = value.counts
    return Exponential(of, value.bounds[0], zero, first + 1, tuple(counts), over)


def bounded(value: Distribution) -> Exponential | None:
    """Return the same with a bound for all values; None where it has no exponential buckets, or none that may be last.

    If durations are above the last bound, 18 hours, the result is of the coarsest schema, which has a bucket for them.
    """
    made = exponential(value)
    if made is None or value.bounds[-1] != _LAST_BOUND:
        return None
    return made.coarsest() if made.over else made


@lru_cache(256)
def schema(bounds: tuple[float, ...]) -> tuple[int, int] | None:
    """Return the schema that has these bounds, one after the other, and the index of the first bound."""
    parts = [math.frexp(bound) for bound in bounds]
    if len(parts) < 2 or any(mantissa != 0.5 for mantissa, _ in parts):
        return None
    exponents = [exponent - 1 for _, exponent in parts]
    steps = {after - before for before, after in zip(exponents, exponents[1:], strict=False)}
    step = steps.pop()
    if steps or step not in {1 << -schema for schema in range(COARSEST, 1)} or exponents[0] % step:
        return None
    return 1 - step.bit_length(), exponents[0] // step
