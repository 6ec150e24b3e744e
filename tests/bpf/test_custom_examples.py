"""The examples in deploy/custom-probes count what their metrics describe."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.bpf import usdt
from exporter.bpf.elf import Elf
from tests.bpf.custom_node import Caller, Observed, attached, bcc_missing, kernel_headers, observe, put
from tests.support import PATIENCE, until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="custom probes", on="real software")]

EXAMPLES = Path(__file__).parents[2] / "deploy" / "custom-probes"
PYTHON = Path("/usr/bin/python3").resolve()
MIB = 1 << 20


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> str:
    if missing := bcc_missing():
        pytest.skip(f"no bcc: {missing}; apt-get install python3-bpfcc")
    return kernel_headers(tmp_path_factory.mktemp("headers"))


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with one of the examples, as root would copy it there."""
    code, meaning = ((EXAMPLES / f"{request.param}{suffix}").read_text() for suffix in (".c", ".yaml"))
    put(tmp_path, request.param, code, meaning)
    return tmp_path


def test_all_have_a_test() -> None:
    """No example goes without one."""
    tested = {"torch_allocator", "python_gil", "block_latency", "python_gc"}
    assert tested == {path.stem for path in EXAMPLES.glob("*.c")} == {path.stem for path in EXAMPLES.glob("*.yaml")}


TORCH = """
int _ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator6mallocEPPvamP11CUstream_st(
    void *self, void **pointer, signed char device, unsigned long size, void *stream) { return device + size; }
"""
C10 = """
struct device { signed char type, index; };
int _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(
    void *pointer, long size, unsigned long allocated, unsigned long reserved, struct device device)
    { return device.type; }
"""


@pytest.mark.parametrize("folder", ["torch_allocator"], indirect=True)
def test_torch_allocator(folder: Path, headers: str, compile_library: Callable[[str, str], Path]) -> None:
    """23 requests of 1 MiB on GPU 3 are 23 MiB there; the totals are those last reported, of CUDA only."""
    cuda, core = compile_library("libc10_cuda.so", TORCH), compile_library("libc10.so", C10)
    malloc = "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator6mallocEPPvamP11CUstream_st"
    report = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
    with observe(folder, headers) as observed, Caller(cuda) as tensors, Caller(core) as totals:
        assert [] == observed.problems()
        attached(observed, cuda, 1)
        attached(observed, core, 1)
        tensors.call(malloc, 23, 0, 0, 3, MIB, 0)
        totals.call(report, 1, 0, MIB, 5 * MIB, 20 * MIB, 1 | 3 << 8)
        totals.call(report, 1, 0, MIB, 4 * MIB, 22 * MIB, 1 | 3 << 8)
        totals.call(report, 1, 0, MIB, 9 * MIB, 99 * MIB, 0)
        place = {"pid": str(tensors.pid), "device": "3"}
        until(lambda: observed.value("site_torch_allocator_requests_total", **place) == 23, "23 requests")
        assert 23 * MIB == observed.value("site_torch_allocator_requested_bytes_total", **place)

        def seen(metric: str) -> list[tuple[str, int]]:
            found = observed.values(f"site_torch_allocator_{metric}_bytes", pid=str(totals.pid))
            return [(it.labels["device"], it.value) for it in found]

        until(lambda: seen("allocated") == [("3", 4 * MIB)], "the totals")  # what is read next may be older
        until(lambda: seen("reserved") == [("3", 22 * MIB)], "the totals")


