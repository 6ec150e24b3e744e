"""Tables of contexts and totals without room: no process takes that of others, and what is unknown is absent."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.collectors.cuda import Cuda
from tests.bpf.cuda_node import Script, build_standins, observe, started
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="CUDA memory", on="stand-in")]

ALLOCATED = "gpu_cuda_memory_allocations_bytes_total"
FREED = "gpu_cuda_memory_frees_bytes_total"
USED = "gpu_cuda_memory_usage_bytes"
CONTEXTS = """
#include <stdint.h>
static uint64_t next = 0x7f0000000000;
#define FUNCTION(name, ...) int name(__VA_ARGS__) { asm volatile("nop; nop; nop; nop");
FUNCTION(cuDevicePrimaryCtxRetain, uint64_t *made, int device) *made = next += 4096; return 0; }
FUNCTION(cuDevicePrimaryCtxReset_v2, int device) return 0; }
FUNCTION(cuCtxCreate_v2, uint64_t *made, unsigned flags, int device) *made = next += 4096; return 0; }
FUNCTION(cuCtxDestroy_v2, uint64_t context) return 0; }
"""
RESET = """
one = new(lib.cuDevicePrimaryCtxRetain, 0); lib.cuCtxSetCurrent(one)
new(lib.cuMemAlloc_v2, size(1000000)); lib.cuDevicePrimaryCtxReset_v2(0)
"""


def use(library: Path) -> Script:
    """Return a process with a library of its own in the driver's place."""
    return Script(library.name, libraries=library.parent)


def test_primary_contexts_of_any_number(compile_library: Callable[[str, str], Path]) -> None:
    """A process with a driver of 5,000 devices takes no row of another one: a reset frees the memory of that one."""
    library = compile_library("libcuda.so.1", CONTEXTS)
    build_standins()
    with observe(layers="driver") as observed, started(observed, use(library)) as hostile:
        hostile.run("for n in [*range(5000), -1]: new(lib.cuDevicePrimaryCtxRetain, n)")
        assert 64 == len(observed.kernel("primaries", hostile.pid))
        with started(observed, Script()) as other:
            other.run(RESET)
            until(lambda: observed.value(USED, other.pid, memory="device") == 0, "the device swept")
            assert 10**6 == observed.value(FREED, other.pid, memory="device", implicit="true")
        assert {} == observed.lost


def test_a_primary_context_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage is absent where the context of a device found no room: what its reset frees is not known."""
    entries = Cuda.entries
    monkeypatch.setattr(Cuda, "entries", lambda self: entries(self) | {"primaries": 1})
    build_standins()
    with observe(layers="driver") as observed, started(observed, Script()) as first, Script() as other:
        first.run("new(lib.cuDevicePrimaryCtxRetain, 0)")
        started(observed, other).run(RESET)
        assert {"primaries_lost": 1} == observed.lost
        assert [1] == [it.used for it in observed.kernel("used_devices", other.pid)]
        assert 10**6 == observed.value(ALLOCATED, other.pid, memory="device")
        assert observed.value(USED, other.pid, memory="device") is None
        assert 0 == observed.value("gpu_cuda_seen_from_start", other.pid)


def test_contexts_of_any_number(compile_library: Callable[[str, str], Path]) -> None:
    """A process with 20,000 contexts leaves room for those of others, and gives their rows back one by one."""
    library = compile_library("libcuda.so.1", CONTEXTS)
    build_standins()
    with observe(layers="driver") as observed, started(observed, use(library)) as hostile:
        hostile.run("made = [new(lib.cuCtxCreate_v2, 0, 0) for n in range(20000)]")
        assert {"context_devices_lost": 20000 - 8192} == observed.lost
        with started(observed, Script()) as other:
            other.run("for n in (0, 1): new(lib.cuCtxCreate_v2, 0, n)")
            assert [0, 1] == sorted(observed.kernel("context_devices", other.pid))
        hostile.run("for it in made: lib.cuCtxDestroy_v2(it)\nfor n in range(23): new(lib.cuCtxCreate_v2, 0, 0)")
        assert 23 == len(observed.kernel("context_devices", hostile.pid))


def test_memory_that_is_not_in_the_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage is absent, also when there is room again: what was allocated before is unknown."""
    entries = Cuda.entries
    monkeypatch.setattr(Cuda, "entries", lambda self: entries(self) | {"totals": 2})
    build_standins()
    with observe(layers="driver") as observed, started(observed, Script()) as job:
        with started(observed, Script()) as other:
            other.run("new(lib.cuMemAlloc_v2, size(1)); new(lib.cuMemHostAlloc, size(1), 0)")
            job.run("new(lib.cuMemAlloc_v2, size(1000))")
            assert observed.value(ALLOCATED, job.pid, memory="device") is None
        until(lambda: not observed.kernel("totals", other.pid), "the rows of the ended process are free")
        time.sleep(1)  # a full table is not tried for a while
        job.run("new(lib.cuMemAlloc_v2, size(23))")
        assert 23 == observed.value(ALLOCATED, job.pid, memory="device")
        assert observed.value(USED, job.pid, memory="device") is None
