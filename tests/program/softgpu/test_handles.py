"""Handles on the soft GPU: each ends once, and what has ended is refused by every function."""

from __future__ import annotations

import pytest

from tests.softgpu.process import Start

INVALID_VALUE, INVALID_HANDLE = 1, 400
ENDS = {
    "stream": ("new(vp, cu.cuStreamCreate, 0)", "cuStreamDestroy_v2", INVALID_HANDLE),
    "event": ("new(vp, cu.cuEventCreate, 0)", "cuEventDestroy_v2", INVALID_HANDLE),
    "pool": ("new(vp, cu.cuMemPoolCreate, place(1))", "cuMemPoolDestroy", INVALID_VALUE),
    "graph": ("new(vp, cu.cuGraphCreate, 0)", "cuGraphDestroy", INVALID_VALUE),
    "executable": ("new(vp, cu.cuGraphInstantiateWithFlags, graph, u64(0))", "cuGraphExecDestroy", INVALID_VALUE),
    "memory": ("new(vp, cu.cuMemCreate, size(2 * MIB), place(1), u64(0))", "cuMemRelease", INVALID_VALUE),
}
USES = {
    "stream": ["cuStreamSynchronize(it)", "cuStreamQuery(it)"],
    "event": [
        "cuEventRecord(it, None)",
        "cuEventQuery(it)",
        "cuEventSynchronize(it)",
        "cuStreamWaitEvent(None, it, 0)",
        "cuEventElapsedTime(C.byref(C.c_float()), it, it)",
    ],
    "pool": [
        "cuMemAllocFromPoolAsync(C.byref(u64()), size(4096), it, None)",
        "cuDeviceSetMemPool(0, it)",
        "cuMemPoolTrimTo(it, size(0))",
        "cuMemPoolGetAttribute(it, 4, C.byref(u64()))",
    ],
    "graph": [
        "cuGraphInstantiateWithFlags(C.byref(vp()), it, u64(0))",
        "cuGraphGetNodes(it, None, C.byref(size()))",
        "cuGraphAddKernelNode(C.byref(vp()), it, None, size(0), None)",
    ],
    "executable": ["cuGraphLaunch(it, None)"],
    "memory": [
        "cuMemMap(reserved, size(2 * MIB), size(0), it, u64(0))",
        "cuMemExportToShareableHandle(C.byref(C.c_int()), it, 1, u64(0))",
        "cuMemGetAllocationPropertiesFromHandle(C.byref((C.c_ubyte * 64)()), it)",
    ],
}
MADE = (
    "context(); graph = new(vp, cu.cuGraphCreate, 0)\n"
    "reserved = new(u64, cu.cuMemAddressReserve, size(4 * MIB), size(0), u64(0), u64(0))\n"
)


@pytest.mark.parametrize("kind", ENDS)
def test_ends(start: Start, kind: str) -> None:
    """A handle is destroyed once; then it, NULL, an address of the program's and one of nothing are none."""
    make, end, code = ENDS[kind]
    process = start()
    process.run(f"{MADE}memory = C.create_string_buffer(4096)\nfor _ in range(23): it = {make}; ok(cu.{end}(it))")
    process.run(f"before = unused(); it = {make}")
    assert [0, *[code] * 4] == process.run(f"out = [cu.{end}(at) for at in (it, it, None, memory, vp(0xdead000))]")
    uses = ", ".join(f"cu.{it}" for it in USES[kind])
    for at in ("it", "vp(C.addressof(memory))", "vp(0xdead000)"):
        assert [code] * len(USES[kind]) == process.run(f"it = {at}; out = [{uses}]")
    assert process.run("out = before == unused()")
    assert {} == process.counts.memory


def test_events_end_with_their_context(start: Start) -> None:
    """The events of a destroyed context are none; those of another one stay."""
    process = start()
    process.run(
        f"{MADE}kept = new(vp, cu.cuEventCreate, 0); other = context()\n"
        "held = [new(vp, cu.cuEventCreate, 0) for _ in range(23)]; ok(cu.cuEventDestroy_v2(held[7]))\n"
        "ok(cu.cuCtxDestroy_v2(other))"
    )
    for it in USES["event"]:
        uses = f"out = [cu.{it} for it in held]"
        assert [INVALID_HANDLE] * 23 == process.run(uses)
    assert [0, [INVALID_HANDLE] * 23, 0, 0] == process.run(
        "out = [cu.cuEventRecord(kept, None), [cu.cuEventDestroy_v2(it) for it in held],"
        " cu.cuEventSynchronize(kept), cu.cuEventDestroy_v2(kept)]"
    )


def test_ends_by_threads_at_once(start: Start) -> None:
    """One of the threads that destroy a stream at the same time does so: 230 times."""
    process = start()
    codes = process.run(
        "held = context(); out = []\n"
        "for _ in range(230):\n"
        "    stream, barrier, codes = new(vp, cu.cuStreamCreate, 0), threading.Barrier(7), []\n"
        "    def end(): barrier.wait(); codes.append(cu.cuStreamDestroy_v2(stream))\n"
        "    workers = [threading.Thread(target=end) for _ in range(7)]\n"
        "    for it in workers: it.start()\n"
        "    for it in workers: it.join()\n"
        "    out.append(sorted(codes))"
    )
    assert [[0, *[INVALID_HANDLE] * 6]] * 230 == codes


