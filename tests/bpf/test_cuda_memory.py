"""Memory: every way to allocate and to free, what fails, and what frees implicitly."""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from exporter.nvml.gpus import Gpus
from exporter.nvml.snapshot import Readings
from tests.bpf.cuda_node import MIB, Script, build_standins, observe, started
from tests.bpf.fixtures import each, once
from tests.bpf.observed import Observed
from tests.support import until
from tests.unit.resolve.gpus import gpu, snapshot

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="CUDA memory", on="stand-in")]

ALLOCATED = "gpu_cuda_memory_allocations_bytes_total"
FREED = "gpu_cuda_memory_frees_bytes_total"
USED = "gpu_cuda_memory_usage_bytes"
UNTRACKED = "gpu_cuda_memory_untracked_bytes_total"
UNMATCHED_FREES = "gpu_cuda_memory_frees_unseen_total"
ERRORS = "gpu_cuda_api_errors_total"
FULL = "accel_exporter_map_full_total"


observed = once(observe)
driver = each(Script)
runtime = each(partial(Script, "libcudart.so.12"))


def used(observed: Observed, pid: int, layer: str = "driver") -> dict[str, int]:
    """Bytes in use by kind of memory, those that are not 0."""
    found = observed.values(USED, pid, api_layer=layer)
    return {dict(labels)["memory"]: value for labels, value in found.items() if value}


def implicit(observed: Observed, pid: int) -> dict[str, int]:
    found = observed.values(FREED, pid, api_layer="driver", implicit="true")
    return {dict(labels)["memory"]: value for labels, value in found.items() if value}


def freed(observed: Observed, pid: int) -> dict[str, int]:
    found = observed.values(FREED, pid, api_layer="driver")
    return {dict(it)["memory"]: value for it, value in found.items() if "implicit" not in dict(it)}


def rows(observed: Observed, pid: int) -> list[Any]:
    """Return the rows of a process in the table of live allocations."""
    return observed.kernel("live", pid)


@pytest.mark.parametrize(
    ("allocate", "free", "memory", "size"),
    [
        ("new(lib.cuMemAlloc_v2, size(1000003))", "lib.cuMemFree_v2", "device", 1000003),
        ("new(lib.cuMemAllocManaged, size(70001), 1)", "lib.cuMemFree_v2", "managed", 70001),
        ("new(lib.cuMemAllocAsync, size(4099), None)", "lib.cuMemFreeAsync", "pool", 4099),
        ("new(lib.cuMemAllocAsync_ptsz, size(4099), None)", "lib.cuMemFreeAsync_ptsz", "pool", 4099),
        ("new(lib.cuMemAllocFromPoolAsync, size(5), None, None)", "lib.cuMemFree_v2", "pool", 5),
        ("new(lib.cuMemHostAlloc, size(8191), 0)", "lib.cuMemFreeHost", "pinned_host", 8191),
        ("new(lib.cuMemAllocHost_v2, size(8193))", "lib.cuMemFreeHost", "pinned_host", 8193),
        ("new(lib.cuMemAllocPitch_v2, byref(c_uint64()), size(1000), size(7), 4)", "lib.cuMemFree_v2", "device", 7168),
    ],
)
def test_allocations_of_the_driver(
    observed: Observed, driver: Script, allocate: str, free: str, memory: str, size: int
) -> None:
    """Each allocating function gives its bytes to its kind of memory, with the pitch really used, until it is freed."""
    driver.run(f"p = {allocate}")
    assert {memory: size} == used(observed, driver.pid)
    assert size == observed.value(ALLOCATED, driver.pid, api_layer="driver", memory=memory)
    driver.run(f"out = {free}(p)")
    assert {} == used(observed, driver.pid)
    assert {} == implicit(observed, driver.pid)


