"""Processes that use several GPUs: what each thread does counts for the device of its own context."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.bpf.cuda_gpus import Node, by_gpu, fixtures
from tests.bpf.cuda_node import MIB, Script, build_standins, observe, started
from tests.bpf.observed import Observed
from tests.support import until
from tests.unit.resolve.gpus import WHOLE

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="CUDA work by GPU", on="stand-in")]

LAUNCHES = "gpu_cuda_kernel_launch_calls_total"
LAUNCH = "lib.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)"
TWO = """
contexts = [new(lib.cuDevicePrimaryCtxRetain, device) for device in (0, 1)]
def work(device, launches, mib):
    lib.cuCtxSetCurrent(contexts[device])
    for _ in range(launches):
        launch()
    for _ in range(mib):
        new(lib.cuMemAlloc_v2, size(1 << 20))
    lib.cuMemcpyHtoD_v2(c_uint64(64), b"x" * 4096, size(1000 * (device + 1)))
    lib.cuStreamSynchronize(None)
threads = [threading.Thread(target=work, args=args) for args in ((0, 23, 3), (1, 1009, 5))]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


node, observed = fixtures()


@pytest.fixture
def job(observed: Observed, node: Node) -> Iterator[Script]:
    """A process that launches by `launch()`; not the first with the library, so that it is seen from its start."""
    with started(observed, Script()), started(observed, Script()) as it:
        it.run(f"def launch(): assert {LAUNCH} == 0")
        yield it


def test_one_gpu(observed: Observed, node: Node, job: Script) -> None:
    """Series of a process on one GPU have that GPU once NVML lists it; bytes beyond the probes' are unattributed."""
    job.run("context = new(lib.cuCtxCreate_v2, 0, 0); new(lib.cuMemAlloc_v2, size(3 << 20))")
    job.run("for _ in range(23): launch()")
    assert {"": 23} == by_gpu(observed, LAUNCHES, job)
    node.listed[job.pid] = {2: 3 * MIB + 700}

    assert {"2": 23} == by_gpu(observed, LAUNCHES, job)
    assert {"2": 700} == by_gpu(observed, "gpu_cuda_memory_unattributed_bytes", job)
    assert {"2": 1} == by_gpu(observed, "gpu_cuda_seen_from_start", job)
    assert {WHOLE.format(2)} == {
        it.labels.get("gpu_uuid") for it in observed.samples() if it.labels.get("pid") == str(job.pid)
    }
    node.listed[job.pid] = {2: MIB}
    assert {} == by_gpu(observed, "gpu_cuda_memory_unattributed_bytes", job)


def test_two_gpus(observed: Observed, node: Node, job: Script) -> None:
    """Launches, bytes, copies and waits of two threads are each their own device's, exactly."""
    node.listed[job.pid] = {0: 4 * MIB, 1: 5 * MIB}
    job.run(TWO)

    assert {"0": 23, "1": 1009} == by_gpu(observed, LAUNCHES, job)
    used = by_gpu(observed, "gpu_cuda_memory_usage_bytes", job, api_layer="driver", memory="device")
    assert {"0": 3 * MIB, "1": 5 * MIB} == used
    assert {"0": 1000, "1": 2000} == by_gpu(observed, "gpu_cuda_memory_copies_bytes_total", job)
    assert {"0": 1, "1": 1} == {
        gpu: sum(waited.counts)  # type: ignore[attr-defined]
        for gpu, waited in by_gpu(observed, "gpu_cuda_sync_wait_seconds", job).items()
    }
    assert {"0": MIB, "1": 0} == by_gpu(observed, "gpu_cuda_memory_unattributed_bytes", job)


def test_two_gpus_that_nvml_contradicts(observed: Observed, node: Node, job: Script) -> None:
    """If NVML lists a process on other GPUs than its variables, no GPU is named and nothing is lost."""
    node.listed[job.pid] = {2: 0, 3: 0}
    job.run(TWO)

    assert {"": 1032} == by_gpu(observed, LAUNCHES, job)
    assert {} == by_gpu(observed, "gpu_cuda_memory_unattributed_bytes", job)


def test_a_second_gpu_since_nvml_listed_the_process() -> None:
    """A list that is older than the use of a GPU gives no labels: contexts older than the probes may be elsewhere."""
    node = Node()
    with started_before(node) as (observed, late):
        allocated = "gpu_cuda_memory_allocations_bytes_total"
        late.run("assert lib.cuMemAlloc_v2(byref(c_uint64()), size(23)) == 0")
        assert {"0": 23} == by_gpu(observed, allocated, late)
        node.listed_at = time.monotonic()
        late.run("new(lib.cuCtxCreate_v2, 0, 1); new(lib.cuMemAlloc_v2, size(100))")
        assert {"": 123} == by_gpu(observed, allocated, late)
        node.listed[late.pid], node.listed_at = {0: 0, 1: 0}, None
        assert {"": 123} == by_gpu(observed, allocated, late)


