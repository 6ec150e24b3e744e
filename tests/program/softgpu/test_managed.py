"""Managed memory on the soft GPU: in host memory until it is prefetched, and back where others need the room."""

from __future__ import annotations

import pytest

from tests.softgpu.process import Start
from tests.softgpu.story import CONTEXT

WHOLE = 1 << 30
INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, UNSUPPORTED = 1, 2, 101, 900
MADE = """
context()
def managed(many): return new(u64, cu.cuMemAllocManaged, size(many), 1).value
def prefetch(at, many, device): return cu.cuMemPrefetchAsync(u64(at), size(many), device, None)
"""


def test_more_than_the_gpu_has(start: Start) -> None:
    """Managed memory may be larger than the GPU's; what is prefetched is on it as far as there is room."""
    process = start(SOFTGPU_BYTES=WHOLE)
    free = WHOLE - CONTEXT
    assert free == process.run(f"{MADE}held = managed(4 * GIB); out = unused()")
    assert ({"managed": 4 * WHOLE}, {}) == (process.counts.memory, process.counts.gpus)
    assert [0, 0] == process.run("out = [prefetch(held, 23 * MIB, 0), prefetch(held, 23 * MIB, 0)]")
    assert {0: 23 << 20} == process.counts.gpus
    assert [0, free - (31 << 20)] == process.run("out = [prefetch(held + 16 * MIB, 15 * MIB, 0), unused()]")
    assert [0, free] == process.run("out = [prefetch(held, 4 * GIB, -1), unused()]")
    assert [0, free] == process.run("out = [prefetch(held, 4 * GIB, 0), unused()]")
    assert [0, free - (1 << 20), 0] == process.run(
        "out = [prefetch(held + GIB, MIB, 0), unused(), cu.cuMemFree_v2(u64(held))]"
    )
    assert ({}, {0: 0}) == (process.counts.memory, process.counts.gpus)


def test_a_part_that_is_there(start: Start) -> None:
    """A prefetch of more than is left moves away pages of the same memory, and counts none twice."""
    process = start(SOFTGPU_BYTES=WHOLE)
    process.run(f"{MADE}free = unused() // MIB * MIB; held = managed(2 * free); ok(prefetch(held, free // 2, 0))")
    process.run("ok(prefetch(held + free // 4, free, 0))")
    assert 0 <= process.counts.gpus[0] <= WHOLE - CONTEXT
    assert [0, 0] == process.run(
        "out = [prefetch(held, 2 * free, -1), WHOLE_ - unused()]".replace("WHOLE_", str(WHOLE - CONTEXT))
    )
    assert {0: 0} == process.counts.gpus


def test_an_allocation_takes_the_room(start: Start) -> None:
    """Managed memory makes room for what cannot be in host memory, and for what is prefetched later."""
    process = start(SOFTGPU_BYTES=WHOLE)
    process.run(f"{MADE}free = unused(); held = managed(free); ok(prefetch(held, free, 0)); assert not unused()")
    assert 7 << 20 == process.run("other = allocate(7 * MIB); out = free - unused() - (free - 7 * MIB)")
    assert OUT_OF_MEMORY == process.run("out = code(allocate, free)")
    process.run("ok(cu.cuMemFree_v2(other)); later = managed(MIB); free_now = unused()")
    assert [0, 1 << 20] == process.run("out = [prefetch(later, MIB, 0), free_now - unused()]")


def test_devices(start: Start) -> None:
    """Pages are on one GPU at a time, by both forms of the call."""
    process = start()
    process.run(f"{MADE}held = managed(MIB); ok(prefetch(held, MIB, 0))")
    process.run("class At(C.Structure): _fields_ = [('type', C.c_int), ('id', C.c_int)]")
    move = "ok(cu.cuMemPrefetchAsync_v2(u64(held), size(MIB), At({}, {}), 0, None))"
    process.run(move.format(1, 1))
    assert {0: 0, 1: 1 << 20} == process.counts.gpus
    process.run(move.format(2, 0))
    assert {0: 0, 1: 0} == process.counts.gpus


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("prefetch(device, MIB, 0)", INVALID_VALUE),
        ("prefetch(held, MIB + 1, 0)", INVALID_VALUE),
        ("prefetch(held, 0, 0)", INVALID_VALUE),
        ("prefetch(held, MIB, 2)", INVALID_DEVICE),
        ("prefetch(held, MIB, -2)", INVALID_DEVICE),
        ("cu.cuMemAdvise(u64(held), size(MIB), 3, 1)", 0),
        ("cu.cuMemAdvise(u64(held), size(MIB), 1, 7)", 0),
        ("cu.cuMemAdvise(u64(held), size(MIB), 5, 7)", INVALID_DEVICE),
        ("cu.cuMemAdvise(u64(held), size(MIB), 7, 0)", INVALID_VALUE),
        ("cu.cuMemAdvise(u64(device), size(MIB), 3, 0)", INVALID_VALUE),
    ],
)
def test_refused(start: Start, call: str, code: int) -> None:
    """Only managed memory is moved or advised about, within its allocation, and to a place that there is."""
    process = start()
    process.run(f"{MADE}held, device = managed(MIB), allocate(MIB).value")
    assert code == process.run(f"out = {call}")
    assert {0: 1 << 20} == process.counts.gpus


def test_runtime(start: Start) -> None:
    """The runtime's call is the driver's."""
    process = start()
    process.run(
        "rt = runtime(); held = new(vp, rt.cudaMallocManaged, size(MIB), 1)\n"
        "class At(C.Structure): _fields_ = [('type', C.c_int), ('id', C.c_int)]\n"
        "ok(rt.cudaMemAdvise(held, size(MIB), 3, At(1, 1)))\n"
        "ok(rt.cudaMemPrefetchAsync(held, size(MIB), At(1, 1), 0, None))"
    )
    assert {1: 1 << 20} == process.counts.gpus