SPIN = """
import sys, threading, time
def spin():
    while True:
        pass
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[1] == "spin":
    threading.Thread(target=spin, daemon=True).start()
for _ in range(23):
    time.sleep(0.001)
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("folder", ["python_gil"], indirect=True)
def test_python_gil(folder: Path, headers: str) -> None:
    """A thread that sleeps 23 times waits 23 times; beside one that computes, about a switch interval (5 ms) each."""
    with Elf.open(PYTHON) as elf:
        if not elf.functions(["PyEval_RestoreThread"]):
            pytest.skip("this Python has its interpreter in a library")
    with observe(folder, headers) as observed:
        alone, beside = (gil_waits(observed, how) for how in ("alone", "spin"))
    assert 23 <= sum(alone) <= 26  # reading and printing take it too
    assert sum(alone[11:]) <= 3
    assert sum(beside[11:]) >= 5  # of 2 ms or more; nearly all on a machine that is not busy


def read_again(observed: Observed) -> None:
    """Waits until what was counted before this call has been read: the next reading may have begun before."""
    [probe] = observed.collector.probes
    for _ in range(2):
        until(lambda before=probe.view.at: probe.view.at != before, "read")


def gil_waits(observed: Observed, how: str) -> list[int]:
    """Waits of the script by bucket, without those of its start."""
    with subprocess.Popen(
        [PYTHON, "-c", SPIN, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        attached(observed, PYTHON, 1)

        def counts() -> list[int]:
            value = observed.value("site_python_gil_wait_duration_seconds", pid=str(process.pid))
            return [*value.counts] if value else [0] * 25

        read_again(observed)
        before = counts()
        print("go", file=process.stdin, flush=True)
        process.stdout.readline()
        until(lambda: sum(counts()) >= sum(before) + 23, "23 waits")
        process.kill()
        return [now - then for now, then in zip(counts(), before, strict=True)]


@pytest.mark.usefixtures("tracefs")
@pytest.mark.parametrize("folder", ["block_latency"], indirect=True)
def test_block_latency(folder: Path, headers: str, tmp_path: Path) -> None:
    """23 synchronous writes of a block past the page cache are at least 23 requests of that device, and take time."""
    path = Path(__file__).with_name(f".block-latency-{os.getpid()}")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_DSYNC)
    except OSError:
        pytest.skip("this file system takes no direct writes")
    device = os.fstat(descriptor).st_dev
    try:
        if not Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").exists():
            pytest.skip("this file system is on no block device")
        with observe(folder, headers) as observed, mmap.mmap(-1, 4096) as block:
            assert [] == observed.problems()

            def writes() -> int:
                found = observed.values("site_block_request_duration_seconds", operation="write")
                return sum(sum(it.value.counts) for it in found)

            before = writes()
            for number in range(23):
                os.pwrite(descriptor, block, 4096 * number)
            until(lambda: writes() >= before + 23, "23 writes")
            found = observed.values("site_block_request_duration_seconds", operation="write")
            assert 0 < sum(it.value.sum for it in found) / writes() < PATIENCE  # others write, too
            assert 0 == observed.value("accel_exporter_custom_lost_total")
    finally:
        os.close(descriptor)
        path.unlink()


GARBAGE = """
import gc, sys
gc.disable()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(23):
    gc.collect(1)
cycles = [[] for _ in range(300000)]
for cycle in cycles:
    cycle.append(cycle)
del cycles, cycle
print(gc.collect(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("folder", ["python_gc"], indirect=True)
def test_python_gc(folder: Path, headers: str) -> None:
    """23 collections are 23, with their generation; a long one is a span with the number of objects."""
    with Elf.open(PYTHON) as elf:
        if not usdt.find(elf, {"python:gc__start"}):
            pytest.skip("this Python was built without USDT probes")
    with (
        subprocess.Popen([PYTHON, "-c", GARBAGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        observe(folder, headers) as observed,
    ):
        assert process.stdin and process.stdout
        process.stdout.readline()
        attached(observed, PYTHON, 2)
        print("go", file=process.stdin, flush=True)
        count, pid = int(process.stdout.readline()), str(process.pid)
        until(lambda: observed.value("site_python_gc_runs_total", pid=pid, generation="1") == 23, "23 runs")
        until(lambda: observed.value("site_python_gc_runs_total", pid=pid, generation="2") == 1, "a full run")
        assert 300_000 <= count <= observed.value("site_python_gc_collected_total", pid=pid)
        until(lambda: any(span.process["pid"] == pid for span in observed.spans), "the span")
        [span] = [span for span in observed.spans if span.process["pid"] == pid]
        assert ("python gc", 2, count) == (
            span.name,
            span.attributes["site.python.gc.generation"],
            span.attributes["site.python.gc.collected"],
        )
        spent = observed.value("site_python_gc_time_seconds_total", pid=pid, generation="2")
        assert abs(spent - (span.end_ns - span.start_ns) / 1e9) < 1e-3
        process.kill()


def test_the_page(headers: str, tmp_path: Path, compile_library: Callable[[str, str], Path]) -> None:
    """The example of docs/custom-probes.md works as it stands there."""
    page = (EXAMPLES.parents[1] / "docs" / "custom-probes.md").read_text()
    code, meaning = (page.split(f"```{kind}\n")[1].split("```")[0] for kind in ("c", "yaml"))
    put(tmp_path, "site_cache", code, meaning)
    library = compile_library(
        "libsitecache.so.1", "int cache_put(int kind, unsigned long size) { return kind + size; }"
    )
    with observe(tmp_path, headers) as observed, Caller(library) as caller:
        assert [] == observed.problems()
        attached(observed, library, 1)
        caller.call("cache_put", 23, 1, 1000)
        place = {"pid": str(caller.pid), "kind": "activations"}
        until(lambda: observed.value("site_cache_puts_bytes_total", **place) == 23_000, "23,000 bytes")
