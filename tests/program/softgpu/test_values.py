"""Streams of the soft GPU that write values to memory and wait for them, and small functions that programs call."""

from __future__ import annotations

import pytest

from tests.softgpu.process import Start

INVALID_VALUE, NOT_READY, MANAGED = 1, 600, 1
MADE = """
context(); at = allocate(64); ok(cu.cuMemsetD32_v2(at, 5, size(16)))
stream, event = new(vp, cu.cuStreamCreate, 1), new(vp, cu.cuEventCreate, 0)
def write(value): return cu.cuStreamWriteValue32_v2(None, at, value, 0)
def read(): to = (C.c_uint32 * 16)(); ok(cu.cuMemcpyDtoH_v2(to, at, size(64))); return list(to)
"""


@pytest.mark.parametrize(
    ("bits", "operation", "value", "met"),
    [(32, 0, 6, 6), (32, 0, 6, 7), (32, 1, 7, 7), (32, 2, 8, 9), (64, 1, 7 << 40, 7 << 40), (64, 0, 9 << 33, 10 << 33)],
)
def test_waits(start: Start, bits: int, operation: int, value: int, met: int) -> None:
    """A stream, its context and an event behind a wait are not ready before another stream has written the value."""
    process = start()
    process.run(f"{MADE}ok(cu.cuStreamWaitValue{bits}_v2(stream, at, C.c_uint{bits}({value}), {operation}))")
    process.run("ok(cu.cuEventRecord(event, stream))")
    queries = "[cu.cuStreamQuery(stream), cu.cuEventQuery(event), cu.cuStreamQuery(None)]"
    assert [NOT_READY, NOT_READY, 0] == process.run(f"out = {queries}")
    process.run(
        "held, done = new(vp, cu.cuCtxGetCurrent), []\n"
        "def wait(): ok(cu.cuCtxSetCurrent(held)); done.append([cu.cuStreamSynchronize(stream), read()[0]])\n"
        "thread = threading.Thread(target=wait); thread.start()"
    )
    write = f"cu.cuStreamWriteValue{bits}_v2(None, at, C.c_uint{bits}({met}), 0)"
    assert [[0, met % 2**32]] == process.run(f"ok({write}); thread.join(); out = done")
    assert [[0, 0, 0], 0, 0] == process.run(f"out = [{queries}, cu.cuEventSynchronize(event), cu.cuCtxSynchronize()]")


def test_waits_in_order(start: Start) -> None:
    """Of two waits of a stream both are met, the first one for good."""
    process = start()
    process.run(f"{MADE}for value in (7, 8): ok(cu.cuStreamWaitValue32_v2(stream, at, value, 1))")
    states = [process.run(f"ok(write({value})); out = cu.cuStreamQuery(stream)") for value in (8, 7, 8)]
    assert [NOT_READY, NOT_READY, 0] == states


@pytest.mark.parametrize("call", ["cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2"])
def test_refused(start: Start, call: str) -> None:
    """The address is aligned, and of memory that is not managed."""
    process = start()
    process.run(f"{MADE}managed = new(u64, cu.cuMemAllocManaged, size(64), {MANAGED}).value; at = at.value")
    assert [INVALID_VALUE] * 4 == process.run(
        f"def call(at, flags): return cu.{call}(None, u64(at), 0, flags)\n"
        "out = [call(managed, 0), call(at + 2, 0), call(at + 64, 0), call(at, 4)]"
    )


def test_flags_of_host_memory(start: Start) -> None:
    """The flags are those of the allocation; registered and other memory has none."""
    process = start()
    process.run("context(); held = new(u64, cu.cuMemHostAlloc, size(MIB), 3); buffer = C.create_string_buffer(8192)")
    process.run(
        "ok(cu.cuMemHostRegister_v2(buffer, size(8192), 1)); flags = lambda it: new(C.c_uint, cu.cuMemHostGetFlags, it)"
    )
    assert [3, INVALID_VALUE, INVALID_VALUE] == process.run(
        "out = [flags(held).value, code(flags, buffer), code(flags, allocate(8))]"
    )


def test_names_of_functions(start: Start) -> None:
    """A function has the name with which it was looked up."""
    process = start()
    process.run(
        "context(); module = new(vp, cu.cuModuleLoadData, b''); it = new(vp, cu.cuModuleGetFunction, module, b'add')"
    )
    assert ["add", INVALID_VALUE] == process.run(
        "out = [new(C.c_char_p, cu.cuFuncGetName, it).value.decode(), cu.cuFuncGetName(C.byref(vp()), None)]"
    )


def test_words(start: Start) -> None:
    """Words are filled, and counted by words; a profiler that is started and stopped changes nothing."""
    process = start()
    process.run(
        f"{MADE}ok(cu.cuProfilerStart()); ok(cu.cuMemsetD32_v2(at, 0x01020304, size(3))); ok(cu.cuProfilerStop())"
    )
    assert [0x01020304] * 3 + [5] * 13 == process.run("out = read()")
    assert INVALID_VALUE == process.run("out = cu.cuMemsetD32_v2(at, 0, size(17))")
