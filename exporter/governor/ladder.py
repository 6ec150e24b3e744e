"""The share of time for which a function is probed, so that its probes stay within the bound."""

from __future__ import annotations

from collections import deque

LEAST = 0.002
"""Share of time that stays: without a window nothing could be estimated, nor the end of the load be noticed."""
_PATIENCE = 2
"""Looks in a row over the bound before calls are missed: starts of jobs are short."""
_CALM, _CALM_LOOKS = 0.5, 3
"""Pressure, and looks in a row at most at it, after which every call is counted again."""
_LONGEST = 2.0
"""Usual lengths that a cycle has at most, where even the least share costs too much: coming and going does, too."""
_RECENT = 5
"""Looks of which the costs are taken together: a window may miss the busy part of a step, or see nothing else."""
_AIM, _LEAST_AIM = 0.9, 0.45
"""Pressure that is aimed at, and that while earlier windows which cost more are made up for: no window costs as much as
those before it, and the bound is of all of them."""
_STEP, _IDLE_STEP, _IDLE_LOOKS = 2.0, 4.0, 3
"""Factor by which the share changes at most from one look to the next, and by which it grows after so many looks in a
row that saw no cost: calls that do not come any more are all counted again within a minute."""


class Ladder:
    """Two levels: all calls, or calls in windows that are a `share` of the time.

    `look` gets the pressure since the last look: the cost of the function's probes in parts of what it may be.
    """

    def __init__(self) -> None:
        self.throttled = False
        self.share = 1.0
        self.stretch = 1.0
        """Length of a cycle in parts of the usual one; windows are as long as in that."""
        self._over = self._calm = self._idle = 0
        self._recent = deque[tuple[float, float]](maxlen=_RECENT)
        """Shares, of cycles as long as they were, and the pressure with each."""

    def look(self, pressure: float) -> None:
        """Choose level and share for the time until the next look."""
        if self.throttled:
            self._adjust(pressure)
            return
        self._over = self._over + 1 if pressure > 1 else 0
        if self._over >= _PATIENCE:
            self.throttled, self._over, self._calm, self._idle = True, 0, 0, 0
            self._recent.clear()
            self._choose(max(LEAST, _AIM / pressure))

    def _adjust(self, pressure: float) -> None:
        self._calm = self._calm + 1 if self.share == 1 and pressure <= _CALM else 0
        self._idle = 0 if pressure else self._idle + 1
        part = self.share / self.stretch
        if self._idle >= _IDLE_LOOKS:
            self._recent.clear()
        self._recent.append((part, pressure))
        parts, pressures = (sum(it) for it in zip(*self._recent, strict=True))
        aim = max(_LEAST_AIM, _AIM - max(0.0, pressures - _AIM * len(self._recent)))
        most = _IDLE_STEP if self._idle >= _IDLE_LOOKS else _STEP
        idle = self._idle > 1 or (self._idle and self.stretch > 1)
        wanted = most * part if idle or not pressures else aim * parts / pressures
        self._choose(min(most * part, max(part / _STEP, wanted)))
        if self._calm >= _CALM_LOOKS:
            self.throttled = False

    def _choose(self, part: float) -> None:
        """Set share and stretch to this part of the time."""
        part = min(1.0, max(LEAST / _LONGEST, part))
        self.share = max(LEAST, part)
        self.stretch = self.share / part
