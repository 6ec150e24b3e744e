"""Collectors with probes that are never left out: what they cost counts in the bounds of processes and node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from exporter.governor.estimates import ProcessTally


@dataclass(eq=False)
class Payer:
    """The costs of one collector's probes."""

    spent: Callable[[], float | None]
    """Returns the seconds that all its probes took until now; None while that is not known."""
    costs: Callable[[Collection[int]], Mapping[int, float]]
    """Returns the seconds that they took from each of these processes; nothing of a watched collector, which has
    tallies."""

    rank = 0

    def tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        """Return the costs as what other functions took."""
        return {pid: ProcessTally({}, 0.0, 0.0, seconds, 0.0) for pid, seconds in self.costs(pids).items()}
