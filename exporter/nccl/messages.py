"""Send and Recv for exporter.governor: what they cost a process, and their counts while they are probed in windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import TYPE_CHECKING

from exporter.governor.estimates import Counts, ProcessTally
from exporter.governor.processes import cpu_seconds, cpu_times
from exporter.governor.subject import MESSAGES_SECOND, Prices, SubjectFile
from exporter.nccl.activity import Activity, Calls
from exporter.nccl.functions import FUNCTIONS
from exporter.nccl.samples import Kinds

if TYPE_CHECKING:
    from exporter.bpf.maps import Map

_FIELDS = ("calls", "bytes", "bus_bytes", "unsized", "anonymous")


class Messages:
    """A governor's Subject. The reference are groups: each has a number of messages that stays much the same."""

    name, rank = "nccl", MESSAGES_SECOND
    unit_flag, calls_only = "--collector.nccl.group-overhead-seconds", False

    def __init__(
        self,
        probes: Prices,
        calls: Map,
        hits: Callable[[], Mapping[str, int]],
        kinds: Kinds,
        group_bound: float = inf,
        cpu: Callable[[int], float] = cpu_seconds,
    ) -> None:
        self._probes, self._calls, self._hits, self._cpu = probes, calls, hits, cpu
        self.unit_bound = group_bound
        self._messages = [kind for kind, name in kinds.names.items() if name in ("Send", "Recv")]
        self._group = kinds.group_end
        numbers = {name: kind for kind, name in kinds.names.items()}
        self._symbols: dict[int, str] = {}
        for it in FUNCTIONS:
            self._symbols.setdefault(numbers[it.kind], it.name)

    def sampled_files(self) -> Mapping[int, SubjectFile]:
        return self._probes.sampled_files("messages")

    def sampled_cost(self) -> float | None:
        """Return the seconds that the probes of all messages took; None while prices are not known."""
        hits = self._hits()
        prices = {it: self._probes.price(it) for it in map(self._symbols.__getitem__, self._messages)}
        return None if None in prices.values() else sum(hits.get(it, 0) * (price or 0) for it, price in prices.items())

    def tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        rows: dict[int, dict[int, Calls]] = {pid: {} for pid in pids}
        for key, value in self._calls.items():
            if key.tgid in rows:
                rows[key.tgid][key.kind] = Calls(*(getattr(value, name) for name in Calls._fields))
        return {pid: self._tally(rows[pid], cpu) for pid, cpu in cpu_times(pids, self._cpu).items()}

    def last(self, activity: Activity) -> Callable[[ProcessTally], ProcessTally]:
        """Return what makes the last tally of a process that has ended; its CPU time is not known any more."""
        return lambda before: self._tally(activity.calls, before.cpu)

    def add(self, activity: Activity, missed: Counts | None) -> None:
        """Add to the counts of a process what was estimated, as Estimates.missed returns it.

        For None they are unknown; the time of the newest call that was seen stays.
        """
        for kind in self._messages if missed != {} else ():
            if missed is None:
                if kind in activity.calls:
                    activity.calls[kind] = Calls(0, 0, 0, 0, 0, activity.calls[kind].last_ns)
                continue
            some = {name: missed.get((kind, name), 0) for name in _FIELDS}
            if any(some.values()):
                seen = activity.calls.get(kind, Calls(0, 0, 0, 0, 0, 0))
                activity.calls[kind] = seen._replace(**{it: getattr(seen, it) + more for it, more in some.items()})

    def _tally(self, calls: Mapping[int, Calls], cpu: float) -> ProcessTally:
        messages = {kind: calls[kind] for kind in self._messages if kind in calls}
        groups = calls[self._group].calls if self._group in calls else 0
        cost = sum(it.calls * self._price(kind) for kind, it in messages.items())
        other = sum(it.calls * self._price(kind) for kind, it in calls.items() if kind not in self._messages)
        return ProcessTally(
            counts={(kind, name): getattr(it, name) for kind, it in messages.items() for name in _FIELDS},
            reference=groups,
            cost=cost,
            other=other + groups * (self._probes.price("ncclGroupStart") or 0),
            cpu=cpu,
        )

    def _price(self, kind: int) -> float:
        return self._probes.price(self._symbols[kind]) or 0
