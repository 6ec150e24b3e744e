"""CUDA activity of each process: the maps of bpf/cuda/cuda.bpf.c as plain numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from exporter.cuda.records import CountedRows, DevicesRow
from exporter.model import Labels

if TYPE_CHECKING:
    from exporter.bpf.maps import Map


class Launches(NamedTuple):
    calls: int
    """0 where there were some, and their number is not known."""
    last_ns: int
    """Of the newest call, on the kernel's monotonic clock."""


class Errors(NamedTuple):
    calls: int
    last_ns: int


class Waits(NamedTuple):
    sum_ns: int
    slots: tuple[int, ...]


class MemoryTotals(NamedTuple):
    """Bytes, but for the last."""

    allocated: int
    freed: int
    implicit: int
    """Freed by something else than a call that frees: its context was destroyed, its process ended."""
    untracked: int
    """Allocated without a row in the table of live allocations: their end is not seen before the process's."""
    unmatched_frees: int
    """Calls that freed what was not seen allocated."""
    doubtful: int = 0
    """Not freed by a call, but perhaps with a context: theirs is not known, and one was destroyed."""

    @property
    def usage(self) -> int | None:
        """Bytes in use; None where it is not known, since some allocations are untracked or doubtful."""
        return None if self.untracked or self.doubtful else max(0, self.allocated - self.freed - self.implicit)

    def ended(self) -> MemoryTotals:
        """Return the totals after its end: the system took back what was tracked; who freed the rest is not known."""
        implicit = max(self.implicit, self.allocated - self.freed - self.untracked)
        return self._replace(implicit=implicit, doubtful=0)


