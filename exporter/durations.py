"""Histograms of durations as programs in the kernel count them: bounds are powers of two of a second.

Native and exponential histograms have the same bounds (exporter/exponential.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from exporter.exponential import schema
from exporter.model import Distribution, Exemplar

FIRST = -20
"""DURATION_FIRST of bpf/thread.h."""
_MOST_SHOWN = 32.0
"""Longer durations, in seconds, have no buckets of their own where buckets are series."""


def durations(
    slots: Sequence[int],
    sum_ns: int,
    first: int = FIRST,
    step: int = 1,
    exemplars: Mapping[int, Exemplar] | None = None,
) -> Distribution:
    """Return a histogram, in seconds, that duration_slot(ns, first, …) of bpf/slots.h has filled.

    With `step` powers of two each slot is the sum of so many slots of that function.
    """
    bounds = duration_bounds(len(slots), first, step)
    return Distribution(bounds, tuple(slots), sum_ns / 1e9, exemplars or {}, shown(bounds))


@cache
def duration_bounds(slots: int, first: int, step: int = 1) -> tuple[float, ...]:
    """Return the inclusive upper bounds of all slots but the last one, which has none."""
    return tuple(2.0 ** (first + step * slot) for slot in range(slots - 1))


def duration_slot(ns: int, first: int, slots: int) -> int:
    """Return the slot of a time, as duration_slot() of bpf/slots.h."""
    bits = ns.bit_length()
    exponent = bits - 30 + (ns << 30 > 10**9 << bits)
    return min(max(exponent - first, 0), slots - 1)


@cache
def shown(bounds: tuple[float, ...]) -> tuple[int, ...] | None:
    """Return which of these bounds are worth a series each (Distribution.shown).

    None, for all of them, where no native histogram would have the others.
    """
    if schema(bounds) is None:
        return None
    return tuple(at for at, bound in enumerate(bounds) if bound <= _MOST_SHOWN)
