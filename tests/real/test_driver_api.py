"""Programs that call the CUDA driver alone, on the soft GPU: Numba, tinygrad, NVIDIA's cuda-bindings."""

from __future__ import annotations

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import seen
from tests.real.conftest import Ran, followed
from tests.real.job import Job
from tests.real.releases import BINDINGS, NUMBA, TINYGRAD

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA launches", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA copies", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA waits and spans", on="real program on a stand-in"),
]

WAITED = "gpu_cuda_sync_wait_seconds_sum"
FREED = "gpu_cuda_memory_frees_bytes_total"
_KERNEL = "@cuda.jit\ndef add(x):\n    at = cuda.grid(1)\n    if at < x.size: x[at] += 1\n"
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
def test_copies_of_rows(job: Job, exporter: Exporter, ran: Ran) -> None:
    """2D copies by the memory types that a program states, 23 of each: device and managed memory as the host's too."""
    job.run("ok(cu.cuInit(0)); ok(cu.cuCtxCreate(None, 0, 0))")
    followed(exporter, job)
    job.run(
        "import ctypes; buffer = ctypes.create_string_buffer(MIB); plain = ctypes.addressof(buffer)\n"
        "device, other = (int(ok(cu.cuMemAlloc(MIB))) for _ in range(2)); pinned = int(ok(cu.cuMemHostAlloc(MIB, 0)))\n"
        "managed = int(ok(cu.cuMemAllocManaged(MIB, 1)))\n"
        "kinds = {it.name.rsplit('_', 1)[1]: it for it in cu.CUmemorytype}\n"
        "def copy(to, target, of, source):\n"
        "    it = cu.CUDA_MEMCPY2D(); it.WidthInBytes, it.Height, it.srcPitch, it.dstPitch = 11, 7, 100, 100\n"
        "    it.srcMemoryType, it.dstMemoryType = kinds[of], kinds[to]\n"
        "    setattr(it, 'srcHost' if of == 'HOST' else 'srcDevice', source)\n"
        "    setattr(it, 'dstHost' if to == 'HOST' else 'dstDevice', target)\n"
        "    ok(cu.cuMemcpy2D(it))\n"
        "for _ in range(23):\n"
        "    copy('DEVICE', device, 'HOST', plain); copy('DEVICE', device, 'HOST', pinned)\n"
        "    copy('DEVICE', device, 'HOST', managed); copy('HOST', managed, 'DEVICE', device)\n"
        "    copy('DEVICE', device, 'HOST', other); copy('HOST', other, 'DEVICE', device)\n"
        "    copy('HOST', plain, 'HOST', managed); copy('UNIFIED', device, 'UNIFIED', other)\n"
        "    copy('UNIFIED', device, 'UNIFIED', pinned); copy('UNIFIED', device, 'UNIFIED', managed)\n"
    )
    each = 23 * 77
    assert {
        "h2d pageable": each,
        "h2d pinned": 2 * each,
        "h2d managed": each,
        "h2d unknown": each,
        "h2h pageable": each,
        "d2h managed": each,
        "d2h unknown": each,
        "d2d": each,
        "unknown managed": each,
    } == seen(exporter.scrape(), job.pid)["copies"]
    ran(job)


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