@pytest.mark.parametrize(
    ("allocate", "free", "memory", "size"),
    [
        ("new(lib.cudaMalloc, size(1000003))", "lib.cudaFree", "device", 1000003),
        ("new(lib.cudaMallocManaged, size(70001), 1)", "lib.cudaFree", "managed", 70001),
        ("new(lib.cudaMallocAsync_ptsz, size(4099), None)", "lib.cudaFreeAsync", "pool", 4099),
        ("new(lib.cudaMallocHost, size(8191))", "lib.cudaFreeHost", "pinned_host", 8191),
        ("new(lib.cudaHostAlloc, size(8193), 0)", "lib.cudaFreeHost", "pinned_host", 8193),
        ("new(lib.cudaMallocPitch, byref(c_uint64()), size(1000), size(7))", "lib.cudaFree", "device", 7168),
    ],
)
def test_allocations_of_the_runtime(
    observed: Observed, runtime: Script, allocate: str, free: str, memory: str, size: int
) -> None:
    """The runtime's allocations count at its layer, and once more at the driver's, which they become."""
    runtime.run(f"p = {allocate}")
    assert {memory: size} == used(observed, runtime.pid, "runtime") == used(observed, runtime.pid, "driver")
    runtime.run(f"{free}(p)")
    assert {} == used(observed, runtime.pid, "runtime") == used(observed, runtime.pid, "driver")


def test_three_dimensional_allocations(observed: Observed, runtime: Script) -> None:
    """cudaMalloc3D, with an extent passed by value in memory, counts pitch x height x depth."""
    runtime.run(
        "class Extent(ctypes.Structure): _fields_ = [(n, c_size_t) for n in ('w', 'h', 'd')]\n"
        "class Pitched(ctypes.Structure): _fields_ = [(n, c_size_t) for n in ('p', 'pitch', 'w', 'h')]\n"
        "made = Pitched(); assert lib.cudaMalloc3D(byref(made), Extent(1000, 7, 3)) == 0"
    )
    assert {"device": 1024 * 7 * 3} == used(observed, runtime.pid, "runtime") == used(observed, runtime.pid, "driver")


def test_registered_host_memory(observed: Observed, driver: Script) -> None:
    """Host memory that is registered is pinned until it is unregistered."""
    driver.run("buffer = ctypes.create_string_buffer(12345); lib.cuMemHostRegister_v2(buffer, size(12345), 0)")
    assert {"pinned_host": 12345} == used(observed, driver.pid)
    driver.run("lib.cuMemHostUnregister(buffer)")
    assert {} == used(observed, driver.pid)


def test_mapped_memory_lives_until_released_and_unmapped(observed: Observed, driver: Script) -> None:
    """Physical memory (cuMemCreate) is freed by whichever comes last, its release or its last unmapping."""
    driver.run(
        "va = new(lib.cuMemAddressReserve, size(8 << 20), size(0), c_uint64(0), c_uint64(0)).value\n"
        "prop = ctypes.create_string_buffer(64); prop[8] = 1\n"
        "a = new(lib.cuMemCreate, size(2 << 20), prop, c_uint64(0))\n"
        "b = new(lib.cuMemCreate, size(4 << 20), prop, c_uint64(0))\n"
        "lib.cuMemMap(c_uint64(va), size(2 << 20), size(0), a, c_uint64(0))\n"
        "lib.cuMemMap(c_uint64(va + (2 << 20)), size(4 << 20), size(0), b, c_uint64(0))\n"
        "lib.cuMemRelease(a)"
    )
    assert {"vmm": 6 * MIB} == used(observed, driver.pid)
    driver.run("lib.cuMemUnmap(c_uint64(va), size(6 << 20))")  # both mappings in one call
    assert {"vmm": 4 * MIB} == used(observed, driver.pid)
    driver.run("lib.cuMemRelease(b)")
    assert {} == used(observed, driver.pid)
    assert {} == implicit(observed, driver.pid)


