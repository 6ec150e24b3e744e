"""Interface of collectors to the governor: a collector with functions that may be probed in windows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from exporter.governor.estimates import ProcessTally
from exporter.governor.files import ProbedFile

LAUNCHES_FIRST, MESSAGES_SECOND, POSTS_THIRD, TRANSFERS_FOURTH, COLLECTIVES_FIFTH, MEMORY_LAST = range(6)
"""The order in which functions are left out where a process has several that cost too much."""


class SubjectFile(ProbedFile, Protocol):
    """A file with functions that may be probed in windows."""

    @property
    def name(self) -> str:
        """The file's name in labels."""

    @property
    def symbols(self) -> Collection[str]: ...


class Prices(Protocol):
    """Costs of probed functions, as known to exporter.bpf.probe.Probes."""

    def price(self, symbol: str) -> float | None:
        """Return the seconds that probes take at one call; None where that is not known."""

    def sampled_files(self, group: str) -> Mapping[int, SubjectFile]:
        """Return the files with functions of a group that may be probed in windows, each under a key of its own."""


class Subject(Protocol):
    """A collector with functions that may be probed in windows."""

    name: str
    rank: int
    """The collector's place in the order of those that are left out."""
    unit_bound: float
    """Seconds that these probes may take, on average, of each unit of the reference; infinite without such a bound."""
    unit_flag: str
    """The flag that sets it."""
    calls_only: bool
    """True if only calls are estimated, so that something is unknown of each process in windows."""

    def sampled_files(self) -> Mapping[int, SubjectFile]:
        """Return the files that have such functions, each under a key of its own."""

    def sampled_cost(self) -> float | None:
        """Return the seconds that their probes took from all processes until now; None while that is not known."""

    def tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        """Return what these processes did, with what probes of this collector took; without those that have ended."""
