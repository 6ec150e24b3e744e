"""Collectives, and the groups around them, for exporter.governor: what they cost a process, and what is not known of a
process of which they are left out.

In windows a call is counted with its bytes. How long it took, whether it failed, and which number it has are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from exporter.governor.estimates import Counts, ProcessTally
from exporter.governor.processes import cpu_seconds, cpu_times
from exporter.governor.subject import COLLECTIVES_FIFTH, Prices, SubjectFile
from exporter.nccl.activity import Activity, Calls
from exporter.nccl.functions import COLLECTIVES, FUNCTIONS
from exporter.nccl.left_out import LeftOut
from exporter.nccl.messages import FIELDS, add, rows_of
from exporter.nccl.samples import Kinds
from exporter.nccl.sight import Sight

if TYPE_CHECKING:
    from exporter.bpf.maps import Map
    from exporter.governor.governor import Governed

NO_WINDOWS: Mapping[int, int] = MappingProxyType({})


class Collectives:
    """A governor's Subject. Calls are estimated by CPU time.

    `watch` is given by the collector once the governor has the subject. `window_price` is that of a call in a window.
    """

    name, rank = "nccl", COLLECTIVES_FIFTH
    unit_bound, unit_flag, calls_only = inf, "", True

    def __init__(
        self,
        probes: Prices,
        maps: Mapping[str, Map],
        kinds: Kinds,
        window_price: Callable[[], float],
        sight: Sight,
        cpu: Callable[[int], float] = cpu_seconds,
    ) -> None:
        self._probes, self._maps, self._window_price, self._cpu, self._sight = probes, maps, window_price, cpu, sight
        self._files = sight.files = LeftOut(lambda: probes.sampled_files(COLLECTIVES), sight)
        self.watch: Governed | None = None
        numbers = {name: kind for kind, name in kinds.names.items()}
        self._apis = {api for api, it in enumerate(FUNCTIONS, 1) if it.group == COLLECTIVES}
        self._symbols = {numbers[FUNCTIONS[api - 1].kind]: FUNCTIONS[api - 1].name for api in sorted(self._apis)[::-1]}
        self._pairs = kinds.group_end, kinds.none
        """The kinds of which a call is one of ncclGroupStart and one of ncclGroupEnd: outermost groups, and others."""
        self._shown = self._symbols.keys() - {kinds.none}

    def sampled_files(self) -> Mapping[int, SubjectFile]:
        return self._files.sampled_files()

    def sampled_cost(self) -> float | None:
        """Return the seconds that probes took at these calls of all processes that run; None without prices."""
        if self._probes.price("ncclAllReduce") is None:
            return None
        calls, windows = self._maps["calls"].sums("kind", "calls"), self._maps["window_calls"].sums("kind")
        return sum(calls[kind] * self._price(kind) for kind in self._symbols) - self._saved(windows)

    def tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        rows, begun = rows_of(self._maps["calls"], pids), self.have_called(pids)
        windows: dict[int, dict[int, int]] = {pid: {} for pid in pids}
        for key, count in self._maps["window_calls"].items():
            if key.tgid in windows:
                windows[key.tgid][key.kind] = count
        times = cpu_times(pids, self._cpu).items()
        return {pid: self._tally(rows[pid], cpu, pid in begun, windows[pid]) for pid, cpu in times}

    def last(self, activity: Activity) -> Callable[[ProcessTally], ProcessTally]:
        """Return what makes the last tally of a process that has ended; its CPU time is not known any more."""
        return lambda before: self._tally(activity.calls, before.cpu, begun=True)

    def have_called(self, pids: Collection[int]) -> Collection[int]:
        """Return which of these processes may have called NCCL to communicate."""
        return self._sight.have_called(pids)

    def missed(self, pid: int) -> Counts | None:
        """Return the estimated calls of a process that were not seen, None where they are not known."""
        return self.watch.missed(pid) if self.watch and not self._sight.is_exempt(pid) else {}

    def finish(self, pid: int, activity: Activity) -> Counts | None:
        """Return the same of one that has ended, and forget it."""
        missed = self.watch.finish(pid, self.last(activity)) if self.watch else {}
        return {} if self._sight.is_exempt(pid) else missed

    def leaves_out(self, pid: int) -> bool:
        """Return whether calls of a process may be left out now."""
        return self.watch is not None and self.watch.leaves_out(pid) and not self._sight.is_exempt(pid)

    def is_whole(self, pid: int) -> bool:
        """Return whether each call of a process was counted or estimated."""
        return not self.watch or self._sight.is_exempt(pid) or self.watch.whole(pid)

    def add(self, activity: Activity, missed: Counts | None, absent: bool) -> None:
        """Add to the calls of a process what was estimated, as Estimates.missed returns it. For None they are unknown.

        `absent`: what the calls did is unknown, as they are left out at present.
        """
        if absent:
            activity.durations = {kind: it for kind, it in activity.durations.items() if kind not in self._shown}
            activity.errors = {key: it for key, it in activity.errors.items() if key[0] not in self._apis}
            activity.in_flight = None
        add(activity, self._shown, missed)

    def _tally(
        self, calls: Mapping[int, Calls], cpu: float, begun: bool, windows: Mapping[int, int] = NO_WINDOWS
    ) -> ProcessTally:
        mine = {kind: it for kind, it in calls.items() if kind in self._symbols}
        return ProcessTally(
            counts={
                (kind, name): getattr(it, name) for kind, it in mine.items() if kind in self._shown for name in FIELDS
            },
            reference=0.0,
            cost=sum(it.calls * self._price(kind) for kind, it in mine.items()),
            other=0.0,
            cpu=cpu,
            saved=self._saved(windows),
            begun=begun,
        )

    def _saved(self, windows: Mapping[int, int]) -> float:
        """Return the seconds that calls in windows, by kind, took less than others do."""
        cheaper = self._window_price()
        return sum(count * max(0.0, self._price(kind) - cheaper * self._traps(kind)) for kind, count in windows.items())

    def _traps(self, kind: int) -> int:
        """Return how many functions are called for each call that is counted."""
        return 2 if kind in self._pairs else 1

    def _price(self, kind: int) -> float:
        if kind in self._pairs:
            return sum(self._probes.price(it) or 0.0 for it in ("ncclGroupStart", "ncclGroupEnd"))
        return self._probes.price(self._symbols[kind]) or 0.0
