"""Profiles of GPU memory and launches: what the ledger and the table of live allocations have, as samples."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from typing import NamedTuple, Protocol

from exporter.bpf.libbpf import Map
from exporter.cuda.names import Names
from exporter.model import Labels
from exporter.stack_profiles import model
from exporter.stack_profiles.model import ALLOC, INUSE, LAUNCHES, Stack, StackProfile, StackSample
from exporter.stacks.blocks import GivenOut
from exporter.stacks.capture import UNWIND_SECONDS, Capture
from exporter.stacks.ledger import AllocationSite
from exporter.stacks.segments import CACHED, CACHED_STACK, LiveAllocation, OwnedBytes, divide, is_of_allocator
from exporter.stacks.table import NO_STACK

_KEPT_LABELS = 4096
_MOST = (1 << 63) - 1
_OF_KEY = ("tgid", "layer", "thing", "address")
_OF_ALLOCATION = ("bytes", "owner", "memory", "device", "stack")
"""Fields of struct live_key and struct live of bpf/cuda/cuda.h."""
LabelsOf = Callable[[int, int], Labels]
"""Returns the labels of a process, with those of its GPU of a number (ordinal + 1, 0: the only one)."""


class Numbers(Protocol):
    """The part of exporter.bpf.btf.Btf that is used here."""

    def enum(self, name: str) -> Mapping[str, int]: ...


class _Row(NamedTuple):
    """One allocation; `address` is where its memory is mapped, 0 if that is not known, `number` that of its stack."""

    place: AllocationSite
    address: int
    bytes: int
    number: int


class CudaProfiles:
    """The ProfileSource of the CUDA collector. `live` is its table of live allocations, `layer` the API layer of which
    rows count. `read` hands what the kernel has sent of allocations to the capture's ledger. `between_windows` returns
    the estimated launches of a process that were not probed, None where they are not known.
    """

    def __init__(
        self,
        capture: Capture,
        live: Map,
        cuda_types: Numbers,
        layer: str,
        labels_of: LabelsOf,
        problem: Callable[[], str],
        read: Callable[[], None],
        between_windows: Callable[[int], int | None] = lambda _: 0,
    ) -> None:
        self._between_windows = between_windows
        self.capture, self._live, self._labels_of, self._problem = capture, live, labels_of, problem
        self._read = read
        self._names = Names.of(cuda_types)
        self._layer = cuda_types.enum("layer")[f"layer_{layer}"]
        self._mapping, self._handle = (cuda_types.enum("thing")[it] for it in ("thing_mapping", "thing_handle"))
        self._since_ns, self._started = time.time_ns(), time.monotonic_ns()
        self._labels: dict[tuple[int, int, int], Labels] = {}
        capture.live_numbers = self.live_numbers

    def inuse(self) -> StackProfile:
        """Return the memory that is allocated now; its sum is that of the table of live allocations."""
        read_ns, settled = time.time_ns(), self.capture.ledger.settled
        rows = self._rows()  # before stacks are waited for: what is allocated changes
        given_out = self.capture.blocks.read() if self.capture.blocks else {}
        numbers = _numbers(rows, given_out)
        missing, ledger = self.capture.await_stacks(numbers), self.capture.ledger
        sums: defaultdict[tuple[AllocationSite, int], list[int]] = defaultdict(lambda: [0, 0])
        is_segment = cache(lambda at: is_of_allocator(ledger.stack(at)))
        for part in self._parts(rows, given_out, is_segment):
            found = sums[part.place, part.stack]
            found[0] += part.bytes
            found[1] += part.objects
        ledger.keep(numbers, settled)
        found_rows = ((place, at, tuple(it)) for (place, at), it in sums.items())
        made = self._profile(INUSE, ("space", "bytes"), found_rows, 0)
        comments = [*made.comments, *_late(missing)]
        if self.capture.blocks:
            own = {it.place.pid for it in rows if is_segment(ledger.stack_of(it.number))}
            comments += _unseen(rows, given_out, self.capture.probed_late, own)
        return replace(made, time_ns=read_ns, comments=tuple(comments))

    def alloc(self) -> StackProfile:
        """Return everything that was allocated since the start of the collector."""
        self._read()
        late = () if self.capture.flush(UNWIND_SECONDS) else _late(self.capture.ledger.waiting)
        rows = ((place, at, tuple(sums)) for place, at, sums in self.capture.ledger.allocations())
        made = self._profile(ALLOC, ("space", "bytes"), rows, time.monotonic_ns() - self._started)
        return replace(made, comments=(*made.comments, *late))

    def launches(self) -> StackProfile:
        """Return launches of kernels and graphs, as many as were sampled times the period."""
        every = max(self.capture.every, 1)
        late = () if self.capture.flush(UNWIND_SECONDS) else _late(self.capture.ledger.waiting_launches // every)
        without = [(pid, self.capture.ledger.program(pid), NO_STACK, n) for pid, n in self.capture.launches_without()]
        unseen = {pid: self._between_windows(pid) for pid in self.capture.processes}
        without += [(pid, self.capture.ledger.program(pid), NO_STACK, n) for pid, n in unseen.items() if n]
        found = self.capture.ledger.launches() + without
        rows = ((AllocationSite(pid, since, -1, 0), at, (count,)) for pid, since, at, count in found)
        made = self._profile(LAUNCHES, LAUNCHES[0], rows, time.monotonic_ns() - self._started)
        return replace(made, period=every, comments=(*made.comments, *late, *_between(unseen)))

    def live_numbers(self) -> set[int]:
        """Return the numbers of the stacks of all memory that is allocated now."""
        return _numbers(self._rows(), self.capture.blocks.read() if self.capture.blocks else {})

    def problem(self) -> str:
        return self._problem()

    def _rows(self) -> list[_Row]:
        """Return what is allocated now."""
        live = list(self._live.rows(_OF_KEY, _OF_ALLOCATION))
        mapped = {(pid, owner): at for pid, _, thing, at, _, owner, *_ in live if thing == self._mapping}
        return [
            _Row(
                AllocationSite(pid, -1, memory, device),
                (owner or mapped.get((pid, address), 0)) if thing == self._handle else address,
                size,
                number,
            )
            for pid, layer, thing, address, size, owner, memory, device, number in live
            if layer == self._layer and thing != self._mapping
        ]

    def _parts(
        self, rows: Sequence[_Row], given_out: Mapping[int, GivenOut], is_segment: Callable[[int], bool]
    ) -> Iterator[OwnedBytes]:
        """Yield the owners of these allocations: of a process with a caching allocator in parts."""
        ledger = self.capture.ledger
        held: defaultdict[int, list[LiveAllocation]] = defaultdict(list)
        for it in rows:
            stack = ledger.stack_of(it.number)
            if it.place.pid in given_out:
                held[it.place.pid].append(LiveAllocation(it.place, it.address, it.bytes, stack))
            else:
                yield OwnedBytes(it.place, stack, it.bytes, 1)
        for pid, of in held.items():
            yield from divide(of, given_out[pid], ledger.stack_of, is_segment)

    def _stack(self, at: int) -> Stack:
        if at == CACHED:
            return CACHED_STACK
        return self.capture.ledger.stack(at) if at != NO_STACK else ()

    def _profile(
        self,
        types: tuple[model.ValueType, ...],
        period: model.ValueType,
        rows: Iterator[tuple[AllocationSite, int, tuple[int, ...]]],
        duration: int,
    ) -> StackProfile:
        samples = tuple(
            StackSample(
                self._stack(at),
                self._sample_labels(place),
                tuple(min(value, _MOST) for value in values),
            )
            for place, at, values in rows
        )
        since = self._since_ns if duration else time.time_ns()
        return StackProfile(types, samples, period, 1, since, duration, tuple(self._comments()))

    def _sample_labels(self, place: AllocationSite) -> Labels:
        """Return the labels of a sample; of a process that has ended those it had when they were first needed."""
        key = place.pid, place.since, place.device
        labels = self._labels.get(key) if place.since >= 0 else None
        if labels is None:
            found = self._labels_of(place.pid, place.device) if place.pid else {}
            labels = {name: found[name] for name in model.LABELS if found.get(name)}
            if place.since >= 0:
                if len(self._labels) >= _KEPT_LABELS:
                    self._labels.clear()
                self._labels[key] = labels
        kind = self._names.memory.get(place.memory, "") if place.memory >= 0 else ""
        return {**labels, "kind": kind} if kind else labels

    def _comments(self) -> Iterator[str]:
        yield from self.capture.problems()
        for reason, count in self.capture.dropped().items():
            if count:
                yield f"{count} stacks are missing: {reason}"


def _numbers(rows: Sequence[_Row], given_out: Mapping[int, GivenOut]) -> set[int]:
    """Return the numbers of stacks of allocations and of blocks."""
    return ({it.number for it in rows} | {block.stack for it in given_out.values() for block in it.blocks}) - {0}


def _late(stacks: int) -> Iterator[str]:
    if stacks:
        yield f"{stacks} stacks are missing: not unwound within {UNWIND_SECONDS:.0f} s, so later profiles have them"


def _between(unseen: Mapping[int, int | None]) -> Iterator[str]:
    for pid, launches in unseen.items():
        if launches is None:
            yield f"process {pid}: launches between windows (--overhead.max-ratio) are not known, and not included"
        elif launches:
            yield f"process {pid}: {launches} launches between windows (--overhead.max-ratio), an estimate"


def _unseen(
    rows: Sequence[_Row], given_out: Mapping[int, GivenOut], late: Set[int], with_segments: Set[int]
) -> Iterator[str]:
    """Yield what is missing of the caching allocators of processes; `late` are those older than their probes.

    What an allocator counts is that of its last block, since when it may have returned segments.
    """
    seen: Counter[int] = Counter()
    for it in rows:
        seen[it.place.pid] += it.bytes
    for pid in given_out.keys() & late:
        if (unseen := sum(given_out[pid].reserved.values()) - seen[pid]) > 0:
            yield (
                f"process {pid} was there before its probes: at least {unseen} bytes of the segments that its caching "
                "allocator had at its last block are not included"
            )
    for pid in with_segments - given_out.keys():
        yield f"process {pid}: no block of its caching allocator was seen, so its segments have their own stacks"