def test_a_list_from_before_the_probes() -> None:
    """Of a process that was there before them no older list gives labels."""
    node = Node()
    node.listed_at = time.monotonic()
    with started_before(node) as (observed, late):
        late.run("launch()")
        assert {"": 1} == by_gpu(observed, LAUNCHES, late)
        node.listed_at = None
        assert {"0": 1} == by_gpu(observed, LAUNCHES, late)


@contextmanager
def started_before(node: Node) -> Iterator[tuple[Observed, Script]]:
    """Run a process that has a context on its first GPU, and then a collector of its own."""
    build_standins()
    with Script() as late:
        late.run(f"new(lib.cuCtxCreate_v2, 0, 0)\ndef launch(): assert {LAUNCH} == 0")
        node.listed[late.pid] = {0: 0}
        with observe(gpus=node.gpus) as observed:
            yield observed, started(observed, late)


def test_before_and_after_the_second(observed: Observed, node: Node, job: Script) -> None:
    """Calls before the first use of a second device count for the first one; a thread without a context has none."""
    node.listed[job.pid] = {0: 0, 1: 0}
    job.run("first = new(lib.cuCtxCreate_v2, 0, 1)\nfor _ in range(7): launch()")
    job.run("second = new(lib.cuCtxCreate_v2, 0, 0)\nfor _ in range(20): launch()")
    job.run("lib.cuCtxSetCurrent(first)\nfor _ in range(100): launch()")
    job.run("thread = threading.Thread(target=launch); thread.start(); thread.join()")

    assert {"1": 107, "0": 20, "": 1} == by_gpu(observed, LAUNCHES, job)


RACE = """
barrier, here = threading.Barrier(2), []
def use(device):
    barrier.wait()
    lib.cuDevicePrimaryCtxRetain(byref(c_uint64()), device)
for n in range(100):
    child = os.fork()
    if not child:
        racing = [threading.Thread(target=use, args=(device,)) for device in (0, 1)]
        for thread in racing: thread.start()
        for thread in racing: thread.join()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_two_threads_take_the_first_two_devices_at_once(observed: Observed) -> None:
    """The number of processes with several devices is exact all the same, and falls to 0 when they have ended."""

    def several() -> int:
        return int(observed.collector.object.globals()["with_several"])

    until(lambda: several() == 0, "the ends of jobs of other tests noticed")
    with started(observed, Script()) as script:
        script.run("for device in (0, 1): new(lib.cuDevicePrimaryCtxRetain, device)")
        assert 1 == several()
        script.run(RACE)
        until(lambda: several() <= 1, "the ends of all but one noticed")
        assert 1 == several()
    until(lambda: several() == 0, "the end of the last one noticed")


def test_frees_are_where_the_memory_was(observed: Observed, node: Node, job: Script) -> None:
    """A free by a thread on another device takes from the device that had the memory; so does the process's end."""
    node.listed[job.pid] = {0: 0, 1: 0}
    job.run("one, two = (new(lib.cuDevicePrimaryCtxRetain, device) for device in (0, 1))")
    job.run(
        "lib.cuCtxSetCurrent(one); memory = new(lib.cuMemAlloc_v2, size(1 << 20)); new(lib.cuMemAlloc_v2, size(64))"
    )
    job.run("lib.cuCtxSetCurrent(two); lib.cuMemFree_v2(memory); new(lib.cuMemAlloc_v2, size(128))")

    def usage() -> dict[str, object]:
        return by_gpu(observed, "gpu_cuda_memory_usage_bytes", job, api_layer="driver")

    assert {"0": 64, "1": 128} == usage()
    job.end()
    until(lambda: {"0": 0, "1": 0} == usage(), "the end of the process")


POOLS = """
one, two = (new(lib.cuDevicePrimaryCtxRetain, device) for device in (0, 1)); lib.cuCtxSetCurrent(one)
def place(*words):  # in an array, as a CUmemLocation is, and the end of what is before it in CUmemPoolProps
    return (ctypes.c_int * 24)(*words)
def made(type, id): return new(lib.cuMemPoolCreate, place(1, 0, type, id))
def take(mib, pool): return new(lib.cuMemAllocFromPoolAsync, size(mib << 20), pool, None)
"""


@pytest.mark.parametrize(
    "pool",
    [
        "made(1, 1)",
        "new(lib.cuDeviceGetDefaultMemPool, 1)",
        "new(lib.cuDeviceGetMemPool, 1)",
        "new(lib.cuMemGetMemPool, place(1, 1), 1)",
    ],
)
def test_a_pool_of_another_device(observed: Observed, node: Node, job: Script, pool: str) -> None:
    """Memory that is taken from a pool is on the pool's device, whatever is current when it is taken and freed."""
    node.listed[job.pid] = {0: 4 * MIB, 1: 9 * MIB}
    job.run(POOLS)
    job.run(f"pool = {pool}; held = [take(3, pool), take(5, pool)]; new(lib.cuMemAllocAsync, size(1 << 20), None)")

    def usage() -> dict[str, object]:
        return by_gpu(observed, "gpu_cuda_memory_usage_bytes", job, api_layer="driver", memory="pool")

    assert {"0": MIB, "1": 8 * MIB} == usage()
    assert {"0": 3 * MIB, "1": MIB} == by_gpu(observed, "gpu_cuda_memory_unattributed_bytes", job)
    job.run("lib.cuMemFreeAsync(held[0], None); lib.cuCtxSetCurrent(two); new(lib.cuMemAllocAsync, size(64), None)")
    assert {"0": MIB, "1": 5 * MIB + 64} == usage()


