"""Contexts of the soft GPU after their end: as handles, and where they are still current."""

from __future__ import annotations

from tests.softgpu.process import Start
from tests.softgpu.story import CONTEXT

INVALID_VALUE, INVALID_CONTEXT, CONTEXT_IS_DESTROYED = 1, 201, 709
USE = """
function = C.create_string_buffer(8); host, many = C.create_string_buffer(8), size()
context(); target = allocate(8); ok(cu.cuCtxPopCurrent_v2(None))
def use():
    number, found, at = C.c_int(), u64(), target
    cu.cuMemAlloc_v2(C.byref(found), size(1)); range_ = cu.cuMemGetAddressRange_v2(None, None, found)
    cu.cuMemFree_v2(found)
    return [cu.cuMemAlloc_v2(C.byref(found), size(1)), range_, cu.cuCtxGetDevice(C.byref(number)),
            cu.cuCtxSynchronize(), cu.cuStreamSynchronize(None), cu.cuStreamQuery_ptsz(None),
            cu.cuMemcpyHtoD_v2(at, host, size(8)), cu.cuMemsetD8_v2(at, 0, size(8)),
            cu.cuLaunchKernel(function, *[1] * 6, 0, *[None] * 3), cu.cuEventCreate(C.byref(found), 0),
            cu.cuStreamCreate(C.byref(found), 0), cu.cuMemHostAlloc(C.byref(found), size(8), 0),
            cu.cuModuleLoadData(C.byref(found), b""),
            cu.cuMemAllocAsync(C.byref(found), size(1), None), cu.cuMemGetInfo_v2(C.byref(many), C.byref(many)),
            cu.cuCtxGetApiVersion(None, C.byref(number)), cu.cuCtxGetLimit(C.byref(many), 0)]
"""
IN_THREAD = """
def in_thread(*steps):
    answers = []; go, done = threading.Semaphore(0), threading.Semaphore(0)
    def work():
        for step in steps: go.acquire(); answers.append(step()); done.release()
    threading.Thread(target=work, daemon=True).start()
    def step(): go.release(); done.acquire(); return answers[-1]
    return step
"""


def test_destroyed_twice(start: Start) -> None:
    """The second cuCtxDestroy() fails and gives nothing back, also after other contexts were made."""
    process = start()
    codes = process.run(
        "first = context(); before = unused(); second = context(); allocate(MIB)\n"
        "out = [cu.cuCtxDestroy_v2(second), unused() - before, cu.cuCtxDestroy_v2(second), unused() - before]\n"
        "third = context(); out += [cu.cuCtxDestroy_v2(second), before - unused()]\n"
        "out += [cu.cuCtxDestroy_v2(None), cu.cuCtxDestroy_v2(third), cu.cuCtxDestroy_v2(first)]"
    )
    assert [0, 0, INVALID_CONTEXT, 0, INVALID_CONTEXT, CONTEXT, INVALID_CONTEXT, 0, 0] == codes


def test_handle_of_a_destroyed_context(start: Start) -> None:
    """A destroyed context cannot become current, and nothing about it can be read."""
    process = start()
    codes = process.run(
        "kept, ended = context(), context(); ok(cu.cuCtxDestroy_v2(ended)); version = C.c_uint()\n"
        "out = [cu.cuCtxSetCurrent(ended), cu.cuCtxPushCurrent_v2(ended), cu.cuCtxEnablePeerAccess(ended, 0),"
        " cu.cuCtxGetApiVersion(ended, C.byref(version)), cu.cuCtxGetApiVersion(kept, C.byref(version)),"
        " new(vp, cu.cuCtxGetCurrent).value == kept.value]"
    )
    assert [*[INVALID_CONTEXT] * 4, 0, True] == codes


