"""Stream-ordered memory in a capture: nodes of a graph, which take no memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bpf.cuda_node import MIB, Script, build_standins, observe, started
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="CUDA memory", on="stand-in")]

CALLS, ALLOCATED = "gpu_cuda_api_calls_total", "gpu_cuda_memory_allocations_bytes_total"
USAGE, UNSEEN = "gpu_cuda_memory_usage_bytes", "gpu_cuda_memory_frees_unseen_total"
STREAMS = """
new(lib.cuCtxCreate_v2, 0, 0); stream, other = (new(lib.cuStreamCreate, 0) for _ in range(2))
pool, graph = new(lib.cuDeviceGetDefaultMemPool, 0), new(lib.cuGraphCreate, 0)
def take(mib, at): return new(lib.cuMemAllocAsync, size(mib << 20), at)
def begin(): assert lib.cuStreamBeginCapture_v2(stream, 0) == 0
def end(): return lib.cuStreamEndCapture(stream, byref(c_uint64()))
take(1, stream)
"""


@pytest.fixture(scope="module", autouse=True)
def standins() -> None:
    build_standins()


observed = once(observe)


@pytest.fixture
def job(observed: Observed) -> Iterator[Script]:
    """Not the first process with the library, so that it is seen from its start."""
    with started(observed, Script()), started(observed, Script()) as it:
        it.run(STREAMS)
        yield it


@pytest.mark.parametrize(
    "begin",
    [
        "lib.cuStreamBeginCapture(stream)",
        "lib.cuStreamBeginCapture_v2(stream, 0)",
        "lib.cuStreamBeginCapture_v2_ptsz(stream, 0)",
        "lib.cuStreamBeginCaptureToGraph(stream, graph, None, None, size(0), 0)",
    ],
)
def test_allocations(observed: Observed, job: Script, begin: str) -> None:
    """Allocations on a captured stream are calls, and no bytes; after the capture they are memory."""
    for _ in range(3):
        job.run(
            f"assert {begin} == 0\n"
            "take(2, stream); new(lib.cuMemAllocFromPoolAsync, size(4 << 20), pool, stream); assert end() == 0"
        )
    assert MIB == observed.value(USAGE, job.pid, memory="pool") == observed.value(ALLOCATED, job.pid, memory="pool")
    assert 4 == observed.value(CALLS, job.pid, api="cuMemAllocAsync")
    assert 3 == observed.value(CALLS, job.pid, api="cuMemAllocFromPoolAsync")
    job.run("take(8, stream)")
    assert 9 * MIB == observed.value(USAGE, job.pid, memory="pool")
    assert {} == observed.lost


def test_frees(observed: Observed, job: Script) -> None:
    """A free in a capture is a node too. One outside it, of what a graph allocated, is of memory not seen allocated."""
    job.run("begin(); held = [take(2, stream), take(4, stream)]; lib.cuMemFreeAsync(held[0], stream); end()")
    assert {} == observed.by(UNSEEN, job.pid, "memory")
    job.run("assert lib.cuMemFreeAsync(held[1], stream) == 0")
    assert {"pool": 1} == observed.by(UNSEEN, job.pid, "memory")
    assert MIB == observed.value(USAGE, job.pid, memory="pool")


def test_another_stream(observed: Observed, job: Script) -> None:
    """An allocation on another stream meanwhile may be a node: usage is absent until it is freed."""
    job.run("begin(); held = take(2, other); end(); assert lib.cuMemAlloc_v2(byref(c_uint64()), size(23)) == 0")
    assert {"device": 23} == observed.by(USAGE, job.pid, "memory")
    job.run("assert lib.cuMemFreeAsync(held, other) == 0")
    assert {"device": 23, "pool": MIB} == observed.by(USAGE, job.pid, "memory")
    assert {} == observed.by(UNSEEN, job.pid, "memory")


@pytest.mark.parametrize(("code", "taken"), [(901, 2), (904, 2), (908, 0)])
def test_captures_that_end_with_an_error(observed: Observed, job: Script, code: int, taken: int) -> None:
    """A capture that was invalidated, or has streams that did not join again, is over; another thread's goes on."""
    job.run(f"begin(); os.environ['SOFTGPU_FAIL'] = 'cuStreamEndCapture={code}'; assert end() == {code}")
    job.run("take(2, stream)")
    assert (1 + taken) * MIB == observed.value(USAGE, job.pid, memory="pool")


def test_rows_are_given_back(observed: Observed, job: Script) -> None:
    """A captured stream has a row until its capture ends, it is destroyed, or its process ends."""
    for lines, rows in (("begin()", 1), ("end()", 0), ("begin()", 1), ("lib.cuStreamDestroy_v2(stream)", 0)):
        job.run(lines)
        assert rows == len(observed.kernel("captured", job.pid))
    job.run("stream = other; begin()")
    assert 1 == len(observed.kernel("captured", job.pid))
    job.end()
    until(lambda: not observed.kernel("captured", job.pid), "the rows of the ended process are free")
    assert {} == observed.lost


def test_a_capture_from_before_the_probes() -> None:
    """Usage of pools, and no other, is absent once it ends: a graph's allocations have been taken for memory."""
    with Script() as job:
        job.run(STREAMS + "begin()")
        with observe() as observed:
            started(observed, job).run(
                "take(2, stream); assert lib.cuMemAlloc_v2(byref(c_uint64()), size(23)) == 0; end()"
            )
            assert {"device": 23} == observed.by(USAGE, job.pid, "memory")
            assert 2 * MIB == observed.value(ALLOCATED, job.pid, memory="pool")


def test_only_captures_that_allocate_leave_usage_unknown() -> None:
    """One from before the probes in which nothing was allocated changes nothing."""
    with Script() as job:
        job.run(STREAMS + "begin()")
        with observe() as observed:
            started(observed, job).run("assert end() == 0; take(2, stream)")
            assert {"pool": 2 * MIB} == observed.by(USAGE, job.pid, "memory")


def test_a_stream_that_ended_with_its_context(observed: Observed, job: Script) -> None:
    """A new stream that has the handle of one is not captured: what is allocated there is memory."""
    job.run("begin(); context = new(lib.cuCtxGetCurrent); assert lib.cuCtxDestroy_v2(context) == 0")
    assert 1 == len(observed.kernel("captured", job.pid))
    job.run(
        "new(lib.cuCtxCreate_v2, 0, 0); made = [new(lib.cuStreamCreate, 0).value for _ in range(2)]\n"
        "assert stream.value in made; take(2, stream)"
    )
    assert 3 * MIB == observed.value(USAGE, job.pid, memory="pool")


def test_the_runtime() -> None:
    """With the runtime's functions alone its own captures are followed."""
    with observe(layers="runtime") as observed, started(observed, Script("libcudart.so.12")) as job:
        job.run(
            "stream = new(lib.cudaStreamCreate)\n"
            "def take(mib): return new(lib.cudaMallocAsync, size(mib << 20), stream)\n"
            "take(1); assert lib.cudaStreamBeginCapture(stream, 0) == 0; take(2)\n"
            "assert lib.cudaStreamEndCapture(stream, byref(c_uint64())) == 0"
        )
        assert MIB == observed.value(ALLOCATED, job.pid, memory="pool")
        assert 2 == observed.value(CALLS, job.pid, api="cudaMallocAsync")
