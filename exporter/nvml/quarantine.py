"""Quarantine of GPUs on which a call never returned: a new child skips them for a time and can read the others."""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST, LONGEST = 300.0, 3600.0
"""Seconds of a quarantine, doubled each time the GPU stalls again."""


@dataclass(slots=True)
class _Term:
    until: float
    seconds: float
    active: bool = True


class Quarantine:
    """GPUs in quarantine, by index: the UUID of a stalled GPU may not be readable. Times are of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._gpus: dict[int, _Term] = {}

    def stalled(self, index: int, now: float) -> None:
        before = self._gpus.get(index)
        seconds = min(before.seconds * 2, LONGEST) if before else SHORTEST
        self._gpus[index] = _Term(now + seconds, seconds)

    def works(self, index: int) -> None:
        """Forgets a GPU that was read: the next stall starts with the shortest time."""
        self._gpus.pop(index, None)

    def indices(self) -> tuple[int, ...]:
        """Returns the indices in quarantine now."""
        return tuple(index for index, term in self._gpus.items() if term.active)

    def due(self, now: float) -> tuple[int, ...]:
        """Ends quarantines with an expired time. Returns their indices."""
        expired = tuple(index for index, term in self._gpus.items() if term.active and term.until <= now)
        for index in expired:
            self._gpus[index].active = False
        return expired
