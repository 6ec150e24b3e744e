"""Costs of functions to a process, in parts of what they may be."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from exporter.governor.estimates import ProcessTally

FLOOR = 0.005
"""Cost in cores below which nothing is left out, however little CPU time the process needs: of the time that passes a
process that mostly waits loses less than this part."""
_SMALLEST = 0.1
"""Part of the bound that functions in windows have where other functions take all of it."""


class Bounds(NamedTuple):
    """Limits on the cost that probes of a file's functions may cause a process."""

    ratio: float
    """Part of its CPU time, all probes together."""
    unit: float
    """Seconds of each unit of the reference, on average: a thread may lose much in a process that uses many cores."""
    cap: Callable[[], float] = lambda: inf
    """Returns the cores that these probes may take at present, for the bound of the node."""

    def weight(self, before: ProcessTally, after: ProcessTally, seconds: float, least: float, cap: float) -> Weight:
        """Return what the functions cost a process: nothing by its own bound where it is less than `least` seconds."""
        rate = max(0.0, after.cost - before.cost) / seconds
        own, used = self._pressure(before, after, least)
        return Weight(own, max(own, rate / cap), max(0.0, rate - (after.saved - before.saved) / seconds), used)

    def allowed(self, before: ProcessTally, after: ProcessTally) -> float:
        """Return the seconds that these functions may take of the CPU time in between: what others leave of it."""
        allowed = self.ratio * max(0.0, after.cpu - before.cpu)
        kept = after.other - before.other - (after.yielding - before.yielding)
        return max(allowed - kept, _SMALLEST * allowed)

    def _pressure(self, before: ProcessTally, after: ProcessTally, least: float) -> tuple[float, float]:
        """Return the cost of the functions in parts of what it may be, and that of all in parts of the bound."""
        cost, other = after.cost - before.cost, after.other - before.other
        allowed, all_allowed = self.allowed(before, after), self.ratio * (after.cpu - before.cpu)
        if cost <= 0 or cost < least or allowed <= 0:
            return 0.0, 0.0
        units = after.reference - before.reference
        pressure = cost / allowed, cost / units / self.unit if units else 0.0
        return max(pressure), (cost - (after.saved - before.saved) + other) / all_allowed


class Weight(NamedTuple):
    """The cost of the functions to a process in some time."""

    own: float
    """In parts of what they may cost it, by the bound of a process; 0 where that is little."""
    pressure: float
    """The same by the bound of the node too."""
    rate: float
    """In cores."""
    used: float
    """The cost of all functions in parts of the process's bound."""
