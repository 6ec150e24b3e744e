"""Launches for exporter.governor: what they cost a process, and their counts while they are probed in windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from exporter.call_collector import CountedMap, Function, Rows, V
from exporter.governor.estimates import Counts, ProcessTally
from exporter.governor.processes import cpu_seconds, cpu_times
from exporter.governor.subject import LAUNCHES_FIRST, Prices, SubjectFile
from exporter.hip.records import CALLS, LAUNCHES, ApiKey, Launch

if TYPE_CHECKING:
    from exporter.bpf.maps import Map

HITS = CountedMap[Function, int]("process_hits")
"""The map of the hits of all probes but those of launches."""
_TRIES = 2
_Numbers = Sequence[tuple[Function, float]]
F = TypeVar("F", bound=Function)


class _Reading(NamedTuple):
    """Rows of some processes."""

    launches: Sequence[tuple[ApiKey, Launch]]
    calls: _Numbers
    hits: _Numbers

    def of(self, pid: int) -> _Reading:
        """Return the rows of one process."""
        return _Reading(_of(pid, self.launches), _of(pid, self.calls), _of(pid, self.hits))


class HipLaunches:
    """A governor's Subject. The reference are all other calls of the process: copies, waits and allocations of a loop
    go with its launches. `names` are those of functions by number, `launching` the numbers of those that launch.
    """

    name, rank = "hip", LAUNCHES_FIRST
    unit_bound, unit_flag, calls_only = inf, "", False

    def __init__(
        self,
        probes: Prices,
        maps: Mapping[str, Map],
        names: Mapping[int, str],
        launching: Collection[int],
        cpu: Callable[[int], float] = cpu_seconds,
    ) -> None:
        self._probes, self._maps, self._names, self._cpu = probes, maps, names, cpu
        self._launching = launching

    def sampled_files(self) -> Mapping[int, SubjectFile]:
        return self._probes.sampled_files("launches")

    def sampled_cost(self) -> float | None:
        """Return the seconds that probes took at the launches of all processes that run; None without prices."""
        if all(self._probes.price(self._names[api]) is None for api in self._launching):
            return None
        return float(sum(value.calls * self._price(key.api) for key, value in self._maps[LAUNCHES].items()))

    def tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        """Read launches and other calls between two readings of the latter, of which the mean counts.

        Of two tries the one with fewer other calls in between counts: in the other one the thread had to wait.
        """
        before, reading, after = min((self._read(pids) for _ in range(_TRIES)), key=_went_on)
        reading = reading._replace(calls=[(key, calls / 2) for key, calls in (*before, *after)])
        return {pid: self._tally(reading.of(pid), cpu) for pid, cpu in cpu_times(pids, self._cpu).items()}

    def last(self, pid: int, rows: Rows) -> Callable[[ProcessTally], ProcessTally]:
        """Return what makes the last tally of a process that has ended; its CPU time is not known any more."""
        reading = _Reading([*rows.of(LAUNCHES)], [*rows.of(CALLS)], []).of(pid)
        return lambda before: self._tally(reading, before.cpu)

    def add(self, rows: Rows, missed: Counts | None) -> None:
        """Add to the launches of a process what was estimated, as Estimates.missed returns it.

        For None they are unknown; the time of the newest launch that was seen stays.
        """
        for key, value in rows.of(LAUNCHES):
            value.calls = 0 if missed is None else value.calls + missed.get((key.device, key.api), 0)

    def _read(self, pids: Collection[int]) -> tuple[_Numbers, _Reading, _Numbers]:
        before = self._rows(CALLS, pids)
        launches, hits = self._rows(LAUNCHES, pids), self._rows(HITS, pids)
        return before, _Reading(launches, (), hits), self._rows(CALLS, pids)

    def _rows(self, name: CountedMap[F, V], pids: Collection[int]) -> list[tuple[F, V]]:
        return [(key, value) for key, value in self._maps[name].items() if key.tgid in pids]

    def _tally(self, reading: _Reading, cpu: float) -> ProcessTally:
        return ProcessTally(
            counts={(key.device, key.api): value.calls for key, value in reading.launches},
            reference=sum(calls for _, calls in reading.calls),
            cost=sum(value.calls * self._price(key.api) for key, value in reading.launches),
            other=sum(hits * self._price(key.api) for key, hits in reading.hits),
            cpu=cpu,
        )

    def _price(self, api: int) -> float:
        return self._probes.price(self._names.get(api, "")) or 0.0


def _went_on(reading: tuple[_Numbers, _Reading, _Numbers]) -> float:
    """Return how many other calls were made while these rows were read."""
    before, _, after = reading
    return sum(calls for _, calls in after) - sum(calls for _, calls in before)


def _of(pid: int, rows: Sequence[tuple[F, V]]) -> list[tuple[F, V]]:
    return [(key, value) for key, value in rows if key.tgid == pid]