def test_a_handle_that_was_retained_is_released_as_often(start: Start) -> None:
    """The memory stays while it is mapped, without a handle; a handle that is retained then is a new one."""
    process = start()
    process.run(
        f"{MADE}before = unused(); handle = new(vp, cu.cuMemCreate, size(2 * MIB), place(1), u64(0))\n"
        "ok(cu.cuMemMap(reserved, size(2 * MIB), size(0), handle, u64(0)))\n"
        "again = new(vp, cu.cuMemRetainAllocationHandle, vp(reserved.value)); assert again.value == handle.value"
    )
    assert [0, 0, INVALID_VALUE] == process.run("out = [cu.cuMemRelease(handle) for _ in range(3)]")
    assert {"vmm": 2 << 20} == process.counts.memory
    process.run("again = new(vp, cu.cuMemRetainAllocationHandle, vp(reserved.value + 4096))")
    assert [0, INVALID_VALUE] == process.run("out = [cu.cuMemRelease(again) for _ in range(2)]")
    process.run("ok(cu.cuMemUnmap(reserved, size(2 * MIB))); assert before == unused()")
    assert {} == process.counts.memory


def test_mappings(start: Start) -> None:
    """A handle is mapped where addresses are reserved and free, and no further than it has memory."""
    process = start()
    process.run(
        f"{MADE}handle = new(vp, cu.cuMemCreate, size(2 * MIB), place(1), u64(0))\n"
        "heap = C.create_string_buffer(b'kept', 6 * MIB)\n"
        "inside = (C.addressof(heap) + 2 * MIB) // (2 * MIB) * 2 * MIB\n"
        "def mapped(at, bytes=2 * MIB, offset=0):\n"
        "    return cu.cuMemMap(u64(at), size(bytes), size(offset), handle, u64(0))\n"
        "at = reserved.value"
    )
    wrong = "mapped(inside), mapped(at, 4 * MIB), mapped(at, 0), mapped(at, 4096), mapped(at, 2 * MIB, 4096)"
    assert [INVALID_VALUE] * 6 == process.run(f"out = [{wrong}, mapped(at + 3 * MIB)]")
    assert [0, INVALID_VALUE, INVALID_VALUE] == process.run("out = [mapped(at), mapped(at), mapped(at + MIB)]")
    assert process.run("out = heap.value == b'kept' and not any(heap.raw[4:])")
    assert [INVALID_VALUE] * 4 == process.run(
        "out = [cu.cuMemUnmap(u64(at), size(it)) for it in (0, MIB, 4 * MIB)]\n"
        "out.append(cu.cuMemAddressFree(reserved, size(4 * MIB)))"
    )
    assert [0, INVALID_VALUE] == process.run("out = [cu.cuMemUnmap(reserved, size(2 * MIB)) for _ in range(2)]")
    ends = "out = [cu.cuMemAddressFree(u64(at), size(it)) for it in (2 * MIB, 4 * MIB, 4 * MIB)]"
    assert [INVALID_VALUE, 0, INVALID_VALUE] == process.run(ends)
    assert INVALID_VALUE == process.run("out = mapped(at)")
    process.run("ok(cu.cuMemRelease(handle))")
    assert {} == process.counts.memory


def test_registrations_that_overlap(start: Start) -> None:
    """Host memory that is registered in part is not registered again."""
    process = start()
    process.run("context(); memory = C.create_string_buffer(1 << 16); at = C.addressof(memory)")
    register = "cu.cuMemHostRegister_v2(vp(at + {}), size({}), 0)"
    calls = ", ".join(register.format(*it) for it in ((8192, 4096), (0, 1 << 16), (4096, 4097), (0, 8192)))
    assert [0, 712, 712, 0] == process.run(f"out = [{calls}]")
    assert {"pinned_host": 4096 + 8192} == process.counts.memory


ISSUED = {
    "cuLaunchKernel": "function, *[1] * 6, 0, stream, None, None",
    "cuLaunchHostFunc": "stream, C.CFUNCTYPE(None, vp)(lambda _: None), None",
    "cuMemAllocAsync": "C.byref(u64()), size(4096), stream",
    "cuMemFreeAsync": "memory, stream",
    "cuMemcpyHtoDAsync_v2": "memory, b'0123', size(4), stream",
    "cuMemsetD8Async": "memory, 0, size(4), stream",
    "cuEventRecord": "event, stream",
    "cuStreamWaitEvent": "stream, event, 0",
    "cuGraphLaunch": "executable, stream",
    "cuStreamGetPriority": "stream, C.byref(C.c_int())",
    "cuStreamIsCapturing": "stream, C.byref(C.c_int())",
}


@pytest.mark.parametrize("function", ISSUED)
@pytest.mark.parametrize("end", ["cu.cuStreamDestroy_v2(stream)", "cu.cuCtxDestroy_v2(held); context()"])
def test_nothing_is_issued_to_an_ended_stream(start: Start, function: str, end: str) -> None:
    """A stream ends with its context too. Its handle may be that of another stream afterwards."""
    process = start()
    process.run(
        f"{MADE}held = new(vp, cu.cuCtxGetCurrent); function = C.create_string_buffer(8)\n"
        "memory = new(u64, cu.cuMemAllocAsync, size(4096), None); stream = new(vp, cu.cuStreamCreate, 0)\n"
        "executable = new(vp, cu.cuGraphInstantiateWithFlags, graph, u64(0))"
    )
    process.run(f"{end}; event = new(vp, cu.cuEventCreate, 0)\ndef call(): return cu.{function}({ISSUED[function]})")
    assert INVALID_HANDLE == process.run("out = call()")
    assert 0 == process.run("stream = new(vp, cu.cuStreamCreate, 0); out = call()")


def test_priorities(start: Start) -> None:
    """A priority outside the range becomes its end."""
    process = start()
    process.run("context(); value = C.c_int()")
    for wanted, got in ((-9, -5), (-5, -5), (-1, -1), (0, 0), (3, 0)):
        made = f"stream = new(vp, cu.cuStreamCreateWithPriority, 1, {wanted})"
        assert got == process.run(f"{made}; ok(cu.cuStreamGetPriority(stream, C.byref(value))); out = value.value")
