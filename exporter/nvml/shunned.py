"""GPUs on which a call never returned: a new child leaves them alone for a while, so that it can read the others."""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST, LONGEST = 300.0, 3600.0
"""Seconds that a GPU is left alone, doubled each time it stalls again."""


@dataclass(slots=True)
class _Shunned:
    until: float
    seconds: float
    left_alone: bool = True


class Shunned:
    """By index: a GPU that stalls may not tell its UUID either. Times are of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._gpus: dict[int, _Shunned] = {}

    def stalled(self, index: int, now: float) -> None:
        before = self._gpus.get(index)
        seconds = min(before.seconds * 2, LONGEST) if before else SHORTEST
        self._gpus[index] = _Shunned(now + seconds, seconds)

    def works(self, index: int) -> None:
        """It was read: it starts over when it stalls again."""
        self._gpus.pop(index, None)

    def indices(self) -> tuple[int, ...]:
        """Those left alone now."""
        return tuple(index for index, it in self._gpus.items() if it.left_alone)

    def due(self, now: float) -> tuple[int, ...]:
        """Those whose time is over: they are not left alone any more."""
        over = tuple(index for index, it in self._gpus.items() if it.left_alone and it.until <= now)
        for index in over:
            self._gpus[index].left_alone = False
        return over