def test_retained_handles(observed: Observed, driver: Script) -> None:
    """A retained handle has to be released once more."""
    driver.run(
        "prop = ctypes.create_string_buffer(64); prop[8] = 1\n"
        "va = new(lib.cuMemAddressReserve, size(2 << 20), size(0), c_uint64(0), c_uint64(0)).value\n"
        "a = new(lib.cuMemCreate, size(2 << 20), prop, c_uint64(0))\n"
        "lib.cuMemMap(c_uint64(va), size(2 << 20), size(0), a, c_uint64(0))\n"
        "again = new(lib.cuMemRetainAllocationHandle, c_uint64(va)); assert again.value == a.value\n"
        "lib.cuMemUnmap(c_uint64(va), size(2 << 20)); lib.cuMemRelease(a)"
    )
    assert {"vmm": 2 * MIB} == used(observed, driver.pid)
    driver.run("lib.cuMemRelease(again)")
    assert {} == used(observed, driver.pid)


def test_host_memory_by_handle(observed: Observed, driver: Script) -> None:
    """cuMemCreate of memory on the host is pinned host memory, not the device's."""
    driver.run(
        "prop = ctypes.create_string_buffer(64); prop[8] = 3; new(lib.cuMemCreate, size(4096), prop, c_uint64(0))"
    )
    assert {"pinned_host": 4096} == used(observed, driver.pid)


def test_destroying_a_context_frees_its_memory(observed: Observed, driver: Script) -> None:
    """cuCtxDestroy frees what was allocated in that context, but not pools and handles, as cuda.h has it."""
    driver.run(
        "first = new(lib.cuCtxCreate_v2, 0, 0); new(lib.cuMemAlloc_v2, size(1 << 20))\n"
        "second = new(lib.cuCtxCreate_v2, 0, 0); new(lib.cuMemAlloc_v2, size(2 << 20))\n"
        "new(lib.cuMemHostAlloc, size(4 << 20), 0); new(lib.cuMemAllocAsync, size(8 << 20), None)\n"
        "lib.cuCtxPopCurrent_v2(byref(c_uint64())); new(lib.cuMemAllocManaged, size(16 << 20), 1)\n"
        "lib.cuCtxDestroy_v2(second)"
    )
    swept = {"device": 2 * MIB, "pinned_host": 4 * MIB}
    assert implicit(observed, driver.pid) == swept
    assert {"device": MIB, "pool": 8 * MIB, "managed": 16 * MIB} == used(observed, driver.pid)
    driver.run("lib.cuCtxDestroy_v2(first)")
    assert used(observed, driver.pid) == {"pool": 8 * MIB}


def test_contexts_are_current_to_threads(observed: Observed, driver: Script) -> None:
    """A context set in one thread is not that of another one."""
    driver.run(
        "made = []\n"
        "def work(n):\n"
        "    made.append(new(lib.cuCtxCreate_v2, 0, 0)); new(lib.cuMemAlloc_v2, size(n << 20))\n"
        "for n in (1, 2):\n"
        "    thread = threading.Thread(target=work, args=(n,)); thread.start(); thread.join()\n"
        "lib.cuCtxSetCurrent(made[0]); new(lib.cuMemAlloc_v2, size(4 << 20)); lib.cuCtxDestroy_v2(made[0])"
    )
    assert used(observed, driver.pid) == {"device": 2 * MIB}


def test_more_contexts_than_are_kept_of_a_thread(observed: Observed, driver: Script) -> None:
    """Each takes its memory along when it is destroyed, and later ones too: the newest of a stack are known."""
    driver.run(
        "def create(n):\n"
        "    made.append(new(lib.cuCtxCreate_v2, 0, 0)); new(lib.cuMemAlloc_v2, size(n << 20))\n"
        "made = []\n"
        "for n in range(12): create(1)\n"
        "while made: lib.cuCtxDestroy_v2(made.pop())"
    )
    assert {"device": 12 * MIB} == implicit(observed, driver.pid)
    assert 0 == observed.value(USED, driver.pid, memory="device")
    driver.run("create(5); lib.cuCtxDestroy_v2(made.pop())")
    assert 0 == observed.value(USED, driver.pid, memory="device")


