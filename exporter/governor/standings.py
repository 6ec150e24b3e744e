"""Selection of the processes of a file that cost little enough to be probed all the time, outside of windows."""

from __future__ import annotations

from collections.abc import Mapping

_POLITE, _LOOKS = 0.5, 3
"""Pressure with all calls probed, and looks in a row at most at it, after which a process leaves the windows."""

_WHOLE = 0.99


class Standings:
    """Costs of the processes of one file, by pid."""

    def __init__(self) -> None:
        self.kept: set[int] = set()
        """The processes that are probed all the time."""
        self._calm: dict[int, int] = {}
        """Looks in a row at which a process was polite; those of one that always was are many."""

    def look(self, pressures: Mapping[int, float], share: float) -> None:
        """Take the pressures since the last look, when processes that are not kept were probed for this share."""
        calm: dict[int, int] = {}
        for pid, pressure in pressures.items():
            whole = pid in self.kept or share >= _WHOLE
            polite = pressure <= 1 if whole else pressure / share <= _POLITE
            calm[pid] = (_LOOKS if whole else self._calm.get(pid, 0) + 1) if polite else 0
        self._calm = calm

    def polite(self) -> set[int]:
        """Return the processes to keep."""
        return {pid for pid, looks in self._calm.items() if looks >= _LOOKS}
