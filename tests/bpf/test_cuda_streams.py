"""Memory that is allocated in the order of a stream, which may be of another GPU than the current context."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bpf.cuda_gpus import Node, by_gpu, fixtures
from tests.bpf.cuda_node import BUILD, MIB, Script, started
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="CUDA work by GPU", on="stand-in")]

USAGE = "gpu_cuda_memory_usage_bytes"
TWO = """
one, two = (new(lib.cuDevicePrimaryCtxRetain, device) for device in (0, 1)); lib.cuCtxSetCurrent(two)
there = new(lib.cuStreamCreate, 0); urgent = new(lib.cuStreamCreateWithPriority, 0, 1); lib.cuCtxSetCurrent(one)
def take(mib, stream): return new(lib.cuMemAllocAsync, size(mib << 20), stream)
"""


node, observed = fixtures()


@pytest.fixture
def job(observed: Observed, node: Node) -> Iterator[Script]:
    """A process of two GPUs; not the first with the library, so that it is seen from its start."""
    with started(observed, Script()), started(observed, Script()) as it:
        node.listed[it.pid] = {0: 64 * MIB, 1: 64 * MIB}
        yield it


def test_a_stream_of_another_device(observed: Observed, job: Script) -> None:
    """Memory is on the device of its stream, and of the current context for the default streams."""
    job.run(TWO)
    job.run("held = take(1, there); take(2, urgent); take(4, None); take(8, c_void_p(1)); take(16, c_void_p(2))")

    assert {"0": 28 * MIB, "1": 3 * MIB} == by_gpu(observed, USAGE, job, memory="pool")
    job.run("lib.cuMemFreeAsync(held, None)")
    assert {"0": 28 * MIB, "1": 2 * MIB} == by_gpu(observed, USAGE, job, memory="pool")


def test_a_stream_from_before_the_second_device(observed: Observed, job: Script) -> None:
    """A stream that was made while the process had one device stays on that one."""
    job.run("one = new(lib.cuCtxCreate_v2, 0, 0); first = new(lib.cuStreamCreate, 0)")
    job.run("two = new(lib.cuCtxCreate_v2, 0, 1); new(lib.cuMemAllocAsync, size(1 << 20), first)")

    assert {"0": MIB} == by_gpu(observed, USAGE, job, memory="pool")


def test_a_stream_that_is_not_known(observed: Observed, job: Script) -> None:
    """Of several devices, memory of a stream that was not seen to be made has no GPU."""
    job.run(TWO)
    assert {2} == {it.device for it in observed.kernel("streams", job.pid)}
    observed.collector.object.maps["streams"].take([job.pid])
    job.run("take(1, there); lib.cuMemAlloc_v2(byref(c_uint64()), size(23))")
    assert ({"": MIB}, {"0": 23}) == tuple(by_gpu(observed, USAGE, job, memory=it) for it in ("pool", "device"))


def test_a_handle_that_is_used_once_more(observed: Observed, job: Script) -> None:
    """The device is that of the newest stream with the handle."""
    job.run(TWO)
    job.run(
        "def some(): return {new(lib.cuStreamCreate, 0).value for _ in range(64)}\n"
        "lib.cuCtxSetCurrent(two); before = some()\n"
        "for it in before: lib.cuStreamDestroy_v2(c_void_p(it))\n"
        "lib.cuCtxSetCurrent(one); take(1, c_void_p((some() & before).pop()))"
    )
    assert {"0": MIB} == by_gpu(observed, USAGE, job, memory="pool")


def test_rows_of_streams_are_given_back(observed: Observed, job: Script) -> None:
    """A stream has a row until it is destroyed or its process ends."""
    job.run(TWO)
    job.run("many = [new(lib.cuStreamCreate, 0) for _ in range(23)]")
    job.run("for it in many[:20]: lib.cuStreamDestroy_v2(it)")
    assert 5 == len(observed.kernel("streams", job.pid))
    job.end()
    until(lambda: not observed.kernel("streams", job.pid), "the rows of the ended process are free")
    assert {} == observed.lost


def test_the_runtime(observed: Observed, node: Node) -> None:
    """Both layers follow the streams that the driver made."""
    both = {str(BUILD / it) for it in ("libcuda.so.1", "libcudart.so.12")}
    with started(observed, Script("libcudart.so.12")) as script:
        node.listed[script.pid] = {0: MIB, 1: MIB}
        script.run("runtime, lib = lib, ctypes.CDLL('libcuda.so.1')")
        until(lambda: observed.attached(script.pid, both), "the driver attached")
        script.run(TWO)
        script.run("new(runtime.cudaMallocAsync, size(1 << 20), there)")

        def usage(layer: str) -> dict[str, object]:
            return by_gpu(observed, USAGE, script, memory="pool", api_layer=layer)

        until(
            lambda: {"1": MIB} == usage("driver"),
            "the driver was attached for others: that this one uses it is noticed",
        )
        assert {"1": MIB} == usage("runtime")