def test_memory_of_an_unknown_context(observed: Observed, driver: Script) -> None:
    """Usage is known until a context is destroyed that may be the memory's, and again when that memory is freed."""
    driver.run(
        "made = [new(lib.cuCtxCreate_v2, 0, 0) for _ in range(12)]\n"
        "for _ in range(10): lib.cuCtxPopCurrent_v2(byref(c_uint64()))\n"
        "held = new(lib.cuMemAlloc_v2, size(1 << 20)); new(lib.cuMemAllocAsync, size(2 << 20), None)"
    )
    assert {"device": MIB, "pool": 2 * MIB} == used(observed, driver.pid)
    driver.run("lib.cuCtxDestroy_v2(made[5])")
    assert observed.value(USED, driver.pid, memory="device") is None
    assert {"pool": 2 * MIB} == used(observed, driver.pid)
    driver.run("lib.cuCtxPushCurrent_v2(made[4]); lib.cuMemFree_v2(held); new(lib.cuMemAlloc_v2, size(23))")
    assert {"device": 23, "pool": 2 * MIB} == used(observed, driver.pid)
    driver.run("lib.cuCtxDestroy_v2(made[4])")
    assert {"pool": 2 * MIB} == used(observed, driver.pid)
    assert {"device": 23} == implicit(observed, driver.pid)


def test_resetting_a_device(observed: Observed, runtime: Script) -> None:
    """cudaDeviceReset frees the memory of the primary context at both layers."""
    runtime.run("new(lib.cudaMalloc, size(1 << 20)); new(lib.cudaMallocHost, size(2 << 20)); lib.cudaDeviceReset()")
    until(lambda: implicit(observed, runtime.pid) == {"device": MIB, "pinned_host": 2 * MIB}, "the device swept")
    until(lambda: used(observed, runtime.pid, "runtime") == {}, "the runtime's memory swept")
    assert {} == used(observed, runtime.pid, "driver")


@pytest.mark.parametrize("seen", [True, False], ids=["from its first call", "too late"])
def test_the_last_release_of_a_primary_context(observed: Observed, driver: Script, seen: bool) -> None:
    """The last release ends the context only in a process seen from its first call on: else others may hold it."""
    if seen:
        observed.collector.object.maps["covered"].set(driver.pid, 1)
    else:
        observed.collector.object.maps["covered"].delete(driver.pid)
    driver.run(
        "one = new(lib.cuDevicePrimaryCtxRetain, 0); new(lib.cuDevicePrimaryCtxRetain, 0)\n"
        "lib.cuCtxSetCurrent(one); new(lib.cuMemAlloc_v2, size(1 << 20)); lib.cuDevicePrimaryCtxRelease_v2(0)"
    )
    assert {"device": MIB} == used(observed, driver.pid)
    driver.run("lib.cuDevicePrimaryCtxRelease_v2(0)")
    assert used(observed, driver.pid) == ({} if seen else {"device": MIB})


@pytest.mark.parametrize("reset", ["cuDevicePrimaryCtxReset_v2(0)", "cudaDeviceReset()"])
def test_a_reset_of_an_unknown_context(reset: str) -> None:
    """Usage is unknown after a reset of a device of which the context was made before the probes."""
    build_standins()
    layer = "runtime" if "cuda" in reset else "driver"
    library, call = ("libcudart.so.12", "cudaMalloc") if layer == "runtime" else ("libcuda.so.1", "cuMemAlloc_v2")
    with Script(library) as script, observe(layers=layer) as observed:
        started(observed, script).run(f"new(lib.{call}, size(1 << 20))")
        assert MIB == observed.value(USED, script.pid, memory="device")
        script.run(f"lib.{reset}")
        assert observed.value(USED, script.pid, memory="device") is None