def test_destroyed_where_it_is_current(start: Start) -> None:
    """Another thread's current context stays current after its end, and calls there fail until it is replaced."""
    process = start()
    process.run(
        f"{USE}{IN_THREAD}held, other = context(), context()\n"
        "def bind(): return cu.cuCtxSetCurrent(held)\n"
        "def current(): return new(vp, cu.cuCtxGetCurrent).value == held.value\n"
        "step = in_thread(bind, use, use, current, lambda: cu.cuCtxSetCurrent(other), use)"
    )
    assert [0, [0] * 17] == process.run("out = [step(), step()]")
    assert {CONTEXT_IS_DESTROYED} == set(process.run("ok(cu.cuCtxDestroy_v2(held)); out = step()"))
    assert [True, 0, [0] * 17] == process.run("out = [step(), step(), step()]")


def test_destroyed_below_the_current_one(start: Start) -> None:
    """A context that was destroyed below the current one is current again after a pop, and is popped in its turn."""
    process = start()
    codes = process.run(
        f"{USE}below, above = context(), context(); ok(cu.cuCtxDestroy_v2(below)); old = vp()\n"
        "out = [use(), cu.cuCtxPopCurrent_v2(C.byref(old)), use(), cu.cuCtxPopCurrent_v2(C.byref(old)),"
        " old.value == below.value, use()]"
    )
    assert [[0] * 17, 0, [CONTEXT_IS_DESTROYED] * 17, 0, True, [INVALID_CONTEXT] * 17] == codes


def test_primary_context_of_nobody(start: Start) -> None:
    """A primary context that is current works while it is retained, and then again."""
    process = start()
    codes = process.run(
        f"{USE}ok(cu.cuInit(0)); retain = lambda: new(vp, cu.cuDevicePrimaryCtxRetain, 0)\n"
        "ok(cu.cuCtxSetCurrent(retain())); retain(); out = [use()]\n"
        "for _ in range(2): ok(cu.cuDevicePrimaryCtxRelease_v2(0)); out.append(use())\n"
        "retain(); out += [use(), cu.cuDevicePrimaryCtxRelease_v2(0), cu.cuDevicePrimaryCtxRelease_v2(0)]"
    )
    works, destroyed = [0] * 17, [CONTEXT_IS_DESTROYED] * 17
    assert [works, works, destroyed, works, 0, INVALID_CONTEXT] == codes


def test_allocations_while_it_is_destroyed(start: Start) -> None:
    """An allocation in a context that another thread destroys at the same time goes with it or fails: 46 times."""
    process = start()
    codes = process.run(
        "kept, out = context(), set()\n"
        "for _ in range(46):\n"
        "    held = context(); ok(cu.cuCtxPopCurrent_v2(None)); barrier = threading.Barrier(4)\n"
        "    def work():\n"
        "        ok(cu.cuCtxSetCurrent(held)); barrier.wait()\n"
        "        while not (code := cu.cuMemAlloc_v2(C.byref(u64()), size(1))): pass\n"
        "        out.add(code)\n"
        "    workers = [threading.Thread(target=work) for _ in range(3)]\n"
        "    for it in workers: it.start()\n"
        "    barrier.wait(); ok(cu.cuCtxDestroy_v2(held))\n"
        "    for it in workers: it.join()\n"
        "out = list(out)"
    )
    assert [CONTEXT_IS_DESTROYED] == codes
    assert ({}, {0: 0}) == (process.counts.memory, process.counts.gpus)


def test_destroyed_by_threads_at_once(start: Start) -> None:
    """One of the threads that destroy a context at the same time does so, the others fail: 230 times."""
    process = start()
    codes = process.run(
        "kept = context(); before = unused(); out = []\n"
        "for _ in range(230):\n"
        "    held = context(); ok(cu.cuCtxPopCurrent_v2(None)); barrier, codes = threading.Barrier(7), []\n"
        "    def destroy(): barrier.wait(); codes.append(cu.cuCtxDestroy_v2(held))\n"
        "    workers = [threading.Thread(target=destroy) for _ in range(7)]\n"
        "    for it in workers: it.start()\n"
        "    for it in workers: it.join()\n"
        "    out.append(sorted(codes))\n"
        "assert before == unused()"
    )
    assert [[0, *[INVALID_CONTEXT] * 6]] * 230 == codes
