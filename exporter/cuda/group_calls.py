"""Copies and waits, and allocations, for exporter.governor: what they cost a process, and what is not known of one of
which they are left out.

In windows only calls are counted: what a call does is known when it returns, and in a window of some milliseconds few
calls of a process that waits do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from exporter.bpf.process_links import MOST
from exporter.bpf.sampled_file import SampledFile
from exporter.cuda.activity import Activity, Counts
from exporter.cuda.functions import FUNCTIONS, MEMORY, TRANSFERS
from exporter.governor.estimates import Counts as EstimatedCounts
from exporter.governor.estimates import ProcessTally
from exporter.governor.processes import cpu_seconds, cpu_times
from exporter.governor.subject import MEMORY_LAST, TRANSFERS_FOURTH, Prices, SubjectFile

if TYPE_CHECKING:
    from exporter.bpf.maps import Map
    from exporter.governor.governor import Governed

NO_WINDOWS: Mapping[int, int] = MappingProxyType({})
_RANKS = {TRANSFERS: TRANSFERS_FOURTH, MEMORY: MEMORY_LAST}


class GroupCalls:
    """A governor's Subject: the functions of a group in one API layer. Calls are estimated by CPU time.

    `watch` is given by the collector once the governor has the subject. `window_price` is that of a call in a window.
    """

    name, unit_bound, unit_flag, calls_only = "cuda", inf, "", True

    def __init__(
        self,
        group: str,
        layer: str,
        probes: Prices,
        maps: Mapping[str, Map],
        window_price: Callable[[], float],
        cpu: Callable[[int], float] = cpu_seconds,
    ) -> None:
        self.group, self.rank = group, _RANKS[group]
        self._probes, self._maps, self._window_price, self._cpu = probes, maps, window_price, cpu
        self.apis: Collection[int] = {
            api for api, it in enumerate(FUNCTIONS, 1) if it.group == group and it.layer == layer
        }
        self._first = layer == "runtime"
        """True if these may be the first calls of a process: in the driver the context's comes first."""
        self._symbol = FUNCTIONS[min(self.apis) - 1].name
        self.watch: Governed | None = None

    def sampled_files(self) -> Mapping[int, SubjectFile]:
        return self._probes.sampled_files(self.group)

    def sampled_cost(self) -> float | None:
        """Return the seconds that probes took at these calls of all processes that run; None without prices."""
        if self._probes.price(self._symbol) is None:
            return None
        calls, windows = self._maps["calls"].sums("api"), self._maps["window_calls"].sums("api")
        return sum(calls[api] * self._price(api) - self._saved({api: windows[api]}) for api in self.apis)

    def tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        counts: dict[int, dict[tuple[int, int], int]] = {pid: {} for pid in pids}
        begun = set[int]()
        for key, count in self._maps["calls"].items():
            if key.tgid in counts:
                begun.add(key.tgid)
                if key.api in self.apis:
                    counts[key.tgid][key.device, key.api] = count
        windows: dict[int, dict[int, int]] = {pid: {} for pid in pids}
        for key, count in self._maps["window_calls"].items():
            if key.tgid in windows and key.api in self.apis:
                windows[key.tgid][key.api] = count
        times = cpu_times(pids, self._cpu).items()
        return {pid: self._tally(counts[pid], cpu, pid in begun, windows[pid]) for pid, cpu in times}

    def last(self, activity: Activity) -> Callable[[ProcessTally], ProcessTally]:
        """Return what makes the last tally of a process that has ended; its CPU time is not known any more."""
        counts = {
            (device, api): count
            for device, its in activity.devices.items()
            for api, count in its.calls.items()
            if api in self.apis
        }
        return lambda before: self._tally(counts, before.cpu, begun=True)

    def missed(self, pid: int) -> EstimatedCounts | None:
        """Return the estimated calls of a process that were not seen, None where they are not known."""
        return self.watch.missed(pid) if self.watch else {}

    def finish(self, pid: int, activity: Activity) -> EstimatedCounts | None:
        """Return the same of one that has ended, and forget it."""
        return self.watch.finish(pid, self.last(activity)) if self.watch else {}

    def leaves_out(self, pid: int) -> bool:
        """Return whether calls of a process may be left out now."""
        return self.watch is not None and self.watch.leaves_out(pid)

    def left_out(self, pid: int) -> bool:
        """Return whether calls of a process are left out, or were once."""
        return self.watch is not None and self.watch.left_out(pid)

    def add(self, activity: Activity, missed: EstimatedCounts | None, absent: bool) -> None:
        """Add to the calls of a process what was estimated, as Estimates.missed returns it. For None they are unknown.

        `absent`: what the calls did is unknown, as they are left out at present.
        """
        for counts in activity.devices.values() if absent else ():
            self._drop(counts)
        for counts in activity.devices.values() if missed is None else ():
            counts.calls = {api: count for api, count in counts.calls.items() if api not in self.apis}
        for (device, api), more in (missed or {}).items():
            calls = activity.devices[device].calls
            calls[api] = calls.get(api, 0) + more

    def _drop(self, counts: Counts) -> None:
        """Remove what calls of the group did."""
        counts.errors = {key: it for key, it in counts.errors.items() if key[0] not in self.apis}
        if self.group == TRANSFERS:
            counts.waits = {api: it for api, it in counts.waits.items() if api not in self.apis}
            counts.copies = {}

    def _tally(
        self, counts: Mapping[tuple[int, int], int], cpu: float, begun: bool, windows: Mapping[int, int] = NO_WINDOWS
    ) -> ProcessTally:
        cost = sum(count * self._price(api) for (_, api), count in counts.items())
        return ProcessTally(counts, 0.0, cost, 0.0, cpu, saved=self._saved(windows), begun=begun or self._first)

    def _saved(self, windows: Mapping[int, int]) -> float:
        """Return the seconds that calls in windows, by function, took less than others do."""
        cheaper = self._window_price()
        return sum(count * max(0.0, self._price(api) - cheaper) for api, count in windows.items())

    def _price(self, api: int) -> float:
        return self._probes.price(FUNCTIONS[api - 1].name) or 0.0


