"""Launches for exporter.governor: what they cost a process, and their counts while they are probed in windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Protocol

from exporter.cuda.activity import Activity, Launches
from exporter.cuda.functions import FUNCTIONS
from exporter.cuda.records import CallKey, LaunchRow
from exporter.governor.estimates import Counts, ProcessTally
from exporter.governor.processes import cpu_seconds, cpu_times
from exporter.governor.subject import LAUNCHES_FIRST, Prices, SubjectFile

if TYPE_CHECKING:
    from exporter.bpf.maps import Map


@dataclass(slots=True)
class _Calls:
    """Calls of one process: `launches` by device and function, other calls by function."""

    launches: dict[tuple[int, int], int] = field(default_factory=dict)
    others: dict[int, float] = field(default_factory=lambda: defaultdict(float))


class LeftOutLater(Protocol):
    """Functions of CUDA that may be left out too."""

    rank: int
    apis: Collection[int]

    def leaves_out(self, pid: int) -> bool:
        """Return whether calls of a process may be left out now."""


_Launched = list[tuple[CallKey, LaunchRow]]
_Called = list[tuple[CallKey, int]]
_TRIES = 2


def _went_on(rows: tuple[_Called, _Launched, _Called]) -> int:
    """Return how many other calls were made while these rows were read."""
    before, _, after = rows
    return sum(count for _, count in after) - sum(count for _, count in before)


class CudaLaunches:
    """A governor's Subject. The reference are all other calls of the process: copies, waits and allocations of a loop
    go with its launches. `layer` is the one of which launches may be probed in windows. `others` has the subjects of
    functions that are left out later: while they are, their calls are no reference.
    """

    name, rank = "cuda", LAUNCHES_FIRST
    unit_bound, unit_flag, calls_only = inf, "", False

    def __init__(
        self,
        probes: Prices,
        maps: Mapping[str, Map],
        layer: str,
        cpu: Callable[[int], float] = cpu_seconds,
        others: Collection[LeftOutLater] = (),
    ) -> None:
        self._others = others
        self._elsewhere = {api for it in others for api in it.apis}
        """Functions of which another subject has the cost."""
        self._probes, self._maps, self._cpu = probes, maps, cpu
        self._sampled = {api for api, it in enumerate(FUNCTIONS, 1) if it.launches and it.layer == layer}
        self._first = layer == "runtime"
        """True if launches may be the first calls of a process: in the driver the context's comes first."""
        self._symbol = FUNCTIONS[min(self._sampled) - 1].name

    def sampled_files(self) -> Mapping[int, SubjectFile]:
        return self._probes.sampled_files("launches")

    def sampled_cost(self) -> float | None:
        """Return the seconds that probes took at the launches of all processes that run; None without prices."""
        if self._probes.price(self._symbol) is None:
            return None
        calls = self._maps["launches"].sums("api", "calls")
        return sum(calls[api] * self._price(api) for api in self._sampled)

    def tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        calls = self._read(pids)
        return {pid: self._tally(pid, calls[pid], cpu) for pid, cpu in cpu_times(pids, self._cpu).items()}

    def last(self, pid: int, activity: Activity) -> Callable[[ProcessTally], ProcessTally]:
        """Return what makes the last tally of a process that has ended; its CPU time is not known any more."""
        calls = _Calls()
        for device, counts in activity.devices.items():
            for api, launches in counts.launches.items():
                self._add_launches(calls, device, api, launches.calls)
            for api, count in counts.calls.items():
                calls.others[api] += count
        return lambda before: self._tally(pid, calls, before.cpu)

    def add(self, activity: Activity, missed: Counts | None) -> None:
        """Add to the counts of a process what was estimated, as Estimates.missed returns it.

        For None they are unknown; the time of the newest launch that was seen stays.
        """
        if missed is None:
            for counts in activity.devices.values():
                for api in self._sampled & counts.launches.keys():
                    counts.launches[api] = counts.launches[api]._replace(calls=0)
            return
        for (device, api), more in missed.items():
            launches = activity.devices[device].launches
            seen = launches.get(api, Launches(0, 0))
            launches[api] = seen._replace(calls=seen.calls + more)

    def _read(self, pids: Collection[int]) -> Mapping[int, _Calls]:
        """Read launches between two readings of the other calls, of which the mean counts: so both are of one time.

        Of two tries the one with fewer other calls in between counts: in the other one the thread had to wait.
        """
        before, launches, after = min((self._rows(pids) for _ in range(_TRIES)), key=_went_on)
        found = {pid: _Calls() for pid in pids}
        for key, value in launches:
            self._add_launches(found[key.tgid], key.device, key.api, value.calls)
        for key, count in (*before, *after):
            found[key.tgid].others[key.api] += count / 2
        return found

    def _rows(self, pids: Collection[int]) -> tuple[_Called, _Launched, _Called]:
        before, launches, after = (
            [row for row in self._maps[name].items() if row[0].tgid in pids] for name in ("calls", "launches", "calls")
        )
        return before, launches, after

    def _add_launches(self, calls: _Calls, device: int, api: int, count: int) -> None:
        if api in self._sampled:
            calls.launches[device, api] = count
        else:
            calls.others[api] += count

    def _tally(self, pid: int, calls: _Calls, cpu: float) -> ProcessTally:
        absent = tuple(it.rank for it in self._others if it.leaves_out(pid))
        unseen = {api for it in self._others if it.rank in absent for api in it.apis}
        return ProcessTally(
            counts=calls.launches,
            reference=sum(count for api, count in calls.others.items() if api not in unseen),
            cost=sum(count * self._price(api) for (_, api), count in calls.launches.items()),
            other=sum(count * self._price(api) for api, count in calls.others.items() if api not in self._elsewhere),
            cpu=cpu,
            measure=absent,
            begun=self._first or bool(calls.launches or calls.others),
        )

    def _price(self, api: int) -> float:
        return self._probes.price(FUNCTIONS[api - 1].name) or 0.0
