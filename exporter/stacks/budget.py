"""Number of stacks that may be taken within the processor time for unwinding."""

from __future__ import annotations

SAVED_SECONDS = 60.0
"""Time of which unused processor time is kept for bursts: programs allocate most when they start."""
MOST = 4096
_FIRST_COST = 0.001
"""Seconds that a stack is taken to cost until that is measured."""
_WINDOW = 256
"""Stacks of which the mean cost is taken. The first ones of a program cost more, as its files are read for them."""


class CpuBudget:
    """The account of a share of one processor (0.05: five hundredths)."""

    def __init__(self, share: float) -> None:
        self._share, self._cost = share, _FIRST_COST
        self._saved = share * SAVED_SECONDS
        self._used, self._unwound = 0.0, 0

    def allowance(self, elapsed: float, used: float, unwound: int, waiting: int) -> int:
        """Return the number of stacks that may be taken from now on.

        `elapsed` are the seconds since the last call; `used` the processor time in seconds and `unwound` the stacks of
        all time; `waiting` are stacks that were taken and not unwound yet.
        """
        spent, count = used - self._used, unwound - self._unwound
        self._used, self._unwound = used, unwound
        if count > 0 and spent > 0:
            self._cost += (1 - (1 - 1 / _WINDOW) ** count) * (spent / count - self._cost)
        self._saved = min(self._saved + self._share * elapsed - spent, self._share * SAVED_SECONDS)
        return max(0, min(MOST, int(self._saved / self._cost) - waiting))
