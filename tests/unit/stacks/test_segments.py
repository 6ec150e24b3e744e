"""Segments of a caching allocator, divided into its blocks."""

from __future__ import annotations

import random
from collections import Counter

from exporter.stack_profiles.model import Frame
from exporter.stacks.blocks import Block, GivenOut
from exporter.stacks.ledger import AllocationSite
from exporter.stacks.profiles import _Row, _unseen
from exporter.stacks.segments import CACHED, LiveAllocation, OwnedBytes, divide, is_of_allocator
from exporter.stacks.table import NO_STACK

GPU, OTHER = AllocationSite(7, -1, 0, 1), AllocationSite(7, -1, 0, 2)
GROWS, OWN = 50, 51
"""Stacks of allocations: of the allocator, and of something else."""


def parts(held: list[LiveAllocation], given_out: GivenOut) -> list[OwnedBytes]:
    return list(divide(held, given_out, lambda number: number * 10, lambda stack: stack == GROWS))


def sums(found: list[OwnedBytes]) -> dict[tuple[AllocationSite, int], tuple[int, int]]:
    added: Counter[tuple[AllocationSite, int]] = Counter()
    objects: Counter[tuple[AllocationSite, int]] = Counter()
    for it in found:
        added[it.place, it.stack] += it.bytes
        objects[it.place, it.stack] += it.objects
    return {key: (added[key], objects[key]) for key in added}


def test_blocks_have_their_stacks_and_the_rest_is_cached() -> None:
    held = [
        LiveAllocation(GPU, 1000, 500, GROWS),
        LiveAllocation(GPU, 3000, 500, GROWS),
        LiveAllocation(GPU, 5000, 100, OWN),
    ]
    found = parts(held, GivenOut([Block(1000, 100, 1), Block(1200, 50, 2), Block(1300, 25, 1)]))
    assert {(GPU, 10): (125, 2), (GPU, 20): (50, 1), (GPU, CACHED): (825, 2), (GPU, OWN): (100, 1)} == sums(found)


def test_an_allocation_with_a_block_is_a_segment_whatever_its_stack() -> None:
    found = parts(
        [LiveAllocation(GPU, 1000, 500, NO_STACK), LiveAllocation(GPU, 2000, 500, NO_STACK)],
        GivenOut([Block(1000, 100, 1)]),
    )
    assert {(GPU, 10): (100, 1), (GPU, CACHED): (400, 1), (GPU, NO_STACK): (500, 1)} == sums(found)


def test_a_block_in_several_mappings_is_one_object() -> None:
    held = [
        LiveAllocation(GPU, 1000, 20, GROWS),
        LiveAllocation(GPU, 1020, 20, GROWS),
        LiveAllocation(GPU, 1040, 20, GROWS),
    ]
    found = parts(held, GivenOut([Block(1010, 45, 1)]))
    assert {(GPU, 10): (45, 1), (GPU, CACHED): (15, 2)} == sums(found)


def test_given_out_without_a_row_is_unknown_on_that_gpu_only() -> None:
    held = [LiveAllocation(GPU, 1000, 500, GROWS), LiveAllocation(OTHER, 3000, 500, GROWS)]
    found = parts(held, GivenOut([Block(1000, 100, 1)], unknown={0: 150}))
    expected = {(GPU, 10): (100, 1), (GPU, NO_STACK): (150, 0), (GPU, CACHED): (250, 1), (OTHER, CACHED): (500, 1)}
    assert expected == sums(found)


def test_blocks_outside_of_segments_count_nowhere() -> None:
    """Of older segments, or of one that was given back since, and what is not mapped has no blocks."""
    held = [LiveAllocation(GPU, 0, 300, GROWS), LiveAllocation(GPU, 1000, 500, GROWS)]
    found = parts(held, GivenOut([Block(5, 100, 1), Block(900, 150, 1), Block(1400, 500, 2), Block(9000, 5, 3)]))
    assert {(GPU, 10): (50, 1), (GPU, 20): (100, 1), (GPU, CACHED): (650, 2)} == sums(found)


def test_parts_are_the_bytes_of_what_is_held_whatever_a_process_reports() -> None:
    chance = random.Random(20)
    for _ in range(300):
        held = [LiveAllocation(GPU, chance.randrange(0, 900), chance.randrange(1, 300), GROWS) for _ in range(8)]
        blocks = [Block(chance.randrange(1, 1200), chance.randrange(1, 400), chance.randrange(3)) for _ in range(12)]
        found = parts(held, GivenOut(blocks, unknown={0: chance.randrange(500), 5: 1 << 63}))
        assert sum(it.bytes for it in held) == sum(it.bytes for it in found)
        assert all(it.bytes >= 0 for it in found)


def test_allocations_of_the_allocator_are_known_by_its_library() -> None:
    assert is_of_allocator((Frame("cudaMalloc"), Frame("", module="/opt/torch/lib/libc10_cuda.so")))
    assert not is_of_allocator((Frame("cudaMalloc"), Frame("", module="/opt/torch/lib/libtorch_cuda.so")))


def test_what_is_missing_of_allocators_older_than_their_probes() -> None:
    """Of one that was probed in time, segments that it has returned since its last block are no older segments."""
    in_time, late, unseen = (AllocationSite(pid, -1, 0, 1) for pid in (5, 6, 7))
    rows = [_Row(in_time, 1000, 500, 1), _Row(late, 1000, 500, 1), _Row(unseen, 1000, 500, 1)]
    given_out = {pid: GivenOut(reserved={0: 800, 1: 100}) for pid in (5, 6)}

    found = list(_unseen(rows, given_out, late={6, 7}, with_segments={6, 7}))

    assert found == [
        "process 6 was there before its probes: at least 400 bytes of the segments that its caching allocator had at "
        "its last block are not included",
        "process 7: no block of its caching allocator was seen, so its segments have their own stacks",
    ]
    assert not [*_unseen(rows, {6: GivenOut(reserved={0: 500})}, {6}, {6})]
