"""Files that are made to fill the exporter's page and its places, and calls that never return."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from exporter.bpf import naming, sessions
from exporter.bpf.shares import PLACES
from exporter.bpf.status import SearchStatus
from exporter.collectors.cuda import Cuda
from exporter.cuda.functions import FUNCTIONS
from exporter.views.prometheus import render
from tests.bpf.cuda_node import MIB, Script, build_standins, observe, started
from tests.bpf.jumper import JUMPER, REPLACER, leave, replaced
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.timeout(300)]

CALLS = "gpu_cuda_api_calls_total"
ERRORS = "gpu_cuda_api_errors_total"
FULL = "accel_exporter_map_full_total"
LAUNCHES = "gpu_cuda_kernel_launch_calls_total"
FILES, LONG_PATH = 250, 3887
NAMES = [it.name for it in FUNCTIONS if it.layer == "driver"][:77]


def long_paths(status: SearchStatus) -> list[str]:
    """Return the libraries at long paths that are probed."""
    return [path for path, _ in status.libraries if "xxx" in path]


def test_many_libraries_at_long_paths(compile_library: Callable[[str, str], Path], tmp_path: Path) -> None:
    """250 files of one process at paths of 3,887 bytes: its user has 64 places, the page stays small, a job counts."""
    source = "\n".join(f'int {name}(void) {{ asm volatile("nop; nop; nop; nop"); return 0; }}' for name in NAMES)
    content = compile_library("libcuda.so.1", source).read_bytes()
    [build_id] = re.findall(rb"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0(.{20})", content, re.DOTALL)
    folder = tmp_path
    while len(str(folder)) < LONG_PATH - 220:
        folder /= "x" * 200
    folder /= "x" * (LONG_PATH - len("//lib000.so") - len(str(folder)))
    folder.mkdir(parents=True)
    for number in range(FILES):
        (folder / f"lib{number:03}.so").write_bytes(content.replace(build_id, number.to_bytes(20, "big")))
    assert LONG_PATH == len(str(folder / "lib000.so"))
    build_standins()
    with observe(layers="driver") as observed, started(observed, Script()) as script, Script("libc.so.6") as hostile:
        targets = observed.targets
        hostile.run(f"import glob\nheld = [ctypes.CDLL(it) for it in glob.glob({str(folder)!r} + '/*.so')]")
        until(lambda: targets.status.refused.get("share", 0) >= FILES - PLACES, "all looked at", 200)
        until(lambda: naming.MOST < len(long_paths(targets.status)), "all attached", 200)
        assert len(long_paths(targets.status)) <= PLACES
        page = render(observed.samples()).text
        attached = page.count(b"\naccel_exporter_probe_attached{")
        assert len(NAMES) * (naming.MOST - 1) < attached <= len(NAMES) * naming.MOST + 2 * len(FUNCTIONS)
        assert len(page) < 2 * MIB
        script.run("for n in range(23): lib.cuStreamSynchronize(None)")
        assert 23 == observed.value(CALLS, script.pid, api="cuStreamSynchronize")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="on arm64 the stack does not show that a call has ended")
@pytest.mark.parametrize("fill", [7, MIB, 0x7F0000001000], ids=["a number", "a size", "the address of a page"])
def test_a_call_that_is_left_by_longjmp(compile_library: Callable[[str, str], Path], fill: int) -> None:
    """Later calls of the thread, also from deeper frames, are counted: they are not nested in the abandoned call."""
    if not fill & 4095 and fill >> 32 and not sessions.places():
        pytest.skip("this kernel does not show the address to which probed calls return")
    jumper = compile_library("jumper.so", JUMPER)
    build_standins()
    with observe(layers="driver") as observed, started(observed, Script()) as script:
        script.run(f"jumper = ctypes.CDLL({str(jumper)!r}); lib.standin_busy(None, c_uint64(600 * 10**9))")
        script.run(f"c_uint64.in_dll(jumper, 'fill').value = {fill}")
        script.begin("out = jumper.abandon(lib.cuStreamSynchronize, c_uint64(), c_uint64())")
        leave(observed, script)
        assert -1 == script.answer()
        script.run("lib.standin_busy(None, c_uint64(0)); at = c_uint64()")
        for depth in range(10):
            script.run(f"assert 0 == jumper.deeper(lib.cuMemAlloc_v2, byref(at), c_uint64({MIB}), {depth})")
            script.run(f"assert 0 == jumper.deeper(lib.cuStreamSynchronize, c_uint64(), c_uint64(), {depth})")
        script.run("assert 0 == jumper.deeper(lib.cuMemFree_v2, at, c_uint64(), 3)")

        assert 11 == observed.value(CALLS, script.pid, api="cuStreamSynchronize")
        waited = observed.value("gpu_cuda_sync_wait_seconds", script.pid, api="cuStreamSynchronize")
        assert waited and 10 == sum(waited.counts)
        assert 10 * MIB == observed.value("gpu_cuda_memory_allocations_bytes_total", script.pid, memory="device")
        assert 9 * MIB == observed.value("gpu_cuda_memory_usage_bytes", script.pid, memory="device")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the library is for the address space of x86-64")
def test_another_program_in_the_middle_of_a_call(compile_library: Callable[[str, str], Path]) -> None:
    """Calls of a program that was run in a call are not nested in that call, also if its stack was above theirs."""
    replacer = compile_library("replacer.so", REPLACER)
    build_standins()
    with observe(layers="driver") as observed, started(observed, Script()) as script:
        script.run("lib.standin_busy(None, c_uint64(600 * 10**9))")
        script.begin(replaced(replacer, "lib.cuStreamSynchronize"))
        leave(observed, script)
        until(lambda: script.pid not in observed.collector.ledger, "the exec noticed")
        script.run("lib = ctypes.CDLL('libcuda.so.1')")
        script.run(f"for _ in range(23): lib.cuStreamSynchronize(None), new(lib.cuMemAlloc_v2, size({MIB}))")

        waited = observed.value("gpu_cuda_sync_wait_seconds", script.pid, api="cuStreamSynchronize")
        assert waited and 23 == sum(waited.counts)
        assert 23 * MIB == observed.value("gpu_cuda_memory_allocations_bytes_total", script.pid, memory="device")


BLOCKED = """
libc = ctypes.CDLL(None)
lib.standin_busy(None, c_uint64(600 * 10**9))
def sleeping():
    states = [open(f"/proc/self/task/{it}/stat").read().rsplit(") ")[1][0] for it in os.listdir("/proc/self/task")]
    return states.count("S")
