"""Programs that call the CUDA driver alone, on the soft GPU: Numba, tinygrad, NVIDIA's cuda-bindings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import ERRORS, counted, in_words, seen
from tests.real.conftest import EXACT, Keeper, Ran, followed
from tests.real.job import Job
from tests.real.releases import BINDINGS, NUMBA, TINYGRAD, Release
from tests.softgpu.story import CONTEXT

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA launches", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA copies", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA waits and spans", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA errors", on="real program on a stand-in"),
]

WAITED = "gpu_cuda_sync_wait_seconds_sum"
FREED = "gpu_cuda_memory_frees_bytes_total"
_KERNEL = "@cuda.jit\ndef add(x):\n    at = cuda.grid(1)\n    if at < x.size: x[at] += 1\n"
_CHECK = "def ok(result):\n    assert not result[0], result\n    return result[1] if len(result) == 2 else result[1:]\n"
of = pytest.mark.releases


@of(NUMBA)
def test_kernels(job: Job, exporter: Exporter, ran: Ran) -> None:
    """A kernel compiled by Numba, launched 230 times on four streams, with pinned, managed and device arrays."""
    job.run(
        f"{_KERNEL}"
        "pinned = cuda.pinned_array(MIB, dtype=np.uint8); managed = cuda.managed_array(1000, dtype=np.float32)\n"
        "streams = [cuda.stream() for _ in range(4)]; arrays = [cuda.device_array(MIB, np.uint8) for _ in range(4)]\n"
        "for n in range(230):\n"
        "    stream, array = streams[n % 4], arrays[n % 4]\n"
        "    array.copy_to_device(pinned, stream=stream); add[MIB // 256, 256, stream](array)\n"
        "    if n % 10 == 0: array.copy_to_host(pinned, stream=stream); stream.synchronize()\n"
        "add[4, 256](managed); cuda.synchronize()"
    )
    found = seen(exporter.scrape(), job.pid)
    assert {"driver": 231} == found["launches"]
    assert {"h2d pinned": 230 << 20, "d2h pinned": 23 << 20} == found["copies"]
    assert {"device": 4 << 20, "managed": 4000, "pinned_host": 1 << 20} == found["memory"]
    ran(job)


@of(NUMBA)
def test_arrays_given_back(job: Job, exporter: Exporter, ran: Ran) -> None:
    """230 arrays on two GPUs, freed by Numba's deferred frees, the rest by the reset of the context."""
    job.run("cuda.current_context()")
    followed(exporter, job)
    job.run(
        "held = [cuda.to_device(np.zeros(1000 + n)) for n in range(115)]\n"
        "with cuda.gpus[1]: other = [cuda.device_array(2 * MIB, np.uint8) for n in range(115)]\n"
        "del held[::2]; cuda.current_context().deallocations.clear()"
    )
    kept = seen(exporter.scrape(), job.pid)["memory"]["device"] - (230 << 20)
    assert 8 * sum(1000 + n for n in range(1, 115, 2)) <= kept < 8 * sum(1000 + n for n in range(115))
    ran(job)
    job.run("del held, other; cuda.close()")
    assert {} == seen(exporter.scrape(), job.pid)["memory"]
    ran(job)


@of(TINYGRAD)
def test_training(job: Job, exporter: Exporter, ran: Ran) -> None:
    """A network trained for 23 steps with Adam: kernels that NVRTC compiles, graphs from the third step on."""
    job.run("Device['CUDA']")
    followed(exporter, job)
    job.run(
        "class Model:\n"
        "    def __init__(self): self.a, self.b = nn.Linear(64, 128), nn.Linear(128, 8)\n"
        "    def __call__(self, x): return self.b(self.a(x).relu())\n"
        "model = Model(); optimiser = nn.optim.Adam(nn.state.get_parameters(model))\n"
        "@TinyJit\n"
        "def step(x):\n"
        "    optimiser.zero_grad(); loss = model(x).square().mean().backward(); optimiser.step()\n"
        "    return loss.realize()\n"
        "for n in range(23): loss = step(Tensor(np.ones((32, 64), np.float32)).realize()).item()\n"
        "Device['CUDA'].synchronize()"
    )
    found = seen(exporter.scrape(), job.pid)
    assert found["launches"]
    assert found["memory"]["device"]
    ran(job)


