"""Captures on the soft GPU: what they record, and what they forbid to the threads of the process."""

from __future__ import annotations

import pytest

from tests.softgpu.process import Start

UNSUPPORTED, INVALIDATED, UNMATCHED, WRONG_THREAD, ILLEGAL_STATE = 900, 901, 903, 908, 401
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
MADE = """
context(); held = new(vp, cu.cuCtxGetCurrent); function = C.create_string_buffer(8)
stream, other, event = (new(vp, cu.cuStreamCreate, 0), new(vp, cu.cuStreamCreate, 0), new(vp, cu.cuEventCreate, 0))
launch = lambda at: cu.cuLaunchKernel(function, *[1] * 6, 0, at, None, None)
graph = vp()
def end(at=None): return cu.cuStreamEndCapture(at or stream, C.byref(graph))
def nodes():
    many = size(); ok(cu.cuGraphGetNodes(graph, None, C.byref(many))); return many.value
def in_thread(work):
    answers = []
    def run(): ok(cu.cuCtxSetCurrent(held)); answers.append(work())
    thread = threading.Thread(target=run); thread.start(); thread.join(); return answers[0]
def exchange(mode): mode = C.c_int(mode); ok(cu.cuThreadExchangeStreamCaptureMode(C.byref(mode))); return mode.value
"""
UNSAFE = {
    "cuMemAlloc_v2": "C.byref(u64()), size(4096)",
    "cuMemAllocManaged": "C.byref(u64()), size(4096), 1",
    "cuMemHostAlloc": "C.byref(u64()), size(4096), 0",
    "cuCtxSynchronize": "",
    "cuEventQuery": "event",
    "cuEventSynchronize": "event",
    "cuStreamSynchronize": "other",
    "cuStreamQuery": "other",
}


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("function", UNSAFE)
def test_in_the_same_thread(start: Start, function: str, mode: int) -> None:
    """A wait and an allocation fail and spoil the capture, unless that, or the thread, is relaxed."""
    call = f"cu.{function}({UNSAFE[function]})"
    process = start()
    code, ended = (0, 0) if mode == RELAXED else (UNSUPPORTED, INVALIDATED)
    begin = f"{MADE}ok(cu.cuStreamBeginCapture_v2(stream, {mode})); ok(launch(stream))"
    assert [code, code, ended, 0] == process.run(f"{begin}\nout = [{call}, {call}, end(), {call}]")
    assert process.run("out = bool(graph.value)") == (ended == 0)
    relaxed = f"out = [exchange({RELAXED}), {call}, exchange({GLOBAL}), end(), nodes()]"
    assert [GLOBAL, 0, RELAXED, 0, 1] == process.run(f"{begin}\n{relaxed}")


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("other", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_in_another_thread(start: Start, mode: int, other: int) -> None:
    """Another thread may not allocate where both it and the capture are in the global mode, as threads are at first."""
    process = start()
    process.run(f"{MADE}ok(cu.cuStreamBeginCapture_v2(stream, {mode}))")
    forbidden = mode == other == GLOBAL
    code, ended = (UNSUPPORTED, INVALIDATED) if forbidden else (0, 0)
    work = f"lambda: (exchange({other}), cu.cuMemAlloc_v2(C.byref(u64()), size(4096)))[1]"
    assert [code, ended] == process.run(f"out = [in_thread({work}), end()]")
    assert ({} if forbidden else {"device": 4096}) == process.counts.memory


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_the_stream_itself(start: Start, mode: int) -> None:
    """A stream is not waited for while it is captured, in any mode."""
    process = start()
    process.run(f"{MADE}ok(cu.cuStreamBeginCapture_v2(stream, {mode})); exchange({RELAXED})")
    calls = "cu.cuStreamQuery(stream), cu.cuStreamSynchronize(stream)"
    assert [UNSUPPORTED, UNSUPPORTED, INVALIDATED, 0, 0] == process.run(f"out = [{calls}, end(), {calls}]")


def test_streams_that_join(start: Start) -> None:
    """A stream that waits for an event of a capture becomes part of it, until that ends; its nodes are in the graph."""
    process = start(SOFTGPU_KERNEL_NS=10**9)
    join = "cu.cuEventRecord(event, stream), cu.cuStreamWaitEvent(other, event, 0)"
    codes = process.run(
        f"{MADE}ok(cu.cuStreamBeginCapture_v2(stream, 0)); ok(launch(stream))\n"
        f"out = [{join}, launch(other), launch(other), end(other), end(), nodes(), end(), end(other)]"
    )
    assert [0, 0, 0, 0, UNMATCHED, 0, 3, ILLEGAL_STATE, ILLEGAL_STATE] == codes
    busy = "out = [cu.cuStreamQuery(stream), cu.cuStreamQuery(other), launch(other), cu.cuStreamQuery(other)]"
    assert [0, 0, 0, 600] == process.run(busy)
    ended = "ok(cu.cuStreamWaitEvent(other, event, 0)); ok(launch(other)); out = end(other)"
    assert ILLEGAL_STATE == process.run(ended)


def test_ends(start: Start) -> None:
    """A capture ends in the thread where it began, unless it is relaxed; with its stream it ends too."""
    process = start()
    process.run(f"{MADE}ok(cu.cuStreamBeginCapture_v2(stream, {THREAD_LOCAL}))")
    assert [WRONG_THREAD, 0, ILLEGAL_STATE] == process.run("out = [in_thread(end), end(), end()]")
    process.run(f"ok(cu.cuStreamBeginCapture_v2(stream, {RELAXED}))")
    assert [0, ILLEGAL_STATE] == process.run("out = [in_thread(end), end()]")
    process.run("ok(cu.cuStreamBeginCapture_v2(stream, 0)); out = cu.cuStreamBeginCapture_v2(stream, 0)")
    assert [0, 0] == process.run("ok(cu.cuStreamDestroy_v2(stream)); allocate(4096); out = [launch(other), 0]")