class Allocations(GroupCalls):
    """Functions that allocate and free memory. What a process has in use cannot be known any more after a gap.

    `lose` gets processes of which such calls are not seen any more, `meet` one that has links of its own from now on,
    which began when others were in windows. `totals` are the kinds of memory of which they change the totals.
    """

    def __init__(
        self,
        layer: str,
        probes: Prices,
        maps: Mapping[str, Map],
        window_price: Callable[[], float],
        totals: Collection[tuple[int, int]],
        lose: Callable[[Collection[int]], None],
        meet: Callable[[int], None],
        cpu: Callable[[int], float] = cpu_seconds,
    ) -> None:
        super().__init__(MEMORY, layer, probes, maps, window_price, cpu)
        self._totals, self._lose, self._meet = totals, lose, meet
        self._lost_in: dict[int, set[int]] = {}
        """Processes that are left out, by file; a file with a row has such functions detached."""
        self._kept: dict[int, set[int]] = {}

    def sampled_files(self) -> Mapping[int, SubjectFile]:
        """Return the files, without those of more processes than can have links of their own: all would lose."""
        files = self._probes.sampled_files(self.group)
        for key in self._lost_in.keys() - files.keys():
            del self._lost_in[key]
        return {
            key: SampledFile(
                it.name,
                it.symbols,
                it.pids,
                probe=partial(self._probe, key, it),
                keep=partial(self._keep, key, it),
                restore=partial(self._restore, key, it),
            )
            for key, it in files.items()
            if key in self._lost_in or len(it.pids) <= MOST
        }

    def forget(self, pids: Collection[int]) -> None:
        """Forget processes that have ended, or run another program."""
        for known in (*self._lost_in.values(), *self._kept.values()):
            known.difference_update(pids)

    def is_detached(self, library: object) -> bool:
        """Return whether calls in a library are seen only in processes with links of their own."""
        return id(library) in self._lost_in

    def has_links(self, pid: int) -> bool:
        """Return whether a process has links of its own."""
        return any(pid in kept for kept in [*self._kept.values()])

    def _probe(self, key: int, file: SubjectFile, on: bool) -> None:
        if not on:
            self._lost_in.setdefault(key, set())
        file.probe(on)
        if not on:
            self._lose_others(key, file)

    def _keep(self, key: int, file: SubjectFile, pids: Collection[int]) -> Collection[int]:
        before, kept = self._kept.get(key, set()), set(file.keep(pids))
        self._kept[key] = kept
        if key in self._lost_in:
            self._lost_in[key] -= kept
            for pid in kept - before:
                self._meet(pid)
            self._lose_others(key, file)
        return kept

    def _restore(self, key: int, file: SubjectFile) -> None:
        file.restore()
        self._lost_in.pop(key, None)

    def _lose_others(self, key: int, file: SubjectFile) -> None:
        lost = set(file.pids) - self._kept.get(key, set()) - self._lost_in[key]
        self._lost_in[key] |= lost
        self._lose(lost)

    def _drop(self, counts: Counts) -> None:
        super()._drop(counts)
        counts.memory = {kind: it for kind, it in counts.memory.items() if kind not in self._totals}
