"""Memory in use of a process, divided: segments of a caching allocator into the blocks that it has given out of them.

The parts of a segment are its bytes, whatever the blocks are: they are read a moment later, and a process may report
any, so what lies outside of a segment, or in another block too, does not count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

from exporter.stack_profiles.model import Frame, Stack
from exporter.stacks.blocks import Block, GivenOut
from exporter.stacks.ledger import AllocationSite
from exporter.stacks.table import NO_STACK

CACHED = -1
"""In place of the index of a stack: what no block has of a segment."""
CACHED_STACK: Stack = (Frame("[cached by the allocator]"),)
_LIBRARY = "libc10_cuda.so"


class LiveAllocation(NamedTuple):
    """One allocation; `stack` is the index of its stack. `address` is 0 where it is not mapped, or in parts."""

    place: AllocationSite
    address: int
    bytes: int
    stack: int


class OwnedBytes(NamedTuple):
    """Bytes of one owner, an index of a stack or CACHED, and how many objects those are."""

    place: AllocationSite
    stack: int
    bytes: int
    objects: int


def is_of_allocator(stack: Stack) -> bool:
    """Return whether PyTorch's caching allocator made this allocation: nothing else in its library allocates."""
    return any(frame.module.rpartition("/")[2] == _LIBRARY for frame in stack)


def divide(
    held: Sequence[LiveAllocation],
    given_out: GivenOut,
    stack_of: Callable[[int], int],
    is_segment: Callable[[int], bool],
) -> Iterator[OwnedBytes]:
    """Yield the parts of what one process holds; their bytes are those of `held`.

    `stack_of` returns the index of the stack of a number, `is_segment` whether that of an allocation is an allocator's.
    """
    ordered = sorted(held, key=attrgetter("address"))
    used, sums = _pieces(ordered, given_out.blocks)
    for place, by_number in sums.items():
        for number, (size, objects) in by_number.items():
            yield OwnedBytes(place, stack_of(number), size, objects)
    unknown = Counter({device + 1: size for device, size in given_out.unknown.items()})
    for at, it in enumerate(ordered):
        rest = it.bytes - used[at]
        if not used[at] and not is_segment(it.stack):
            yield OwnedBytes(it.place, it.stack, rest, 1)
        elif rest:
            device = it.place.device or next(iter(unknown), 0)
            without = min(unknown[device], rest)
            unknown[device] -= without
            if without:
                yield OwnedBytes(it.place, NO_STACK, without, 0)
            if rest > without:
                yield OwnedBytes(it.place, CACHED, rest - without, 1)


_ByNumber = defaultdict[int, list[int]]
"""Bytes and number of blocks by the number of their stack."""


def _pieces(
    held: Sequence[LiveAllocation], blocks: Sequence[Block]
) -> tuple[list[int], dict[AllocationSite, _ByNumber]]:
    """Return what blocks have of each allocation, in bytes, and the sums of blocks by place.

    A block may lie in several allocations that are mapped side by side; it counts where it begins. `held` is in the
    order of addresses.
    """
    starts = [it.address for it in held]
    used, found = [0] * len(held), {it.place: _ByNumber(lambda: [0, 0]) for it in held}
    free = around = low = high = 0
    here = _ByNumber()
    for address, length, number in sorted(blocks, key=itemgetter(0)):
        start, end = max(address, free), address + length
        if low <= start == address and end <= high:  # most are in the allocation of the one before
            sums = here[number]
            sums[0] += length
            sums[1] += 1
            used[around] += length
            free = end
            continue
        begins = start == address
        at = max(bisect_right(starts, start) - 1, 0)
        while at < len(held) and starts[at] < end:
            first = max(start, starts[at])
            size = min(end, starts[at] + held[at].bytes) - first
            if starts[at] and size > 0:
                around, low, high = at, starts[at], min([starts[at] + held[at].bytes, *starts[at + 1 : at + 2]])
                here = found[held[at].place]
                here[number][0] += size
                here[number][1] += begins
                used[at] += size
                begins, start = False, first + size
            at += 1
        free = max(free, end)
    return used, found