def test_failures_change_no_bytes(observed: Observed, driver: Script) -> None:
    """A failed allocation or free changes no bytes and counts by its code."""
    driver.run(
        "p = new(lib.cuMemAlloc_v2, size(1 << 20)); new(lib.cuMemAlloc_v2, size(1 << 40), check=2)\n"
        "lib.standin_fail(b'cuMemFree_v2', 700); assert lib.cuMemFree_v2(p) == 700; lib.standin_fail(None, 0)\n"
        "prop = ctypes.create_string_buffer(64); prop[8] = 1\n"
        "h = new(lib.cuMemCreate, size(2 << 20), prop, c_uint64(0))\n"
        "lib.standin_fail(b'cuMemRelease', 999); lib.cuMemRelease(h); lib.standin_fail(None, 0)"
    )
    assert {"device": MIB, "vmm": 2 * MIB} == used(observed, driver.pid)
    errors = observed.values(ERRORS, driver.pid, api_layer="driver")
    found = {(dict(labels)["api"], dict(labels)["code"], dict(labels)["error"]): n for labels, n in errors.items()}
    assert {
        ("cuMemAlloc_v2", "2", "CUDA_ERROR_OUT_OF_MEMORY"): 1,
        ("cuMemFree_v2", "700", "CUDA_ERROR_ILLEGAL_ADDRESS"): 1,
        ("cuMemRelease", "999", "CUDA_ERROR_UNKNOWN"): 1,
    } == found
    driver.run("lib.cuMemFree_v2(p); lib.cuMemRelease(h)")
    assert {} == used(observed, driver.pid)


def test_addresses_are_used_again_by_other_threads(observed: Observed, driver: Script) -> None:
    """Threads that allocate and free the same few addresses as fast as they can leave usage at 0."""
    driver.run(
        "def work():\n"
        "    for n in range(2000):\n"
        "        p = new(lib.cuMemAlloc_v2, size(512)); assert lib.cuMemFree_v2(p) == 0\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()"
    )
    assert 8000 * 512 == observed.value(ALLOCATED, driver.pid, api_layer="driver", memory="device")
    assert {} == used(observed, driver.pid)
    assert {} == implicit(observed, driver.pid)


def test_frees_of_memory_older_than_the_probes() -> None:
    """A free of what was allocated before the exporter came is no negative usage, but counts as unseen."""
    build_standins()
    with Script() as script:
        script.run("p = new(lib.cuMemAlloc_v2, size(1 << 20))")
        with observe() as observed:
            started(observed, script)
            script.run("lib.cuMemFree_v2(p); lib.cuMemFree_v2(c_uint64(0))")
            assert {} == used(observed, script.pid)
            assert 1 == observed.value(UNMATCHED_FREES, script.pid, api_layer="driver", memory="device")


def test_a_full_table_of_live_allocations() -> None:
    """Allocations without a row count as allocated and untracked; usage is absent for their kind of memory alone."""
    build_standins()
    with observe(live_allocations=16) as observed, started(observed, Script()) as script:
        script.run("pinned = new(lib.cuMemHostAlloc, size(4096), 0)")
        script.run("held = [new(lib.cuMemAlloc_v2, size(1 << 10)) for n in range(23)]")
        assert 23 << 10 == observed.value(ALLOCATED, script.pid, api_layer="driver", memory="device")
        untracked = observed.value(UNTRACKED, script.pid, api_layer="driver", memory="device")
        assert 8 << 10 <= untracked
        assert {"pinned_host": 4096} == used(observed, script.pid)
        assert untracked >> 10 <= observed.value(FULL, map="cuda_live")  # more if there are other jobs on this machine
        script.run("[lib.cuMemFree_v2(p) for p in held]")
        assert untracked >> 10 == observed.value(UNMATCHED_FREES, script.pid, api_layer="driver", memory="device")
        assert {"pinned_host": 4096} == used(observed, script.pid)
        script.end()
        until(lambda: not observed.kernel("totals", script.pid), "the end noticed")
        assert {"pinned_host": 4096} == implicit(observed, script.pid)  # calls freed all of the other
        assert untracked == observed.value(UNTRACKED, script.pid, api_layer="driver", memory="device")
        assert {} == used(observed, script.pid)
        assert 0 == observed.value(USED, script.pid, api_layer="driver", memory="device")