def block(count):
    threads = [c_uint64() for _ in range(count)]
    for number, it in enumerate(threads, 1):
        assert 0 == libc.pthread_create(byref(it), None, lib.cuStreamSynchronize, None)
        while sleeping() < number:
            time.sleep(0.001)
    return threads
def cancel(threads):
    for it in threads:
        assert 0 == libc.pthread_cancel(it) and 0 == libc.pthread_join(it, None)
"""
ROWS = 32
THREADS = f"""
turn = threading.Lock()
def allocate():
    with turn: made.append(new(lib.cuMemAlloc_v2, size({MIB})))
def stay():
    allocate(); go.wait()
def all_at_once(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for it in threads: it.start()
    return threads
"""


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    constants, entries = Cuda.constants, Cuda.entries
    monkeypatch.setattr(Cuda, "constants", lambda self: constants(self) | {"flights_most": ROWS})
    monkeypatch.setattr(Cuda, "entries", lambda self: entries(self) | {"in_flight": ROWS})
    build_standins()


@pytest.mark.usefixtures("few_rows")
def test_idle_threads_leave_room() -> None:
    """More threads than the table has rows allocate one after the other and stay: nothing is lost."""
    with observe(layers="driver") as observed, Script() as job:
        started(observed, job)
        job.run(THREADS + f"made = []; go = threading.Event(); threads = all_at_once(stay, {2 * ROWS})")
        until(lambda: job.run("out = len(made)") == 2 * ROWS, "all have allocated")
        assert {} == observed.lost
        assert 2 * ROWS * MIB == observed.value("gpu_cuda_memory_usage_bytes", job.pid, memory="device")
        job.run("go.set(); [it.join() for it in threads]")


@pytest.mark.usefixtures("few_rows")
def test_memory_of_calls_that_are_not_remembered() -> None:
    """Usage is absent where a call on memory found no room; calls that leave memory alone change nothing."""
    with observe(layers="driver") as observed, Script() as job:
        started(observed, job).run(THREADS + "made = []; allocate()")
        job.run(BLOCKED + f"\nthreads = block({ROWS})")
        assert observed.lost["in_flight_lost"]
        assert MIB == observed.value("gpu_cuda_memory_usage_bytes", job.pid, memory="device")
        job.run("[it.join() for it in all_at_once(allocate, 1)]; cancel(threads)")
        assert 2 == job.run("out = len(made)")
        assert MIB == observed.value("gpu_cuda_memory_allocations_bytes_total", job.pid, memory="device")
        assert observed.value("gpu_cuda_memory_usage_bytes", job.pid, memory="device") is None


def test_threads_that_are_cancelled_in_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of one process take at most half of the table of calls in flight, and give it back when they end."""
    constants, entries = Cuda.constants, Cuda.entries
    monkeypatch.setattr(Cuda, "constants", lambda self: constants(self) | {"flights_most": ROWS})
    monkeypatch.setattr(Cuda, "entries", lambda self: entries(self) | {"in_flight": ROWS})
    build_standins()
    with observe(layers="driver") as observed, started(observed, Script()) as hostile, Script() as victim:
        started(observed, victim)
        for _ in range(2):
            hostile.run(BLOCKED + "\nthreads = block(40)")
            assert ROWS // 2 == observed.collector.object.globals()["flights"]
            victim.run(f"held = [new(lib.cuMemAlloc_v2, size({MIB})) for n in range(23)]")
            victim.run("for it in held[1:]: lib.cuMemFree_v2(it)")
            victim.run("lib.cuMemFree_v2(held[0])")
            hostile.run("cancel(threads)")
            until(lambda: not observed.collector.object.globals()["flights"], "the ends of the threads noticed")
            assert [] == observed.kernel("in_flight", hostile.pid)
        assert {"in_flight_lost": 2 * (40 - ROWS // 2)} == observed.lost
        assert 46 * MIB == observed.value("gpu_cuda_memory_allocations_bytes_total", victim.pid, memory="device")
        assert 0 == observed.value("gpu_cuda_memory_usage_bytes", victim.pid, memory="device")
        assert [0, 1] == [observed.value("gpu_cuda_seen_from_start", it.pid) for it in (hostile, victim)]
        hostile.run("lib.standin_busy(None, c_uint64(0))\nfor n in range(23): lib.cuStreamSynchronize(None)")
        waited = observed.value("gpu_cuda_sync_wait_seconds", hostile.pid, api="cuStreamSynchronize")
        assert 23 == sum(waited.counts)
        assert 80 + 23 == observed.value(CALLS, hostile.pid, api="cuStreamSynchronize")


FLOOD = """
launches = [getattr(lib, f"cu{name}{variant}") for variant in ("", "_ptsz")
            for name in ("LaunchKernel", "LaunchKernelEx", "LaunchCooperativeKernel", "GraphLaunch")]
for device in range(64):
    new(lib.cuCtxCreate_v2, 0, device)
    for launch in launches: launch(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
"""


def test_no_process_takes_the_rows_of_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes that launch in each way on each of 64 devices fill no table of counts: another one has its own."""
    monkeypatch.setenv("SOFTGPU_DEVICES", "64")
    build_standins()
    with observe(layers="driver") as observed, ExitStack() as stack:
        greedy = [stack.enter_context(started(observed, Script())) for _ in range(4)]
        other = stack.enter_context(started(observed, Script()))
        for script in greedy:
            script.run(FLOOD)
        other.run("for n in range(23): lib.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)")
        assert 23 == observed.value(LAUNCHES, other.pid)
        assert sum(observed.values(LAUNCHES, greedy[0].pid).values()) == 6 * 64  # the first one found room for all
        assert observed.value(FULL, map="cuda_launches") > 0


def test_rows_of_errors_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors for which the table had no room do not use up the share of their process: later ones count."""
    entries = Cuda.entries
    monkeypatch.setattr(Cuda, "entries", lambda self: entries(self) | {"errors": 128})
    build_standins()
    fail = "for code in range({}, {}):\n    lib.standin_fail(b'cuMemFree_v2', code); lib.cuMemFree_v2(c_uint64(1))"
    with observe(layers="driver") as observed, started(observed, Script()) as other:
        with started(observed, Script()) as odd:
            odd.run(fail.format(1000, 1199))
            other.run(fail.format(1000, 1199))
            assert 0 == len(observed.values(ERRORS, other.pid))
        until(lambda: not observed.kernel("errors", odd.pid), "the rows of the ended process are free")
        time.sleep(1)  # a full table is not tried for a while
        other.run("for n in range(23): lib.cuMemFree_v2(c_uint64(1))")
        assert [23] == list(observed.values(ERRORS, other.pid).values())
