"""The bound of the node: what all probes may take from all processes together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from math import inf
from typing import NamedTuple

_RECENT_SECONDS = 10.0
"""Time over which costs are averaged: two cycles of windows, which cost at random times."""
_SMALLEST = 0.1
"""Part of the bound that functions in windows have where other functions take all of it."""
_CALM, _STEP = 0.5, 2.0
"""Part of the bound below which no process is limited any more, and the factor by which the limit rises at most."""


class _Point(NamedTuple):
    """All costs until a time, in seconds."""

    time: float
    spent: float
    rest: float
    """Cost of functions that are never left out."""


class NodeBudget:
    """Limits the processes that cost most, so that all together stay within `cores`; 0 for no such bound.

    `cap` is what the functions of one collector may take of one process, in cores: the greatest with which the costs
    add up to the bound. Processes below it keep all their probes.
    """

    def __init__(self, cores: float, clock: Callable[[], float]) -> None:
        self._cores, self._clock = cores, clock
        self.cap = inf
        self._used: float | None = None
        self._points = deque[_Point]()
        self._bounded = 0.0

    @property
    def cores(self) -> float:
        return self._cores

    @property
    def used(self) -> float | None:
        """Return the cost of the last seconds in parts of the bound; None while that is not known."""
        return None if self._used is None else self._used / self._cores

    def look(self, spent: float | None, bounded: float, rates: Collection[float]) -> None:
        """Take all costs until now in seconds, None where they are not known, and adapt the cap.

        `bounded` are the costs of functions that may be probed in windows, which fall when a process ends; `rates` are
        theirs in cores, one for each process and collector.
        """
        if spent is None or not self._cores:
            return
        now = self._clock()
        last = self._points[-1] if self._points else _Point(now, spent, 0.0)
        added = spent - last.spent - (bounded - self._bounded)
        if bounded < self._bounded:  # what it was since is not known: as much as before
            added = self._rest_rate() * (now - last.time)
        rest, self._bounded = last.rest + max(0.0, added), bounded
        self._points.append(_Point(now, spent, rest))
        while len(self._points) > 2 and self._points[1].time <= now - _RECENT_SECONDS:
            self._points.popleft()
        first = self._points[0]
        if (seconds := now - first.time) > 0:
            self._used = (spent - first.spent) / seconds
            self._adapt(rates, max(self._cores - self._rest_rate(), _SMALLEST * self._cores))

    def _rest_rate(self) -> float:
        """Return the cost of functions that are never left out, in cores."""
        if len(self._points) < 2:
            return 0.0
        first, last = self._points[0], self._points[-1]
        return (last.rest - first.rest) / (last.time - first.time) if last.time > first.time else 0.0

    def _adapt(self, rates: Collection[float], room: float) -> None:
        total, most = sum(rates), max(rates, default=0.0)
        if total > room:
            self.cap = water_level(rates, room)
        elif total <= _CALM * room and self.cap >= _STEP * most:
            self.cap = inf
        elif total:
            self.cap *= min(_STEP, room / total)
        else:
            self.cap *= _STEP


def water_level(rates: Collection[float], room: float) -> float:
    """Return the greatest limit with which the rates, those above it cut to it, add up to `room` at most."""
    for done, rate in enumerate(sorted(rates)):
        level = room / (len(rates) - done)
        if rate > level:
            return level
        room -= rate
    return inf
