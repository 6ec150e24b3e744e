"""Selection of the processes of a file that cost little enough to be probed all the time, outside of windows."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

_POLITE, _LOOKS, _SECONDS = 0.5, 3, 0.05
"""Pressure with all calls probed, looks in a row at most at it, and CPU time that the process had in windows of these,
after which it leaves the windows. On a busy node it gets no processor in many windows, and in others it may pause."""

_WHOLE = 0.99


class Standings:
    """Costs of the processes of one file, by pid."""

    def __init__(self) -> None:
        self.kept: set[int] = set()
        """The processes that are probed all the time."""
        self._calm: dict[int, tuple[int, float]] = {}
        """Looks in a row at which a process was polite, and its CPU time in windows of these; those of one that always
        was are many."""

    def look(
        self, pressures: Mapping[int, float], share: float, cpu: Mapping[int, float] = MappingProxyType({})
    ) -> None:
        """Take the pressures since the last look, when processes that are not kept were probed for this share.

        `cpu` is their CPU time; processes that are not in it used too little of it to cost much.
        """
        calm: dict[int, tuple[int, float]] = {}
        for pid, pressure in pressures.items():
            whole = pid in self.kept or share >= _WHOLE
            polite = pressure <= 1 if whole else pressure / share <= _POLITE
            looks, seconds = self._calm.get(pid, (0, 0.0))
            seconds += share * cpu[pid] if pid in cpu else _SECONDS / 2
            calm[pid] = ((_LOOKS, inf) if whole else (looks + 1, seconds)) if polite else (0, 0.0)
        self._calm = calm

    def polite(self) -> set[int]:
        """Return the processes to keep."""
        return {pid for pid, (looks, seconds) in self._calm.items() if looks >= _LOOKS and seconds >= _SECONDS}
