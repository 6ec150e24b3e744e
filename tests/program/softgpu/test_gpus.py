"""The soft GPU itself: driver and NVML, of several processes, agree on what is on which GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.softgpu.counts import Counts
from tests.softgpu.process import Process, Start
from tests.softgpu.story import CONTEXT, Story
from tests.standins import nvml
from tests.support import until

GIB = 1 << 30
WHOLE = 80 * GIB
OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 2, 3, 100
UUID = nvml.UUID
STORY = """
nvml.nvmlInit()
def story():
    time.sleep(0.03)  # what it has read serves for 20 ms
    gpus = []
    for n in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(n)
        memory, v2 = nvml.nvmlDeviceGetMemoryInfo(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
        held = {it.pid: it.usedGpuMemory for it in nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu)}
        assert (memory.total, memory.free, memory.used) == (v2.total, v2.free, v2.used)
        gpus.append((nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetName(gpu), memory.total, memory.free, held))
    return gpus
def busy(n): return nvml.nvmlDeviceGetUtilizationRates(nvml.nvmlDeviceGetHandleByIndex(n)).gpu
events = nvml.nvmlEventSetCreate()
for n in range(nvml.nvmlDeviceGetCount()):
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(n), nvml.nvmlEventTypeXidCriticalError, events)
def xid(wait_ms):
    try: event = nvml.nvmlEventSetWait_v2(events, wait_ms)
    except nvml.NVMLError_Timeout: return None
    return nvml.nvmlDeviceGetUUID(event.device), event.eventData
"""
DRIVER_STORY = """
def uuid(n):
    raw = new(C.c_ubyte * 16, cu.cuDeviceGetUuid_v2, n); text = bytes(raw).hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
def name(n):
    text = C.create_string_buffer(64); ok(cu.cuDeviceGetName(text, 64, n)); return text.value.decode()
"""


def test_memory_of_two_processes(start: Start) -> None:
    """Memory of one process, its context too, is not there for the other; both find the same number of free bytes."""
    one, other = start(), start()
    one.run("context(); held = allocate(60 * GIB)")
    left = WHOLE - 60 * GIB - 2 * CONTEXT
    assert [left, OUT_OF_MEMORY, OUT_OF_MEMORY] == other.run(
        f"context(); out = [unused(), code(allocate, 60 * GIB), code(allocate, {left} + 1)]"
    )
    assert [0, 0] == [*other.run(f"allocate({left}); out = [unused()]"), one.run("out = unused()")]
    assert OUT_OF_MEMORY == other.run("out = code(context)")
    assert 60 * GIB == one.run("ok(cu.cuMemFree_v2(held)); out = unused()")
    assert 0 == other.run("out = code(allocate, 60 * GIB)")
    assert WHOLE == other.run("out = sum(code(context, 1) for _ in range(2)); out = unused()") + 2 * CONTEXT


def test_memory_after_the_end(start: Start) -> None:
    """Memory of a process that is killed, or executes another program, is free at once."""
    watching = start()
    watching.run("context()")
    for end in ("kill", "exec"):
        holding = start()
        holding.run("context(); allocate(79 * GIB)")
        assert 0 == watching.run("out = unused()")
        if end == "kill":
            holding.kill()
            assert 0 == watching.run("out = code(allocate, 79 * GIB)")  # without a look before
            watching.run("ok(cu.cuCtxDestroy_v2(new(vp, cu.cuCtxGetCurrent))); context()")
        else:
            holding.begin("os.execv('/bin/cat', ['cat'])")
            until(lambda: watching.run("out = unused()") == WHOLE - CONTEXT, "memory of before exec")


def test_memory_of_a_child(start: Start, tmp_path: Path) -> None:
    """The child of a fork holds nothing of its parent's, frees nothing of it and leaves it when it ends."""
    one, other = start(), start()
    other.run("context()")
    left = WHOLE - 7 * GIB - 2 * CONTEXT
    child = one.run(
        "context(); held = allocate(7 * GIB); out = child = os.fork()\n"
        "if not child: cu.cuMemFree_v2(held); code(allocate, 5 * GIB); time.sleep(3600)"
    )
    until(lambda: Counts(tmp_path, child).calls("cuMemAlloc_v2"), "the child's calls")
    assert left == other.run("out = unused()")
    one.run("os.kill(child, 9); os.waitpid(child, 0)")
    assert left == other.run("out = unused()")
    one.kill()
    assert WHOLE - CONTEXT == other.run("out = unused()")


def test_memory_to_the_last_byte(start: Start) -> None:
    """Seven processes allocate at the same time until nothing is left: together exactly what there is."""
    bytes_ = 7 * CONTEXT + 1000 * 4096
    processes = [start(SOFTGPU_BYTES=bytes_) for _ in range(7)]
    for process in processes:
        process.run("context()")
    for process in processes:
        process.begin("out = 0\nwhile not code(allocate, 4096): out += 1")
    assert 1000 == sum(process.answer() for process in processes)
    assert 0 == processes[0].run("out = unused()")


