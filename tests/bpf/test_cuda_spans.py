"""Waits, their histogram, and single calls as spans."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from exporter.model import Distribution, Span
from tests.bpf.cuda_node import MIB, Job, Script, build_standins, observe, started
from tests.bpf.fixtures import each
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="CUDA waits and spans", on="stand-in")]

WAITED = "gpu_cuda_sync_wait_seconds"
DROPPED = "accel_exporter_spans_dropped_total"
MILLISECOND = 1_000_000
ROUNDS = 100


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    build_standins()
    sizes = {"allocation_span_bytes": MIB, "copy_span_bytes": MIB}
    with observe(wait_span_seconds=0.02, spans_per_second=100_000, **sizes) as observed:
        yield observed


script = each(Script)


def spans(observed: Observed, pid: int, count: int) -> list[Span]:
    """The spans of a process, once there are so many."""

    def found() -> list[Span]:
        return [span for span in observed.spans if span.process["pid"] == str(pid)]

    until(lambda: len(found()) >= count, f"{count} spans")
    time.sleep(0.1)  # more than that would have come by now
    assert count == len(found())
    return found()


@pytest.mark.parametrize("call", ["cuStreamSynchronize(None)", "cuStreamSynchronize_ptsz(None)", "cuCtxSynchronize()"])
def test_the_histogram_of_waits(observed: Observed, script: Script, call: str) -> None:
    """Waits of known length are in the right buckets, and their sum is what they took."""
    busy_ms = (70, 70, 140, 270)
    took = script.run(
        "out = []\n"
        f"for ms in {busy_ms}:\n"
        "    begin = time.monotonic(); lib.standin_wait(c_uint64(ms * 1000000))\n"
        f"    lib.{call}; out.append(time.monotonic() - begin)"
    )
    waited = observed.value(WAITED, script.pid, api=call.partition("(")[0])
    assert isinstance(waited, Distribution)
    assert 4 == sum(waited.counts)
    for place, bound in enumerate(waited.bounds):  # a busy machine wakes a thread late
        least, most = sum(it <= bound for it in took), sum(ms / 1000 <= bound for ms in busy_ms)
        assert least <= sum(waited.counts[: place + 1]) <= most
    assert 0.54 <= waited.sum <= sum(took)
    assert (2.0**-20, 2.0**16) == (waited.bounds[0], waited.bounds[-1])


def test_a_wait_that_fails_is_a_wait(observed: Observed, script: Script) -> None:
    """A synchronising call that returns an error counts both as a wait and as an error."""
    before = time.time()
    script.run("lib.standin_fail(b'cuEventSynchronize', 719); lib.cuEventSynchronize(None)")
    assert 1 == sum(observed.value(WAITED, script.pid, api="cuEventSynchronize").counts)
    errors = observed.values("gpu_cuda_api_errors_total", script.pid)
    labels = {"api_layer": "driver", "api": "cuEventSynchronize", "code": "719", "error": "CUDA_ERROR_LAUNCH_FAILED"}
    assert {frozenset(labels.items()): 1} == errors
    newest = observed.value("gpu_cuda_api_last_error_timestamp_seconds", script.pid, code="719")
    assert before - 1 <= newest <= time.time() + 1


CALLS = """
out = []
def timed(call):
    begin = time.time_ns(); call(); out.append((begin, time.time_ns()))
