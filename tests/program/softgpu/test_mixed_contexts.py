"""Driver and runtime in one thread of the soft GPU: each works in the context that the other has made current."""

from __future__ import annotations

from tests.softgpu.process import Start

MADE = """
ok(cu.cuInit(0)); rt = runtime(); first, second = (new(vp, cu.cuDevicePrimaryCtxRetain, it) for it in (0, 1))
def device(): return new(C.c_int, rt.cudaGetDevice).value
def malloc(): return new(vp, rt.cudaMalloc, size(MIB))
def current(): return new(vp, cu.cuCtxGetCurrent).value
def in_thread(work):
    answers = []; thread = threading.Thread(target=lambda: answers.append(work())); thread.start(); thread.join()
    return answers[0]
"""


def test_the_drivers_context(start: Start) -> None:
    """A context that the driver makes current chooses the runtime's device, and cudaSetDevice() replaces it."""
    process = start()
    process.run(f"{MADE}ok(rt.cudaSetDevice(0)); malloc(); ok(cu.cuCtxSetCurrent(second))")
    assert [1, True] == process.run("malloc(); out = [device(), current() == second.value]")
    assert {0: 1 << 20, 1: 1 << 20} == process.counts.gpus
    assert [0, True] == process.run("ok(rt.cudaSetDevice(0)); malloc(); out = [device(), current() == first.value]")
    assert {0: 2 << 20, 1: 1 << 20} == process.counts.gpus


def test_a_context_of_the_programs_own(start: Start) -> None:
    """The runtime works in it too, and what it allocates there ends with it."""
    process = start()
    process.run(f"{MADE}own = context(1); [malloc() for _ in range(23)]")
    assert {1: 23 << 20} == process.counts.gpus
    assert [1, True] == process.run("out = [device(), current() == own.value]")
    process.run("ok(cu.cuCtxDestroy_v2(own))")
    assert {1: 0} == process.counts.gpus
    assert [0, True] == process.run("malloc(); out = [device(), current() == first.value]")


def test_threads(start: Start) -> None:
    """A thread begins without a context: the driver's call may give it one, else the runtime's first call does."""
    process = start()
    process.run(f"{MADE}ok(rt.cudaSetDevice(1))")
    process.run("def work(): ok(cu.cuCtxSetCurrent(second)); malloc(); return device()")
    assert [1, 0] == process.run("out = [in_thread(work), in_thread(device)]")
    assert {1: 1 << 20} == process.counts.gpus
    assert [0, True] == process.run("out = in_thread(lambda: (malloc(), [device(), current() == first.value])[1])")
    assert {0: 1 << 20, 1: 1 << 20} == process.counts.gpus