def test_kills_amid_allocations(start: Start, tmp_path: Path) -> None:
    """46 processes are killed while they allocate and free, two at a time: all memory is free afterwards."""
    parent = start()
    parent.run(
        "def work():\n"
        "    child = os.fork()\n"
        "    if child: return child\n"
        "    context()\n"
        "    while True: ok(cu.cuMemFree_v2(allocate(GIB)))"
    )
    for _ in range(23):
        both = parent.run("out = [work(), work()]")
        until(lambda both=both: all(Counts(tmp_path, it).calls("cuMemFree_v2") > 23 for it in both), "allocations")
        parent.run(f"for child in {both}: os.kill(child, 9)\nfor child in {both}: os.waitpid(child, 0)")
    assert WHOLE - CONTEXT == parent.run("context(); out = unused()")


def test_memory_without_a_folder(libraries: Path) -> None:
    """Processes that count nowhere have GPUs of their own."""
    with Process(libraries, None) as one, Process(libraries, None) as other:
        for process in (one, other):
            assert WHOLE - 60 * GIB - CONTEXT == process.run("context(); allocate(60 * GIB); out = unused()")


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("2,0", [2, 0]),
        (f"{UUID.format(3)},1", [3, 1]),
        (f"{UUID.format(11)[:-1]}b", [11]),
        (f"1,{UUID.format(3)[:-1]},0", [1]),  # twelve begin so
        ("1,-1,0", [1]),
        ("1,12,0", [1]),
        ("1,2x,0", [1]),
        (" 1 , 0", [1, 0]),
        ("0,0", []),
        ("GPU-", []),
        ("", []),
    ],
)
def test_visible_gpus(start: Start, visible: str, gpus: list[int]) -> None:
    """CUDA_VISIBLE_DEVICES has numbers and UUIDs, and ends before the first entry that is neither."""
    process = start(CUDA_VISIBLE_DEVICES=visible, SOFTGPU_DEVICES=12)
    process.run(DRIVER_STORY)
    count = "count = C.c_int(); out = [cu.cuInit(0), cu.cuDeviceGetCount(C.byref(count)), count.value]"
    assert ([0, 0, len(gpus)] if gpus else [NO_DEVICE, NOT_INITIALIZED, 0]) == process.run(count)
    assert [UUID.format(gpu) for gpu in gpus] == process.run(f"out = [uuid(n) for n in range({len(gpus)})]")


@pytest.fixture
def reading(libraries: Path, tmp_path: Path) -> Iterator[Process]:
    """A process that sees the exporter's NVML."""
    nvml.build()
    (tmp_path / "nvml").mkdir()
    scenario = nvml.Scenario(tmp_path / "nvml")
    Story(scenario).follow(tmp_path)
    variables = {**scenario.environment(), "LD_LIBRARY_PATH": f"{nvml.LIBRARY.parent}:{libraries}"}
    with Process(libraries, None, **variables) as process:
        process.run(STORY)
        yield process


def test_one_story(start: Start, reading: Process) -> None:
    """Driver, NVML of a job and NVML of the exporter: UUIDs, names, memory, processes, use and Xids."""
    one, other = start(), start(SOFTGPU_KERNEL_NS=20_000_000)
    for job in (one, other):
        job.run(STORY + DRIVER_STORY)
    one.run("context(0); allocate(7 * MIB); context(1); allocate(9 * MIB)")
    other.run("context(1); allocate(11 * GIB)")
    held = [{one.pid: CONTEXT + (7 << 20)}, {one.pid: CONTEXT + (9 << 20), other.pid: CONTEXT + 11 * GIB}]
    expected = [
        [UUID.format(n), "soft GPU", WHOLE, WHOLE - sum(held[n].values()), {str(k): v for k, v in held[n].items()}]
        for n in (0, 1)
    ]
    for process in (one, other, reading):
        assert expected == process.run("out = story()")
    older = "out = {it.pid: it.usedGpuMemory for it in nvml.nvmlDeviceGetComputeRunningProcesses_v2(gpu)}"
    assert expected[1][4] == one.run(f"gpu = nvml.nvmlDeviceGetHandleByPciBusId('00000000:19:00.0'); {older}")
    assert expected[1][:4] == other.run(
        "out = [uuid(1), name(1), new(size, cu.cuDeviceTotalMem_v2, 1).value, unused()]"
    )

    other.run(
        "function = C.create_string_buffer(8)\ndef launch(): ok(cu.cuLaunchKernel(function, *[1] * 6, 0, *[None] * 3))"
    )
    for process in (one, reading):
        assert [0, 0] == process.run("out = [busy(0), busy(1)]")
    for process in (one, reading):
        until(lambda by=process: other.run("[launch() for _ in range(23)]") or by.run("out = busy(1)") > 50, "work")
        assert 0 == process.run("out = busy(0)")

    for process in (one, reading):
        assert process.run("out = xid(10)") is None
    other.run("os.environ['SOFTGPU_FAIL'] = 'cuCtxSynchronize=700'; cu.cuCtxSynchronize()")
    for process in (one, reading):
        assert [UUID.format(1), 31] == process.run("out = xid(60_000)")
        assert process.run("out = xid(300)") is None
    other.kill()
    for process in (one, reading):
        assert [
            expected[0],
            [*expected[1][:3], WHOLE - held[1][one.pid], {str(one.pid): held[1][one.pid]}],
        ] == process.run("out = story()")