@pytest.mark.parametrize(("entries", "tracked"), [(1, 1), (2, 1), (7, 3), (16, 8)])
def test_the_least_tables(entries: int, tracked: int) -> None:
    """Each process may track one allocation as long as there is room, and never more than half of a small table."""
    build_standins()
    with observe(live_allocations=entries) as observed, started(observed, Script()) as script:
        script.run("held = [new(lib.cuMemAlloc_v2, size(100)) for n in range(20)]")
        assert tracked == len(rows(observed, script.pid))
        assert 100 * (20 - tracked) == observed.value(UNTRACKED, script.pid, api_layer="driver")
        script.run("[lib.cuMemFree_v2(p) for p in held]")
        assert {"device": 100 * tracked} == freed(observed, script.pid)


def test_no_process_takes_the_room_of_all() -> None:
    """One that allocates without end gets half of the table; others find room, and their usage is whole."""
    build_standins()
    with (
        observe(live_allocations=184) as observed,
        started(observed, Script()) as greedy,
        started(observed, Script()) as other,
        started(observed, Script()) as third,
    ):
        greedy.run("for n in range(1009): new(lib.cuMemAlloc_v2, size(1))")
        for script in (other, third):
            script.run("for n in range(23): new(lib.cuMemAlloc_v2, size(1))")
        assert 1009 - 92 <= observed.value(UNTRACKED, greedy.pid, api_layer="driver") < 1009 - 23
        assert {} == observed.values(USED, greedy.pid)
        assert {"device": 23} == used(observed, other.pid) == used(observed, third.pid)
        other.run("for n in range(23): new(lib.cuMemAlloc_v2, size(1))")
        assert 23 == observed.value(UNTRACKED, other.pid, api_layer="driver")


EXPAND = """
prop = ctypes.create_string_buffer(64); prop[8] = 1
def expand(segments, bytes, va=0):
    va = va or new(lib.cuMemAddressReserve, size(segments * bytes), size(0), c_uint64(0), c_uint64(0)).value
    handles = []
    for at in range(va, va + segments * bytes, bytes):
        handles.append(new(lib.cuMemCreate, size(bytes), prop, c_uint64(0)))
        assert lib.cuMemMap(c_uint64(at), size(bytes), size(0), handles[-1], c_uint64(0)) == 0
    return va, handles
"""


def test_segments_that_expand(observed: Observed, driver: Script) -> None:
    """A handle that is mapped whole and once takes one row, whether it is unmapped or released first."""
    driver.run(f"{EXPAND}\nva, handles = expand(23, 20 << 20)")
    assert 23 == len(rows(observed, driver.pid))
    assert {"vmm": 23 * 20 * MIB} == used(observed, driver.pid)
    driver.run("for handle in handles[:11]: lib.cuMemRelease(handle)")
    assert {"vmm": 23 * 20 * MIB} == used(observed, driver.pid)
    driver.run("lib.cuMemUnmap(c_uint64(va), size(12 * (20 << 20)))")
    assert {"vmm": 12 * 20 * MIB} == used(observed, driver.pid)
    driver.run("lib.cuMemMap(c_uint64(va), size(20 << 20), size(0), handles[11], c_uint64(0))")  # again, elsewhere
    assert 12 == len(rows(observed, driver.pid))
    driver.run(
        "for handle in handles[11:]: lib.cuMemRelease(handle)\n"
        "lib.cuMemUnmap(c_uint64(va + 12 * (20 << 20)), size(11 * (20 << 20)))"
    )
    assert {"vmm": 20 * MIB} == used(observed, driver.pid)
    driver.run("lib.cuMemUnmap(c_uint64(va), size(20 << 20))")
    assert {} == used(observed, driver.pid) == implicit(observed, driver.pid)
    assert [] == rows(observed, driver.pid)
    assert 0 == observed.value(FULL, map="cuda_live")


