"""Frees on the soft GPU: memory is freed once, by the function that goes with its allocation, at its first byte."""

from __future__ import annotations

import pytest

from tests.softgpu.process import Start

INVALID_VALUE = 1
KINDS = {
    "device": ("cu.cuMemAlloc_v2, size(4096)", "cuMemFree_v2"),
    "managed": ("cu.cuMemAllocManaged, size(4096), 1", "cuMemFree_v2"),
    "pool": ("cu.cuMemAllocAsync, size(4096), None", "cuMemFreeAsync"),
    "pinned_host": ("cu.cuMemHostAlloc, size(4096), 0", "cuMemFreeHost"),
}
FUNCTIONS = """
def free(name, address):
    return getattr(cu, name)(u64(address), *([None] if name == "cuMemFreeAsync" else []))
"""
MAPPED = """
handle = new(vp, cu.cuMemCreate, size(2 * MIB), place(1), u64(0))
address = new(u64, cu.cuMemAddressReserve, size(2 * MIB), size(0), u64(0), u64(0)).value
ok(cu.cuMemMap(u64(address), size(2 * MIB), size(0), handle, u64(0)))
"""
REGISTERED = """
buffer = C.create_string_buffer(1 << 16); address = C.addressof(buffer)
ok(cu.cuMemHostRegister_v2(vp(address), size(1 << 16), 0))
"""
IMPORTED = """
handle = (C.c_ubyte * 64).from_buffer_copy(bytes.fromhex(handle))
class Handle(C.Structure): _fields_ = [("bytes", C.c_ubyte * 64)]
address = new(u64, cu.cuIpcOpenMemHandle_v2, Handle(handle), 1).value
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", ["cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeHost"])
def test_frees(start: Start, kind: str, function: str) -> None:
    """A free takes the whole allocation, once; an address inside it, or the wrong function, frees nothing."""
    call, own = KINDS[kind]
    process = start()
    process.run(f"{FUNCTIONS}context(); address = new(u64, {call}).value")
    inside = "out = [free(name, address + at) for name in ('{}', '{}') for at in (1, 512, 4095, 4096)]"
    assert [INVALID_VALUE] * 8 == process.run(inside.format(function, own))
    assert {kind: 4096} == process.counts.memory
    fits = (function == "cuMemFreeHost") == (own == "cuMemFreeHost")
    assert [0 if fits else INVALID_VALUE, INVALID_VALUE] == process.run(
        f"out = [free({function!r}, address) for _ in range(2)]"
    )
    assert ({} if fits else {kind: 4096}) == process.counts.memory
    assert [INVALID_VALUE if fits else 0, INVALID_VALUE] == process.run(
        f"out = [free({own!r}, address) for _ in range(2)]"
    )
    assert ({}, {0: 0} if kind in ("device", "pool") else {}) == (process.counts.memory, process.counts.gpus)


@pytest.mark.parametrize(("made", "kind"), [(MAPPED, "vmm"), (REGISTERED, "pinned_host")])
def test_not_allocated(start: Start, made: str, kind: str) -> None:
    """Mapped addresses and registered memory are not freed: they are unmapped and unregistered, with all they hold."""
    process = start()
    size = {"vmm": 2 << 20, "pinned_host": 1 << 16}[kind]
    process.run(f"{FUNCTIONS}context(); {made}".replace("; \n", "\n"))
    frees = "out = [free(name, address) for name in ('cuMemFree_v2', 'cuMemFreeAsync', 'cuMemFreeHost')]"
    assert [INVALID_VALUE] * 3 == process.run(frees)
    assert {kind: size} == process.counts.memory
    process.run(
        "ok(cu.cuMemUnmap(u64(address), size(2 * MIB))); ok(cu.cuMemRelease(handle))"
        if kind == "vmm"
        else "ok(cu.cuMemHostUnregister(vp(address)))"
    )
    assert {} == process.counts.memory


def test_without_its_context(start: Start) -> None:
    """Memory is freed while another context is current, one that is destroyed, or none."""
    process = start()
    process.run(
        f"{FUNCTIONS}kept = context(); held = [allocate(4096).value for _ in range(3)]\n"
        "host = [new(u64, cu.cuMemHostAlloc, size(4096), 0).value for _ in range(3)]\n"
        "def free_both(): return [free('cuMemFree_v2', held.pop()), free('cuMemFreeHost', host.pop())]"
    )
    assert [0, 0] == process.run("context(1); out = free_both()")
    assert [0, 0] == process.run(
        "ended = context(); thread = threading.Thread(target=cu.cuCtxDestroy_v2, args=[ended])\n"
        "thread.start(); thread.join(); assert cu.cuCtxSynchronize() == 709; out = free_both()"
    )
    assert [0, 0] == process.run(
        "while not cu.cuCtxPopCurrent_v2(None): pass\nassert cu.cuCtxSynchronize() == 201; out = free_both()"
    )
    assert {} == process.counts.memory


def test_memory_of_another_process(start: Start) -> None:
    """Memory that another process exports is closed, not freed, and stays that one's."""
    one, other = start(), start()
    handle = one.run(
        "context(); held = allocate(4096); handle = (C.c_ubyte * 64)()\n"
        "ok(cu.cuIpcGetMemHandle(handle, held)); out = bytes(handle).hex()"
    )
    other.run(f"{FUNCTIONS}context(); handle = {handle!r}{IMPORTED}")
    frees = "out = [free(name, address) for name in ('cuMemFree_v2', 'cuMemFreeAsync', 'cuMemFreeHost')]"
    assert [INVALID_VALUE] * 3 == other.run(frees)
    assert {"imported": 4096} == other.counts.memory
    close = "out = [cu.cuIpcCloseMemHandle(u64(address)) for _ in range(2)]"
    assert [0, INVALID_VALUE] == other.run(close)
    assert ({}, {"device": 4096}) == (other.counts.memory, one.counts.memory)


