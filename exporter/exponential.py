"""Histograms the bounds of which are powers of two of the unit, as native and exponential histograms have them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from exporter.model import Distribution

_COARSEST = -4
"""Of the schemas (OpenTelemetry: scales) the one with the fewest buckets that Prometheus takes."""
_MOST_EXPONENT = 1024
"""A float is below 2 to the power of this."""


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


def exponential(value: Distribution) -> Exponential | None:
    """Return the same histogram with exponential buckets; None where its bounds are not those of any schema."""
    found = _schema(value.bounds)
    if found is None or len(value.counts) != len(value.bounds) + 1:
        return None
    schema, first = found
    zero, *counts, over = value.counts
    return Exponential(schema, value.bounds[0], zero, first + 1, tuple(counts), over)


@lru_cache(256)
def _schema(bounds: tuple[float, ...]) -> tuple[int, int] | None:
    """Return the schema that has these bounds, one after the other, and the index of the first bound."""
    parts = [math.frexp(bound) for bound in bounds]
    if len(parts) < 2 or any(mantissa != 0.5 for mantissa, _ in parts):
        return None
    exponents = [exponent - 1 for _, exponent in parts]
    steps = {after - before for before, after in zip(exponents, exponents[1:], strict=False)}
    step = steps.pop()
    if steps or step not in {1 << -schema for schema in range(_COARSEST, 1)} or exponents[0] % step:
        return None
    return 1 - step.bit_length(), exponents[0] // step