def test_one_call_unmaps_any_number(observed: Observed, driver: Script) -> None:
    """One unmapping of 2,000 segments ends the mappings in rows of handles, one of their second mappings the rest."""
    segments, size = 2000, 1 << 21
    driver.run(
        f"{EXPAND}\nva, handles = expand({segments}, {size})\nother, kept = expand(3, {size})\n"
        f"again = new(lib.cuMemAddressReserve, size({segments * size}), size(0), c_uint64(0), c_uint64(0)).value\n"
        "for n, it in enumerate(handles):\n"
        f"    lib.cuMemMap(c_uint64(again + n * {size}), size({size}), size(0), it, c_uint64(0))\n"
        "for it in handles + kept: lib.cuMemRelease(it)"
    )
    assert 2 * segments + 3 == len(rows(observed, driver.pid))
    driver.run(f"lib.cuMemUnmap(c_uint64(va), size({segments * size}))")
    assert {"vmm": (segments + 3) * size} == used(observed, driver.pid)
    driver.run(f"lib.cuMemUnmap(c_uint64(again), size({segments * size}))")
    assert {"vmm": 3 * size} == used(observed, driver.pid)
    assert 3 == len(rows(observed, driver.pid))
    assert {} == implicit(observed, driver.pid)


@pytest.mark.parametrize(("unseen", "mapped"), [(2, 20 << 20), (600, 1 << 21)])
def test_mappings_older_than_the_probes(unseen: int, mapped: int) -> None:
    """One unmapping of some that were not seen and of some behind them that were ends the latter."""
    build_standins()
    with Script() as script:
        script.run(
            f"{EXPAND}\nwhole = size({(unseen + 3) * mapped})\n"
            "va = new(lib.cuMemAddressReserve, whole, size(0), c_uint64(0), c_uint64(0)).value\n"
            f"expand({unseen}, {mapped}, va)"
        )
        with observe() as observed, started(observed, script):
            script.run(f"_, seen = expand(3, {mapped}, va + {unseen * mapped})")
            assert {"vmm": 3 * mapped} == used(observed, script.pid)
            script.run("for it in seen: lib.cuMemRelease(it)\nlib.cuMemUnmap(c_uint64(va), whole)")
            assert {} == used(observed, script.pid)
            assert [] == rows(observed, script.pid)


def test_a_handle_that_is_mapped_twice(observed: Observed, driver: Script) -> None:
    """The memory is in use until both of its mappings are gone, in any order."""
    for first, second in ((0, 1), (1, 0)):
        driver.run(
            f"{EXPAND}\nva, (handle,) = expand(1, 1 << 21)\n"
            "other = new(lib.cuMemAddressReserve, size(1 << 21), size(0), c_uint64(0), c_uint64(0)).value\n"
            "lib.cuMemMap(c_uint64(other), size(1 << 21), size(0), handle, c_uint64(0)); lib.cuMemRelease(handle)\n"
            f"lib.cuMemUnmap(c_uint64((va, other)[{first}]), size(1 << 21))"
        )
        assert {"vmm": 2 * MIB} == used(observed, driver.pid)
        driver.run(f"lib.cuMemUnmap(c_uint64((va, other)[{second}]), size(1 << 21))")
        assert {} == used(observed, driver.pid)
        assert [] == rows(observed, driver.pid)


def test_a_full_table_of_mappings() -> None:
    """A handle of which a mapping found no room is untracked: its release does not end what is still mapped."""
    build_standins()
    with observe(live_allocations=2) as observed, started(observed, Script()) as script:
        script.run(
            f"{EXPAND}\nva, (handle,) = expand(1, 1 << 21)\n"
            "lib.cuMemMap(c_uint64(va + (1 << 40)), size(1 << 21), size(0), handle, c_uint64(0))\n"
            "lib.cuMemUnmap(c_uint64(va), size(1 << 21)); lib.cuMemRelease(handle)"
        )
        assert 2 * MIB == observed.value(UNTRACKED, script.pid, api_layer="driver", memory="vmm")
        assert {0} == set(observed.values(FREED, script.pid, api_layer="driver", memory="vmm").values())
        assert {} == used(observed, script.pid)