def test_end_of_a_context(start: Start) -> None:
    """All that was allocated or registered in a context goes with it, and is freed no more."""
    process = start()
    process.run(
        f"{FUNCTIONS}held = context(); addresses = [new(u64, cu.cuMemAlloc_v2, size(n + 1)).value for n in range(23)]\n"
        "addresses += [new(u64, cu.cuMemHostAlloc, size(n + 1), 0).value for n in range(23)]\n"
        f"{REGISTERED}ok(cu.cuCtxDestroy_v2(held)); context()"
    )
    assert ({}, {0: 0}) == (process.counts.memory, process.counts.gpus)
    frees = "out = {free(name, it) for it in [*addresses, address] for name in ('cuMemFree_v2', 'cuMemFreeHost')}"
    assert [INVALID_VALUE] == process.run(frees.replace("out = {", "out = list({") + ")")
    assert 713 == process.run("out = cu.cuMemHostUnregister(vp(address))")
    process.run("allocate(1)")
    assert {"device": 1} == process.counts.memory


def test_frees_by_threads_at_once(start: Start) -> None:
    """One of the threads that free an address at the same time does so, the others fail: 230 times."""
    process = start()
    codes = process.run(
        "held, before = context(), unused(); out = []\n"
        "for _ in range(230):\n"
        "    address, barrier, codes = allocate(4096), threading.Barrier(7), []\n"
        "    def free():\n"
        "        ok(cu.cuCtxSetCurrent(held)); barrier.wait(); codes.append(cu.cuMemFree_v2(address))\n"
        "    workers = [threading.Thread(target=free) for _ in range(7)]\n"
        "    for it in workers: it.start()\n"
        "    for it in workers: it.join()\n"
        "    out.append(sorted(codes))\n"
        "assert before == unused()"
    )
    assert [[0, *[INVALID_VALUE] * 6]] * 230 == codes