lib.standin_wait(c_uint64(30 * 1000000)); timed(lambda: lib.cuStreamSynchronize(None))
timed(lambda: globals().update(p=new(lib.cuMemAlloc_v2, size(1 << 20))))
h = new(lib.cuMemHostAlloc, size((1 << 20) - 1), 0)
timed(lambda: lib.cuMemcpyDtoH_v2(h, p, size(1 << 21)))
timed(lambda: new(lib.cuMemAlloc_v2, size(1 << 40), check=2))
"""


def test_spans_have_the_right_times(observed: Observed, script: Script) -> None:
    """Spans lie inside the call as its caller timed it, and where nothing came between within 1 ms of that."""
    timed, least = list[tuple[int, int]](), [1 << 62] * 4
    while max(least) > MILLISECOND:  # on a busy machine other threads run between the caller's clock and the call
        assert len(timed) < 4 * ROUNDS, f"nanoseconds between the caller's times and the spans', at least: {least}"
        timed += script.run(CALLS)
        newest = slice(len(timed) - 4, len(timed))
        for call, ((begin, end), span) in enumerate(
            zip(timed[newest], spans(observed, script.pid, len(timed))[newest], strict=True)
        ):
            assert begin - MILLISECOND <= span.start_ns <= span.end_ns <= end + MILLISECOND
            least[call] = min(least[call], max(abs(span.start_ns - begin), abs(end - span.end_ns)))


def test_spans_have_the_right_attributes(observed: Observed, script: Script) -> None:
    """A long wait, a big allocation, a big copy and an error are spans, and what is smaller or shorter is not."""
    thread = script.run("out = threading.get_native_id()")
    script.run(CALLS)
    found = spans(observed, script.pid, 4)
    assert ["cuStreamSynchronize", "cuMemAlloc_v2", "cuMemcpyDtoH_v2", "cuMemAlloc_v2"] == [it.name for it in found]
    for span in found:
        assert thread == span.attributes["thread.id"]
        assert "driver" == span.attributes["gpu.cuda.api_layer"]
        assert span.name == span.attributes["gpu.cuda.api"]
        assert 32 == len(span.trace_id) and 16 == len(span.span_id)
    assert 4 == len({span.trace_id for span in found})
    wait, allocation, copy, failure = (span.attributes for span in found)
    assert "gpu.cuda.memory.bytes" not in wait
    assert (MIB, "device") == (allocation["gpu.cuda.memory.bytes"], allocation["gpu.cuda.memory.type"])
    assert str(allocation["gpu.cuda.memory.address"]).startswith("0x")
    copied = [copy[f"gpu.cuda.memory.copy.{key}"] for key in ("bytes", "direction", "host_memory")]
    assert [2 * MIB, "d2h", "pinned"] == copied
    assert (2, "CUDA_ERROR_OUT_OF_MEMORY") == (failure["gpu.cuda.error.code"], failure["error.type"])
    assert ["", "", "", "CUDA_ERROR_OUT_OF_MEMORY"] == [span.error for span in found]


def test_waits_carry_exemplars(observed: Observed, script: Script) -> None:
    """The bucket of a wait that became a span carries that span's ids."""
    script.run("lib.standin_wait(c_uint64(30 * 1000000)); lib.cuStreamSynchronize(None)")
    [span] = spans(observed, script.pid, 1)
    waited = observed.value(WAITED, script.pid, api="cuStreamSynchronize")
    [(bucket, exemplar)] = waited.exemplars.items()
    assert 1 == waited.counts[bucket]
    assert (span.trace_id, span.span_id) == (exemplar.trace_id, exemplar.span_id)
    assert (span.end_ns - span.start_ns) / 1e9 == pytest.approx(exemplar.value, abs=1e-3)
    assert waited.bounds[bucket - 1] < exemplar.value <= waited.bounds[bucket]


def test_spans_are_limited() -> None:
    """More than so many spans a second are not sent, and counted."""
    build_standins()
    with observe(spans_per_second=10) as observed, started(observed, Script()) as script:
        began = time.monotonic()
        script.run("for _ in range(500): lib.cuMemAlloc_v2(byref(c_uint64()), size(0))")
        seconds = int(time.monotonic() - began) + 2  # at most, into which the calls may fall
        until(lambda: observed.value(DROPPED, reason="rate_limit") >= 500 - 10 * seconds, "spans dropped")
        until(lambda: any(span.process["pid"] == str(script.pid) for span in observed.spans), "spans sent")
        assert sum(span.process["pid"] == str(script.pid) for span in observed.spans) <= 10 * seconds
        assert 500 == observed.value("gpu_cuda_api_errors_total", script.pid, api="cuMemAlloc_v2")


def test_a_process_that_fails_leaves_room_for_the_spans_of_others() -> None:
    """The limit is a process's own: what another sends in the same second comes."""
    build_standins()
    fail = "for _ in range({}): lib.cuMemAlloc_v2(byref(c_uint64()), size(0))"
    with (
        observe(spans_per_second=50) as observed,
        started(observed, Script()) as bad,
        started(observed, Script()) as good,
    ):
        for _ in range(3):  # in any second, the bad one first
            bad.run(fail.format(499))
            good.run(fail.format(7))
        assert 21 == len(spans(observed, good.pid, 21))


def test_errors_of_launches_by_flag() -> None:
    """With --collector.cuda.all-errors failed launches and runtime copies count by code; without, only as calls."""
    build_standins()
    lines = (
        "lib.standin_fail(b'cuLaunchKernel', 400); lib.cuLaunchKernel(*[None] * 11); lib.standin_fail(None, 0)\n"
        "lib.cuLaunchKernel(*[None] * 11)"
    )
    for all_errors in (True, False):
        with observe(all_errors=all_errors) as observed, started(observed, Script()) as script:
            script.run(lines)
            errors = observed.values("gpu_cuda_api_errors_total", script.pid)
            assert ([1] if all_errors else []) == list(errors.values())
            assert 2 == observed.value("gpu_cuda_kernel_launch_calls_total", script.pid, api_layer="driver")


def test_waits_at_both_layers(observed: Observed) -> None:
    """A runtime wait counts under its own name, and under the driver's that it becomes."""
    with started(observed, Job("--gate", "--hold", "--waits", "3", "--wait-ms", "5")) as job:
        job.go()
        job.report()
        waited = {dict(labels)["api"]: sum(it.counts) for labels, it in observed.values(WAITED, job.pid).items()}
        assert {"cudaStreamSynchronize": 3, "cuStreamSynchronize": 3} == waited