def test_eight_ranks_fill_their_gpus() -> None:
    """Eight processes that hold 192 GiB each in segments of 20 MiB find room in the default table."""
    build_standins()
    segments, size = 192 * 1024 // 20, 20 * MIB
    with observe() as observed, ExitStack() as stack:
        ranks = [started(observed, stack.enter_context(Script())) for _ in range(8)]
        for rank in ranks:
            rank.begin(f"{EXPAND}\nexpand({segments}, {size}, 1 << 44)")
        for rank in ranks:
            rank.answer()
            assert {"vmm": segments * size} == used(observed, rank.pid)
        assert 0 == observed.value(FULL, map="cuda_live") == observed.value(FULL, map="cuda_ranges")


def test_the_table_is_sized_by_the_gpus() -> None:
    """On eight GPUs of 80 GiB, eight processes that fill them with segments of 2 MiB find room, with room to spare."""
    build_standins()
    gpus = Gpus()
    readings = {"fast": Readings(0.0, {"memory_bytes": 80 << 30})}
    gpus.serve(lambda: snapshot(*(replace(gpu(index), sets=readings) for index in range(8))), lambda seconds: True)
    segments, size = 80 * 512, 2 * MIB
    with observe(gpus=gpus, layers="driver") as observed, ExitStack() as stack:
        assert 491_520 == observed.collector.object.maps["live"].max_entries
        ranks = [started(observed, stack.enter_context(Script())) for _ in range(8)]
        for rank in ranks:
            rank.begin(f"{EXPAND}\nexpand({segments}, {size}, 1 << 44)")
        for rank in ranks:
            rank.answer()
            assert {"vmm": segments * size} == used(observed, rank.pid)
        assert 0 == observed.value(FULL, map="cuda_live") == observed.value(FULL, map="cuda_ranges")


@pytest.mark.parametrize("create", ["cuMemImportFromShareableHandle, None, 1", "cuMulticastCreate, None"])
def test_handles_of_others(observed: Observed, driver: Script, create: str) -> None:
    """Releasing an imported handle or a multicast object, as every NCCL job does, is no free of unseen memory."""
    driver.run(f"for n in range(23): assert lib.cuMemRelease(new(lib.{create})) == 0")
    assert {} == observed.values(UNMATCHED_FREES, driver.pid)


def test_codes_of_ones_own() -> None:
    """A process with a library that returns ever new codes has so many rows of errors, and others have theirs."""
    build_standins()
    with observe() as observed, started(observed, Script()) as odd, started(observed, Script()) as other:
        odd.run(
            "for code in range(1000, 1199):\n    lib.standin_fail(b'cuMemFree_v2', code); lib.cuMemFree_v2(c_uint64(1))"
        )
        assert 128 == len(observed.values(ERRORS, odd.pid))
        assert 199 - 128 <= observed.value(FULL, map="cuda_errors")
        other.run("for n in range(23): lib.cuMemFree_v2(c_uint64(1))")
        assert [23] == list(observed.values(ERRORS, other.pid).values())


def test_only_what_the_context_had_ends_with_it(observed: Observed, driver: Script) -> None:
    """An allocation in a new context at the address of an ended one is not swept with the ended context."""
    context = driver.run("out = new(lib.cuCtxCreate_v2, 0, 0).value; new(lib.cuMemAlloc_v2, size(23))")
    sweep = observed.collector.object.programs["sweep"]
    sweep.run(struct.pack("=3Q", driver.pid, context, 1))
    assert {"device": 23} == used(observed, driver.pid)
    sweep.run(struct.pack("=3Q", driver.pid, context, time.monotonic_ns()))
    assert {} == used(observed, driver.pid)
    assert {"device": 23} == implicit(observed, driver.pid)


def test_many_contexts_end_at_once(observed: Observed, driver: Script) -> None:
    """More than the exporter sweeps in a second are swept all the same."""
    driver.run(
        "for n in range(101):\n"
        "    context = new(lib.cuCtxCreate_v2, 0, 0); new(lib.cuMemAlloc_v2, size(23)); lib.cuCtxDestroy_v2(context)"
    )
    until(lambda: implicit(observed, driver.pid) == {"device": 101 * 23}, "all swept")
    assert {} == used(observed, driver.pid)
