"""Send and Recv for exporter.governor: what they cost a process, and their counts while they are probed in windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import TYPE_CHECKING, Protocol

from exporter.governor.estimates import Counts, ProcessTally
from exporter.governor.processes import cpu_seconds, cpu_times
from exporter.governor.subject import COLLECTIVES_FIFTH, MESSAGES_SECOND, Prices, SubjectFile
from exporter.nccl.activity import Activity, Calls
from exporter.nccl.functions import FUNCTIONS, MESSAGES
from exporter.nccl.samples import Kinds

if TYPE_CHECKING:
    from exporter.bpf.maps import Map

FIELDS = ("calls", "bytes", "bus_bytes", "unsized", "anonymous")


def rows_of(calls: Map, pids: Collection[int]) -> dict[int, dict[int, Calls]]:
    """Return the rows of these processes in the map `calls`, by kind."""
    rows: dict[int, dict[int, Calls]] = {pid: {} for pid in pids}
    for key, value in calls.items():
        if key.tgid in rows:
            rows[key.tgid][key.kind] = Calls(*(getattr(value, name) for name in Calls._fields))
    return rows


def add(activity: Activity, kinds: Collection[int], missed: Counts | None) -> None:
    """Add to the counts of a process what was estimated of calls of these kinds, as Estimates.missed returns it.

    For None they are unknown; the time of the newest call that was seen stays.
    """
    for kind in kinds if missed != {} else ():
        if missed is None:
            if kind in activity.calls:
                activity.calls[kind] = Calls(0, 0, 0, 0, 0, activity.calls[kind].last_ns)
            continue
        some = {name: missed.get((kind, name), 0) for name in FIELDS}
        if any(some.values()):
            seen = activity.calls.get(kind, Calls(0, 0, 0, 0, 0, 0))
            activity.calls[kind] = seen._replace(**{it: getattr(seen, it) + more for it, more in some.items()})


class Others(Protocol):
    """The part of exporter.nccl.collectives.Collectives that is used here."""

    def leaves_out(self, pid: int) -> bool:
        """Return whether calls of a process may be left out now."""

    def have_called(self, pids: Collection[int]) -> Collection[int]:
        """Return which of these processes may have called NCCL to communicate."""


class Messages:
    """A governor's Subject. The reference are groups: each has a number of messages that stays much the same.

    `others` are the collectives: while they are left out of a process, its groups are no reference.
    """

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
        others: Others | None = None,
    ) -> None:
        self._others = others
        self._probes, self._calls, self._hits, self._cpu = probes, calls, hits, cpu
        self.unit_bound = group_bound
        self._messages = [kind for kind, name in kinds.names.items() if name in ("Send", "Recv")]
        self._group = kinds.group_end
        numbers = {name: kind for kind, name in kinds.names.items()}
        self._symbols: dict[int, str] = {}
        for it in FUNCTIONS:
            self._symbols.setdefault(numbers[it.kind], it.name)

    def sampled_files(self) -> Mapping[int, SubjectFile]:
        return self._probes.sampled_files(MESSAGES)

    def sampled_cost(self) -> float | None:
        """Return the seconds that the probes of all messages took; None while prices are not known."""
        hits = self._hits()
        prices = {it: self._probes.price(it) for it in map(self._symbols.__getitem__, self._messages)}
        return None if None in prices.values() else sum(hits.get(it, 0) * (price or 0) for it, price in prices.items())

    def tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        rows, begun = rows_of(self._calls, pids), self._others.have_called(pids) if self._others else pids
        times = cpu_times(pids, self._cpu).items()
        return {pid: self._tally(pid, rows[pid], cpu, pid in begun) for pid, cpu in times}

    def last(self, pid: int, activity: Activity) -> Callable[[ProcessTally], ProcessTally]:
        """Return what makes the last tally of a process that has ended; its CPU time is not known any more."""
        return lambda before: self._tally(pid, activity.calls, before.cpu)

    def add(self, activity: Activity, missed: Counts | None) -> None:
        """Add to the counts of a process what was estimated of its messages."""
        add(activity, self._messages, missed)

    def _tally(self, pid: int, calls: Mapping[int, Calls], cpu: float, begun: bool = True) -> ProcessTally:
        messages = {kind: calls[kind] for kind in self._messages if kind in calls}
        absent = self._others is not None and self._others.leaves_out(pid)
        return ProcessTally(
            counts={(kind, name): getattr(it, name) for kind, it in messages.items() for name in FIELDS},
            reference=calls[self._group].calls if self._group in calls and not absent else 0,
            cost=sum(it.calls * self._price(kind) for kind, it in messages.items()),
            other=0.0,
            cpu=cpu,
            measure=(COLLECTIVES_FIFTH,) if absent else (),
            begun=begun,
        )

    def _price(self, kind: int) -> float:
        return self._probes.price(self._symbols[kind]) or 0