def test_a_pool_on_a_device_without_a_context(observed: Observed, node: Node, job: Script) -> None:
    """Memory of a pool on another device than the only one of a process is not that one's."""
    node.listed[job.pid] = {2: 4 * MIB}
    job.run(POOLS.replace("(0, 1)); ", "(0, 0)); "))
    job.run("take(1, made(1, 1)); take(3, made(1, 0)); new(lib.cuMemAlloc_v2, size(23))")

    assert {"2": 3 * MIB, "": MIB} == by_gpu(
        observed, "gpu_cuda_memory_usage_bytes", job, api_layer="driver", memory="pool"
    )
    assert {"2": MIB - 23} == by_gpu(observed, "gpu_cuda_memory_unattributed_bytes", job)


@pytest.mark.parametrize("contexts", ["(0, 1)", "(0, 0)"])
@pytest.mark.parametrize("location", [2, 3, 4])
def test_pools_of_host_memory(observed: Observed, node: Node, job: Script, location: int, contexts: str) -> None:
    """Memory of such pools is pinned memory of no GPU and outlives the context; other series keep their GPU."""
    node.listed[job.pid] = {number: 4 * MIB for number in ((0, 1) if contexts == "(0, 1)" else (0,))}
    job.run(POOLS.replace("(0, 1)); ", f"{contexts}); "))
    job.run(f"held = [take(mib, made({location}, 1)) for mib in (3, 5)]; new(lib.cuMemAlloc_v2, size(23))")

    def usage(memory: str) -> dict[str, object]:
        return by_gpu(observed, "gpu_cuda_memory_usage_bytes", job, api_layer="driver", memory=memory)

    assert ({}, {"": 8 * MIB}, {"0": 23}) == (usage("pool"), usage("pinned_host"), usage("device"))
    assert 4 * MIB - 23 == by_gpu(observed, "gpu_cuda_memory_unattributed_bytes", job)["0"]
    job.run("lib.cuMemFreeAsync(held[0], None); lib.cuDevicePrimaryCtxReset_v2(0)")
    until(lambda: usage("device").get("0") == 0, "the device swept")
    assert {"": 5 * MIB} == usage("pinned_host")


@pytest.mark.parametrize("lost", ["lib.cuMemPoolDestroy(pool)", "new(lib.cuMemPoolCreate, place(2, 0, 1, 1))"])
def test_a_pool_that_is_not_known(observed: Observed, node: Node, job: Script, lost: str) -> None:
    """A pool that was destroyed, and one with pages that move, has no GPU; nor has one that nobody saw."""
    node.listed[job.pid] = {0: 0, 1: 0}
    job.run(POOLS)
    job.run(f"pool = made(1, 1)\nmade_now = {lost}\ntake(2, made_now if isinstance(made_now, c_uint64) else None)")

    assert {"": 2 * MIB} == by_gpu(observed, "gpu_cuda_memory_usage_bytes", job, api_layer="driver", memory="pool")


def test_rows_of_pools_are_given_back(observed: Observed, job: Script) -> None:
    """A pool has a row until it is destroyed or its process ends; a destruction that fails takes none."""
    job.run(POOLS)
    job.run("pools = [made(1, n % 2) for n in range(23)] + [new(lib.cuDeviceGetDefaultMemPool, 1)]")
    assert 24 == len(observed.kernel("pools", job.pid))
    job.run("out = [lib.cuMemPoolDestroy(it) for it in pools[3:]]")
    assert 4 == len(observed.kernel("pools", job.pid))
    job.end()
    until(lambda: not observed.kernel("pools", job.pid), "the rows of the ended process are free")
    assert {} == observed.lost


def test_spans_name_the_gpu(observed: Observed, node: Node, job: Script) -> None:
    """The span of an allocation names the GPU that it was made on."""
    node.listed[job.pid] = {0: 0, 1: 0}
    job.run("one, two = (new(lib.cuDevicePrimaryCtxRetain, device) for device in (0, 1)); lib.cuCtxSetCurrent(two)")
    observed.samples()
    job.run("new(lib.cuMemAlloc_v2, size(1 << 27)); pool = new(lib.cuDeviceGetDefaultMemPool, 0)")
    job.run("new(lib.cuMemAllocFromPoolAsync, size(1 << 27), pool, None)")

    def gpus() -> list[tuple[str, str]]:
        processes = [it.process for it in observed.spans if it.process["pid"] == str(job.pid)]
        return [(it["gpu"], it["gpu_uuid"]) for it in processes]

    until(lambda: len(gpus()) == 2, "the spans")
    assert [(str(number), WHOLE.format(number)) for number in (1, 0)] == gpus()