@dataclass(slots=True)
class Counts:
    """Counts of a process on a device.

    `api` is a function's number; `layer`, `memory` and so on are enums of bpf/cuda/functions.h.
    """

    launches: dict[int, Launches] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    errors: dict[tuple[int, int], Errors] = field(default_factory=dict)
    """By api and code."""
    waits: dict[int, Waits] = field(default_factory=dict)
    memory: dict[tuple[int, int], MemoryTotals] = field(default_factory=dict)
    """By layer and memory."""
    copies: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes by direction and host."""

    def ended(self) -> None:
        self.memory = {key: memory.ended() for key, memory in self.memory.items()}

    def absorb(self, late: Counts) -> None:
        """Adds what was counted after this was read."""
        for api, more in late.launches.items():
            before = self.launches.get(api, Launches(0, 0))
            self.launches[api] = Launches(before.calls + more.calls, max(before.last_ns, more.last_ns))
        for api, calls in late.calls.items():
            self.calls[api] = self.calls.get(api, 0) + calls
        for failure, errors in late.errors.items():
            known = self.errors.get(failure, Errors(0, 0))
            self.errors[failure] = Errors(known.calls + errors.calls, max(known.last_ns, errors.last_ns))
        for api, waits in late.waits.items():
            old = self.waits.get(api, Waits(0, (0,) * len(waits.slots)))
            slots = tuple(a + b for a, b in zip(old.slots, waits.slots, strict=True))
            self.waits[api] = Waits(old.sum_ns + waits.sum_ns, slots)
        for kind, memory in late.memory.items():
            held = self.memory.get(kind, MemoryTotals(0, 0, 0, 0, 0))
            self.memory[kind] = MemoryTotals(*(a + b for a, b in zip(held, memory, strict=True)))
        for way, copied in late.copies.items():
            self.copies[way] = self.copies.get(way, 0) + copied


@dataclass(slots=True)
class Activity:
    """One process, by device as the keys of bpf/cuda/cuda.h have it: 0 while it had used one at most, else ordinal + 1.

    `used` are the ordinals of the devices on which it was seen to have a context, `first` the first of them, `since_ns`
    the time of the newest one's first context; `gpus` has the gpu and gpu_uuid of its devices, those that are known.
    """

    devices: dict[int, Counts] = field(default_factory=lambda: defaultdict(Counts))
    used: frozenset[int] = frozenset()
    first: int | None = None
    since_ns: int = 0
    gpus: Mapping[int, Labels] = field(default_factory=dict)

    def ended(self) -> None:
        for counts in self.devices.values():
            counts.ended()

    def absorb(self, late: Activity) -> None:
        """Adds what was counted after this was read."""
        for device, counts in late.devices.items():
            self.devices.setdefault(device, Counts()).absorb(counts)

    def whole(self) -> Counts:
        """Return the counts of all its devices together."""
        return together(self.devices.values())


def together(parts: Iterable[Counts]) -> Counts:
    """The sum, without a change to any."""
    whole = Counts()
    for part in parts:
        whole.absorb(part)
    return whole


COUNTED = tuple(CountedRows.__annotations__)
"""The maps of counts; each has `tgid` in its key."""


def read(maps: Mapping[str, Map]) -> dict[int, Activity]:
    """Everything the maps hold now, by pid."""
    seen = _by_process(cast(CountedRows, {name: maps[name].items() for name in COUNTED}))
    for tgid, value in maps["used_devices"].items():
        if tgid in seen:
            _note_used(seen[tgid], value)
    return seen


def take(maps: Mapping[str, Map], pids: Collection[int]) -> dict[int, Activity]:
    """Remove and return the counts of these processes; their rows of `used_devices` stay."""
    taken = _by_process(cast(CountedRows, {name: maps[name].take(pids) for name in COUNTED}))
    for tgid, activity in taken.items():
        if value := maps["used_devices"].get(tgid):
            _note_used(activity, value)
    return taken


def _note_used(activity: Activity, devices: DevicesRow) -> None:
    if devices.used:
        used = devices.used
        activity.used = frozenset(number for number in range(used.bit_length()) if used >> number & 1)
        activity.first, activity.since_ns = devices.first, devices.since_ns


def _by_process(rows: CountedRows) -> dict[int, Activity]:
    seen: dict[int, Activity] = defaultdict(Activity)
    for call, launched in rows["launches"]:
        seen[call.tgid].devices[call.device].launches[call.api] = Launches(launched.calls, launched.last_ns)
    for call, calls in rows["calls"]:
        seen[call.tgid].devices[call.device].calls[call.api] = calls
    for failure, errors in rows["errors"]:
        counted = Errors(errors.calls, errors.last_ns)
        seen[failure.tgid].devices[failure.device].errors[failure.api, failure.code] = counted
    for call, waited in rows["waits"]:
        seen[call.tgid].devices[call.device].waits[call.api] = Waits(waited.sum_ns, tuple(waited.slots))
    for kind, total in rows["totals"]:
        memory = MemoryTotals(
            total.allocated, total.freed, total.implicit, total.untracked, total.unmatched_frees, total.doubtful
        )
        seen[kind.tgid].devices[kind.device].memory[kind.layer, kind.memory] = memory
    for copy, copied in rows["copies"]:
        seen[copy.tgid].devices[copy.device].copies[copy.direction, copy.host] = copied
    return dict(seen)


GpusOf = Callable[[int, Activity], Mapping[int, Labels]]


class Counted:
    """Reads and takes for an exporter.ledger.Ledger, under its lock.

    `forget` removes what the kernel keeps of processes besides their counts, `gpus_of` names the GPUs of the devices of
    one.
    """

    def __init__(self, maps: Mapping[str, Map], forget: Callable[[Collection[int]], object], gpus_of: GpusOf) -> None:
        self._maps, self._forget, self._gpus_of = maps, forget, gpus_of
        self._hits: Counter[int] = Counter()
        self._cleared: Counter[int] = Counter()

    def read(self) -> dict[int, Activity]:
        seen = read(self._maps)
        self._hits = self._cleared + _hits(seen.values())
        self._name_gpus(seen)
        return seen

    def take(self, pids: Collection[int]) -> dict[int, Activity]:
        taken = take(self._maps, pids)
        self._cleared += _hits(taken.values())
        self._name_gpus(taken)
        self._forget(pids)
        return taken

    def _name_gpus(self, activities: Mapping[int, Activity]) -> None:
        for pid, it in activities.items():
            it.gpus = self._gpus_of(pid, it)

    def hits(self) -> Mapping[int, int]:
        """Calls by function number as last read, those of ended processes included; they never fall."""
        return self._hits


def _hits(activities: Iterable[Activity]) -> Counter[int]:
    hits: Counter[int] = Counter()
    for it in activities:
        for counts in it.devices.values():
            for api, calls in counts.calls.items():
                hits[api] += calls
            for api, launches in counts.launches.items():
                hits[api] += launches.calls
    return hits
