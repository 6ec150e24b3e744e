"""NCCL activity of each process: the maps of bpf/nccl/nccl.bpf.c as plain numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from exporter.bpf.process_links import LEAVING, LINKED_MARK, linked_key
from exporter.nccl.functions import COLLECTIVES, GROUPS
from exporter.nccl.records import CommunicatorKey, CommunicatorRow, CountedRows, Flight, PendingRow

if TYPE_CHECKING:
    from exporter.bpf.maps import Map


class Calls(NamedTuple):
    """Calls of one kind, in one process; fields are those of struct calls in bpf/nccl/nccl.h."""

    calls: int
    """0 where there were some, and their number is not known."""
    bytes: int
    bus_bytes: int
    unsized: int
    anonymous: int
    last_ns: int
    """Of the newest call, on the kernel's monotonic clock."""


class Errors(NamedTuple):
    calls: int
    last_ns: int


class Durations(NamedTuple):
    sum_ns: int
    slots: tuple[int, ...]


class Communicator(NamedTuple):
    """A communicator as one process has it; `device` as that process numbers its GPUs, -1 until it is known."""

    hash: int
    rank: int
    nranks: int
    device: int


class Membership(NamedTuple):
    """One rank of one communicator."""

    hash: int
    nranks: int
    rank: int
    domain: int = 0
    """Ranks are compared with those of the same one: a user's in one job or pod (bpf/nccl/meetings.h)."""


@dataclass(slots=True)
class Activity:
    """One process. `kind` is an enum of bpf/nccl/nccl.h, `api` a function's number."""

    calls: dict[int, Calls] = field(default_factory=dict)
    errors: dict[tuple[int, int], Errors] = field(default_factory=dict)
    """By api and code."""
    durations: dict[int, Durations] = field(default_factory=dict)
    communicators: set[Communicator] = field(default_factory=set)
    in_flight: int | None = 0
    """Calls that have not returned; None where that is not known."""
    lags: dict[Membership, Durations] = field(default_factory=dict)
    """Delay of the process's calls after those of the first rank of this node, in nanoseconds, by membership."""
    numbers: dict[Membership, int] = field(default_factory=dict)
    """Calls so far of the kinds that NCCL counts, without open groups and communicators of an unknown number."""

    def ended(self) -> None:
        """Clear the state of an ended process: communicators, calls in flight and sequence numbers. Counts stay."""
        self.communicators, self.in_flight, self.numbers = set(), 0, {}

    def absorb(self, late: Activity) -> None:
        """Adds what was counted after this was read."""
        for kind, more in late.calls.items():
            before = self.calls.get(kind, Calls(0, 0, 0, 0, 0, 0))
            both = Calls(*(a + b for a, b in zip(before, more, strict=True)))
            self.calls[kind] = both._replace(last_ns=max(before.last_ns, more.last_ns))
        for failure, errors in late.errors.items():
            known = self.errors.get(failure, Errors(0, 0))
            self.errors[failure] = Errors(known.calls + errors.calls, max(known.last_ns, errors.last_ns))
        for kind, took in late.durations.items():
            self.durations[kind] = _both(self.durations.get(kind), took)
        for member, lag in late.lags.items():
            self.lags[member] = _both(self.lags.get(member), lag)


def _both(a: Durations | None, b: Durations) -> Durations:
    if a is None:
        return b
    return Durations(a.sum_ns + b.sum_ns, tuple(x + y for x, y in zip(a.slots, b.slots, strict=True)))


COUNTED_BY_NCCL = 5
"""The first kinds of bpf/nccl/nccl.h."""


COUNTED = tuple(CountedRows.__annotations__)
"""The maps of counts; each has `tgid` in its key. The kernel's `forget` clears the others."""


POLLED_NS = 60_000_000_000
"""Time for which a communicator counts as pending after ncclCommGetAsyncError last returned ncclInProgress for it."""


def read(maps: Mapping[str, Map], uncounted: int, now_ns: int) -> dict[int, Activity]:
    """Return everything that the maps hold at `now_ns` of the monotonic clock, by pid.

    Calls in flight include pending communicators, but not calls of the kind `uncounted`.
    """
    seen = _counts(cast(CountedRows, {name: maps[name].items() for name in COUNTED}), uncounted)
    gaps = dict(maps["gaps"].items())
    communicators: Iterable[tuple[CommunicatorKey, CommunicatorRow]] = maps["communicators"].items()
    for key, value in communicators:
        who = value.who
        if who.hash:
            seen[key.tgid].communicators.add(Communicator(who.hash, who.rank, who.nranks, who.device))
            missing = value.gap & 1 or value.gap != gaps.get(key.tgid, value.gap)
            if value.origin and not value.unsure and not value.reused and not missing:
                member = Membership(who.hash, who.nranks, who.rank, value.domain)
                called, waiting = (sum(it[:COUNTED_BY_NCCL]) for it in (value.calls, value.waiting))
                seen[key.tgid].numbers[member] = called - waiting
    standing = [pid for pid, call in in_flight(maps) if call.cookie.kind != uncounted]
    for pid, count in Counter([*standing, *(pid for pid, _ in pending(maps, now_ns))]).items():
        seen[pid].in_flight = count
    return dict(seen)


def in_flight(maps: Mapping[str, Map]) -> Iterator[tuple[int, Flight]]:
    """Yield pid and struct flight of bpf/nccl/nccl.h of the calls that have not returned, of any kind."""
    for key, value in maps["callers"].items():
        if value.call.sp and _will_return(maps, key.tgid, value.call):
            yield key.tgid, value.call


def pending(maps: Mapping[str, Map], now_ns: int) -> Iterator[tuple[int, PendingRow]]:
    """Yield the pid and the struct pending of each communicator that a process polls and that is not ready.

    A program that begins a communicator and then loads its data does not wait yet.
    """
    for key, value in maps["pending"].items():
        if value.polled_ns and now_ns - value.polled_ns < POLLED_NS:
            yield key.tgid, value


def _will_return(maps: Mapping[str, Map], pid: int, call: Flight) -> bool:
    """Return whether the return of a call is seen: return probes may have been detached since it began."""
    if call.returning & LINKED_MARK:
        row = maps["linked"].get(linked_key(pid, GROUPS.index(COLLECTIVES))) or 0
        return bool(row & ~LEAVING == call.returning)
    return bool(maps["returning"].get(call.cookie.library) == call.returning)


def take(maps: Mapping[str, Map], pids: Collection[int], uncounted: int) -> dict[int, Activity]:
    """Return what was counted of these processes, which the maps do not hold any more then."""
    return dict(_counts(cast(CountedRows, {name: maps[name].take(pids) for name in COUNTED}), uncounted))


def _counts(rows: CountedRows, uncounted: int) -> defaultdict[int, Activity]:
    seen: defaultdict[int, Activity] = defaultdict(Activity)
    for key, calls in rows["calls"]:
        if key.kind == uncounted:  # inner groups, which only matter for the cost
            continue
        seen[key.tgid].calls[key.kind] = Calls(*(getattr(calls, name) for name in Calls._fields))
    for failure, errors in rows["errors"]:
        seen[failure.tgid].errors[failure.api, failure.code] = Errors(errors.calls, errors.last_ns)
    for key, took in rows["durations"]:
        seen[key.tgid].durations[key.kind] = Durations(took.sum_ns, tuple(took.slots))
    for rank, lag in rows["lags"]:
        member = Membership(rank.hash, rank.nranks, rank.rank, lag.domain)
        seen[rank.tgid].lags[member] = Durations(lag.sum_ns, tuple(lag.slots))
    return seen