@of(TINYGRAD)
def test_two_contexts(job: Job, exporter: Exporter, ran: Ran) -> None:
    """Tensors on two GPUs, each with a context that tinygrad creates, and copies between them."""
    job.run("Device['CUDA']")
    followed(exporter, job)
    job.run(
        "a = Tensor(np.ones(MIB, np.float32)).realize()\n"
        "for n in range(23): b = (a + n).to('CUDA:1').contiguous().realize(); c = (b * 2).to('CUDA').realize()\n"
        "c.numpy()\n"
    )
    assert seen(exporter.scrape(), job.pid)["launches"]
    assert 2 == job.counts.calls("cuCtxCreate_v2")
    ran(job)


@of(BINDINGS)
def test_contexts(job: Job, exporter: Exporter, ran: Ran) -> None:
    """Contexts on two GPUs with device, pitched, managed and pinned memory, destroyed with half of it in use."""
    made = job.run(
        f"{_CHECK}"
        "ok(cu.cuInit(0)); contexts, out = [], 0\n"
        "for device in (0, 1, 0):\n"
        "    contexts.append(ok(cu.cuCtxCreate(None, 0, device)))\n"
        "    held = [ok(cu.cuMemAlloc(MIB + n)) for n in range(23)]\n"
        "    pitched = ok(cu.cuMemAllocPitch(1000, 7, 4)); ok(cu.cuMemAllocManaged(5000, 1))\n"
        "    ok(cu.cuMemHostAlloc(4096, 0)); ok(cu.cuMemAllocHost(8192))\n"
        "    for address in held[::2]: ok(cu.cuMemFree(address))\n"
        "    out += sum(MIB + n for n in range(1, 23, 2)) + 7 * 1024\n"
    )
    assert {"device": made, "managed": 15_000, "pinned_host": 3 * 12_288} == seen(exporter.scrape(), job.pid)["memory"]
    ran(job)
    job.run("for context in contexts[:2]: ok(cu.cuCtxDestroy(context))")
    assert {"device": made // 3, "managed": 5000, "pinned_host": 12_288} == seen(exporter.scrape(), job.pid)["memory"]
    job.run("ok(cu.cuCtxDestroy(contexts[2]))")
    assert {} == seen(exporter.scrape(), job.pid)["memory"]
    back = exporter.scrape().total(FREED, pid=str(job.pid), memory="device", implicit="true")
    assert made == back
    ran(job)


@of(BINDINGS)
def test_refusals(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """Calls that fail, 23 of each: no memory left, no context, an address that was never allocated."""
    with Job(release, folder, SOFTGPU_BYTES=CONTEXT + (64 << 20)) as job:
        job.run(
            f"{_CHECK}"
            "ok(cu.cuInit(0))\n"
            "for _ in range(23): assert cu.cuMemAlloc(MIB)[0]\n"
            "ok(cu.cuCtxCreate(None, 0, 0))\n"
            "held = [ok(cu.cuMemAlloc(16 * MIB)) for _ in range(4)]\n"
            "for _ in range(23): assert cu.cuMemAlloc(1)[0]; assert cu.cuMemFree(4096)[0]\n"
        )
        errors = exporter.scrape().by("error", ERRORS, pid=str(job.pid))
        assert {
            "CUDA_ERROR_INVALID_CONTEXT": 23,
            "CUDA_ERROR_OUT_OF_MEMORY": 23,
            "CUDA_ERROR_INVALID_VALUE": 23,
        } == errors
        assert {"device": 64 << 20} == seen(exporter.scrape(), job.pid)["memory"]
        ran(job)


def errors(exporter: Exporter, job: Job) -> dict[tuple[str, str], float]:
    """Calls of a job that returned an error, by function and error."""
    rows = exporter.scrape().rows(ERRORS, pid=str(job.pid))
    return {(labels["api"], labels["error"]): count for labels, count in rows}


@of(NUMBA)
def test_failures(job: Job, exporter: Exporter, keeper: Keeper, ran: Ran) -> None:
    """23 launches, copies and allocations that the driver refuses, then a kernel that fails and ends the context."""
    job.run(
        f"{_KERNEL}"
        "array, host = cuda.device_array(MIB, np.uint8), np.zeros(MIB, np.uint8)\n"
        "add[4, 256](array); cuda.synchronize()\n"
        "def failing(call, fails=''):\n"
        "    os.environ['SOFTGPU_FAIL'] = fails\n"
        "    raised = 0\n"
        "    for _ in range(23):\n"
        "        try: call()\n"
        "        except Exception: raised += 1\n"
        "    os.environ['SOFTGPU_FAIL'] = ''\n"
        "    return raised\n"
    )
    launch, copy = "cuLaunchKernelEx", "cuMemcpyHtoD_v2"
    with Exporter((EXACT, "--collector.cuda.all-errors"), dict(os.environ)) as all_errors:
        all_errors.until(lambda: keeper.observed(all_errors), "the soft driver was not probed")
        assert 23 == job.run(f"out = failing(lambda: add[4, 256](array), '{launch}=701')")
        assert 23 == job.run(f"out = failing(lambda: array.copy_to_device(host), '{copy}=1')")
        assert 23 == job.run("out = failing(lambda: cuda.device_array(MIB, np.uint8), 'cuMemAlloc_v2=2')")
        tried = job.counts.functions["cuMemAlloc_v2"].failures
        assert tried == 2 * 23  # Numba tries again, after it has freed what it can
        refused = {(copy, "CUDA_ERROR_INVALID_VALUE"): 23, ("cuMemAlloc_v2", "CUDA_ERROR_OUT_OF_MEMORY"): tried}
        of_launches = {(launch, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"): 23}
        assert refused == errors(exporter, job)
        assert refused | of_launches == errors(all_errors, job)
        assert 0 == job.run("out = failing(lambda: (add[4, 256](array), cuda.synchronize()))")
        assert 23 == job.run("out = failing(lambda: cuda.synchronize(), 'cuCtxSynchronize=719')")
        assert 23 == job.run("out = failing(lambda: add[4, 256](array))")
        refused[("cuCtxSynchronize", "CUDA_ERROR_LAUNCH_FAILED")] = 23
        of_launches[(launch, "CUDA_ERROR_LAUNCH_FAILED")] = 23
        assert refused == errors(exporter, job)
        assert refused | of_launches == errors(all_errors, job)
    found, shown = counted(job.counts), seen(exporter.scrape(), job.pid)
    assert 46 == found["errors"].pop(launch)
    assert found == shown
    ran.note(in_words(found) + f", and 46 of {launch} with --collector.cuda.all-errors")


@of(NUMBA)
def test_slow_calls(job: Job, exporter: Exporter, ran: Ran) -> None:
    """Calls of the driver that take 20 ms longer, 23 times each: each kind of wait has this duration."""
    job.run(
        f"{_KERNEL}"
        "array, stream, event = cuda.device_array(MIB, np.uint8), cuda.stream(), cuda.event()\n"
        "slow = ('cuStreamSynchronize', 'cuEventSynchronize', 'cuCtxSynchronize')\n"
        "os.environ['SOFTGPU_SLOW'] = ','.join(f'{it}=20000000' for it in slow)\n"
        "for _ in range(23): add[4, 256, stream](array); event.record(stream)\n"
        "for _ in range(23): stream.synchronize(); event.synchronize(); cuda.synchronize()\n"
        "os.environ['SOFTGPU_SLOW'] = ''\n"
    )
    waited = exporter.scrape().by("api", WAITED, pid=str(job.pid))
    assert {"cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"} == waited.keys()
    assert all(23 * 0.02 <= seconds for seconds in waited.values())
    ran(job)


@of(BINDINGS)
def test_virtual_memory(job: Job, exporter: Exporter, ran: Ran) -> None:
    """23 handles of 2 MiB mapped twice, unmapped once, then released in another order."""
    job.run(
        f"{_CHECK}"
        "ok(cu.cuInit(0)); ok(cu.cuCtxCreate(None, 0, 0))\n"
        "p = cu.CUmemAllocationProp(); p.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED\n"
        "p.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE\n"
        "size = 2 * MIB; at = int(ok(cu.cuMemAddressReserve(46 * size, 0, 0, 0)))\n"
        "handles = [ok(cu.cuMemCreate(size, p, 0)) for _ in range(23)]\n"
        "for n, handle in enumerate(handles):\n"
        "    for half in (0, 23): ok(cu.cuMemMap(at + (n + half) * size, size, 0, handle, 0))\n"
        "for handle in handles[::-1]: ok(cu.cuMemRelease(handle))\n"
        "for n in range(23): ok(cu.cuMemUnmap(at + n * size, size))\n"
    )
    assert {"vmm": 46 << 20} == seen(exporter.scrape(), job.pid)["memory"]
    ran(job)
    job.run("for n in range(23, 46): ok(cu.cuMemUnmap(at + n * size, size))")
    assert {} == seen(exporter.scrape(), job.pid)["memory"]
    ran(job)
