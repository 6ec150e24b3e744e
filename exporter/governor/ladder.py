"""The share of time for which a function is probed, so that its probes stay within the bound."""

from __future__ import annotations

LEAST = 0.002
"""Share of time that stays: without a window nothing could be estimated, nor the end of the load be noticed."""
_PATIENCE = 2
"""Looks in a row over the bound before calls are missed: starts of jobs are short."""
_CALM, _CALM_LOOKS = 0.5, 3
"""Pressure, and looks in a row at most at it, after which every call is counted again."""
_LONGEST = 2.0
"""Usual lengths that a cycle has at most, where even the least share costs too much: coming and going does, too."""
_STEP = 2.0
"""Factor by which the share changes at most from one look to the next: a window may miss the busy part of a step."""


class Ladder:
    """Two levels: all calls, or calls in windows that are a `share` of the time.

    `look` gets the pressure since the last look: the cost of the function's probes in parts of what it may be.
    """

    def __init__(self) -> None:
        self.throttled = False
        self.share = 1.0
        self.stretch = 1.0
        """Length of a cycle in parts of the usual one; windows are as long as in that."""
        self._over = self._calm = 0

    def look(self, pressure: float) -> None:
        """Choose level and share for the time until the next look."""
        if self.throttled:
            self._adjust(pressure)
            return
        self._over = self._over + 1 if pressure > 1 else 0
        if self._over >= _PATIENCE:
            self.throttled, self._over, self._calm = True, 0, 0
            self.share = max(LEAST, 1 / pressure)

    def _adjust(self, pressure: float) -> None:
        wanted = 1 / pressure if pressure else _STEP
        whole = self.share == 1
        self._calm = self._calm + 1 if whole and pressure <= _CALM else 0
        change = min(_STEP, max(1 / _STEP, wanted))
        if pressure <= _CALM or self.share > LEAST:
            self.stretch = 1.0
        else:
            self.stretch = min(_LONGEST, max(1.0, self.stretch / change))
        if self.stretch == 1:
            self.share = min(1.0, max(LEAST, self.share * change))
        if self._calm >= _CALM_LOOKS:
            self.throttled = False
