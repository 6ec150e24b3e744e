"""PyTorch's wheel for CUDA on the soft GPU: what the exporter shows equals what PyTorch and the soft GPU count."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import ERRORS, counted, in_words, seen
from tests.real.conftest import EXACT, Ran, attached
from tests.real.job import Job, runtime
from tests.real.releases import TORCH, Release
from tests.softgpu.story import CONTEXT
from tests.support import free_port, until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA launches", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA copies", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA waits and spans", on="real program on a stand-in"),
]

SOFTWARE = TORCH
ALLOCATED = "gpu_cuda_memory_allocations_bytes_total"
SEEN_FROM_START = "gpu_cuda_seen_from_start"
RESERVED = "torch.cuda.synchronize(); out = torch.cuda.memory_reserved()"
TRAIN = """
def train(steps):
    w = torch.nn.Parameter(torch.zeros(1 << 18, device='cuda'))
    optimiser = torch.optim.Adam([w])
    for _ in range(steps):
        (w * 2).relu().sum().backward()
        optimiser.step(); optimiser.zero_grad()
"""


def memory(exporter: Exporter, job: Job) -> dict[str, int]:
    """Bytes in use by kind of memory, as the exporter shows them."""
    return seen(exporter.scrape(), job.pid)["memory"]


def test_allocator(job: Job, exporter: Exporter, ran: Ran) -> None:
    """Caching allocator: 2,000 tensors of changing sizes, freed in part and at the end."""
    for lines in (
        "held = []\nfor n in range(2000):\n    held.append(torch.empty(1 + n * 4099 % (3 * MIB), device='cuda'))\n"
        "    if n % 3: held.pop(n * 7 % len(held))\n",
        "del held[::2]; torch.cuda.empty_cache()\n",
        "del held[3:]; torch.cuda.empty_cache()\n",
    ):
        reserved = job.run(lines + RESERVED)
        assert 0 < reserved
        assert {"device": reserved} == memory(exporter, job)
        segments = job.run("out = sum(it['total_size'] for it in torch.cuda.memory_snapshot())")
        assert segments == reserved
    ran(job)


def test_optimiser(job: Job, exporter: Exporter, ran: Ran) -> None:
    """Forward, backward and Adam, 300 steps."""
    reserved = job.run(f"{TRAIN}\ntrain(300)\n{RESERVED}")
    assert {"device": reserved} == memory(exporter, job)
    assert 3000 < sum(seen(exporter.scrape(), job.pid)["launches"].values())
    ran(job)


def test_copies(job: Job, exporter: Exporter, ran: Ran) -> None:
    """23 copies each way of 5 MiB from pinned and 3 MiB from pageable memory, and between two GPUs."""
    job.run(
        "pinned = torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True)\n"
        "pageable = torch.empty(3 * MIB, dtype=torch.uint8)\n"
        "device = torch.empty(5 * MIB, dtype=torch.uint8, device='cuda')\n"
        "other = torch.empty(5 * MIB, dtype=torch.uint8, device='cuda:1')\n"
        "for _ in range(23):\n"
        "    device.copy_(pinned, non_blocking=True); pinned.copy_(device, non_blocking=True)\n"
        "    device[:3 * MIB].copy_(pageable); pageable.copy_(device[:3 * MIB]); other.copy_(device)\n"
        "torch.cuda.synchronize()"
    )
    size = 23 << 20
    expected = {"h2d pinned": 5 * size, "d2h pinned": 5 * size, "h2d pageable": 3 * size, "d2h pageable": 3 * size}
    assert {**expected, "d2d": 5 * size} == seen(exporter.scrape(), job.pid)["copies"]
    ran(job)


def test_streams(job: Job, ran: Ran) -> None:
    """Four streams and two GPUs, events between them, and waits for each."""
    job.run(
        "streams = [torch.cuda.Stream() for _ in range(4)]\n"
        "for n in range(230):\n"
        "    with torch.cuda.stream(streams[n % 4]):\n"
        "        held = torch.zeros(1 << 16, device='cuda').add_(1)\n"
        "        event = torch.cuda.Event(); event.record()\n"
        "    streams[(n + 1) % 4].wait_event(event)\n"
        "    if n % 10 == 0: event.synchronize()\n"
        "    if n % 23 == 0: streams[n % 4].synchronize()\n"
        "with torch.cuda.device(1): torch.zeros(1 << 16, device='cuda:1').sum().item()\n"
        "torch.cuda.synchronize()"
    )
    ran(job)


def test_graphs(job: Job, exporter: Exporter, ran: Ran) -> None:
    """A captured step, replayed 100 times."""
    job.run(
        "x = torch.zeros(1000, device='cuda')\n"
        "side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(side): y = x + 1\n"
        "torch.cuda.current_stream().wait_stream(side)\n"
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph): y = x + 1; z = y * 2\n"
        "for _ in range(100): graph.replay()\n"
        "torch.cuda.synchronize()"
    )
    assert {"driver": 100} == seen(exporter.scrape(), job.pid)["graph launches"]
    ran(job)


def test_expandable_segments(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """Expandable segments (VMM): 20 of 50 MiB, half of them freed, then all."""
    with Job(release, folder, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") as job:
        held = job.run(
            f"held = [torch.empty(50 * MIB, dtype=torch.uint8, device='cuda') for _ in range(20)]\n{RESERVED}"
        )
        assert {"vmm": held} == memory(exporter, job)
        half = job.run(f"del held[::2]; torch.cuda.empty_cache()\n{RESERVED}")
        assert half < held
        assert {"vmm": half} == memory(exporter, job)
        assert 0 == job.run(f"del held; torch.cuda.empty_cache()\n{RESERVED}")
        assert {} == memory(exporter, job)
        ran(job)


def test_malloc_async(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """The cudaMallocAsync backend: bytes in use are those of `memory_allocated()`."""
    with Job(release, folder, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync") as job:
        assert "cudaMallocAsync" == job.run("out = torch.cuda.get_allocator_backend()")
        allocated = job.run(
            "held = [torch.empty(1 + n * 99991 % MIB, device='cuda') for n in range(500)]; del held[::3]\n"
            "torch.cuda.synchronize(); out = torch.cuda.memory_allocated()"
        )
        assert {"pool": allocated} == memory(exporter, job)
        allocated = job.run(
            "graph = torch.cuda.CUDAGraph()\n"
            "with torch.cuda.graph(graph): made = torch.empty(100 * MIB, dtype=torch.uint8, device='cuda').fill_(1)\n"
            "graph.replay(); torch.cuda.synchronize(); out = torch.cuda.memory_allocated()"
        )
        assert {"pool": allocated} == memory(exporter, job)
        ran(job)


def test_out_of_memory(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """A GPU with 256 MiB and a context: tensors until PyTorch raises OutOfMemoryError, then work continues."""
    with Job(release, folder, SOFTGPU_BYTES=CONTEXT + (256 << 20)) as job:
        made = job.run(
            "held = []\n"
            "try:\n"
            "    while True: held.append(torch.empty(30 * MIB, dtype=torch.uint8, device='cuda'))\n"
            "except torch.cuda.OutOfMemoryError: out = len(held)"
        )
        assert 8 == made
        reserved = job.run(f"held.clear(); torch.zeros(1000, device='cuda').add_(1)\n{RESERVED}")
        assert {"device": reserved} == memory(exporter, job)
        errors = exporter.scrape().by("error", ERRORS, pid=str(job.pid), api="cuMemAlloc_v2")
        assert {"CUDA_ERROR_OUT_OF_MEMORY": job.counts.functions["cuMemAlloc_v2"].failures} == errors
        ran(job)


def test_distributed(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """DistributedDataParallel over gloo, two processes on a GPU each, 50 steps."""
    lines = (
        "import torch.distributed as d\n"
        "torch.cuda.set_device(rank)\n"
        "d.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=2)\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.w = torch.nn.Parameter(torch.zeros(100000))\n"
        "    def forward(self, x): return (self.w * x).sum()\n"
        "model = torch.nn.parallel.DistributedDataParallel(Model().cuda(), device_ids=[rank])\n"
        "for _ in range(50): model(torch.ones(100000, device='cuda')).backward()\n"
        f"{RESERVED}; d.destroy_process_group()"
    )
    with Job(release, folder) as first, Job(release, folder) as second:
        port, jobs = free_port(), (first, second)
        for rank, job in enumerate(jobs):
            job.begin(f"rank, port = {rank}, {port}\n{lines}")
        for job in jobs:
            reserved = job.answer()
            assert reserved == memory(exporter, job)["device"]
            ran(job)


def test_waits_that_last(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """23 waits for kernels of 2 ms: each is counted, with its duration."""
    with Job(release, folder, SOFTGPU_KERNEL_NS=2_000_000) as job:
        job.run(
            "x = torch.zeros(1000, device='cuda'); torch.cuda.synchronize()\n"
            "for _ in range(23): x.add_(1); torch.cuda.synchronize()"
        )
        waited = exporter.scrape().total("gpu_cuda_sync_wait_seconds_sum", pid=str(job.pid), api="cuCtxSynchronize")
        assert waited is not None
        assert 24 * 0.0015 < waited
        ran(job)


def test_killed(job: Job, exporter: Exporter, ran: Ran) -> None:
    """kill -9 in the middle of training: counts stay as they were, with the call that it ended; all memory is freed."""
    job.begin(f"{TRAIN}\ntrain(1 << 40)")
    until(lambda: job.counts.calls("cuLaunchKernel") > 10_000, "10,000 launches")
    job.kill()
    counts = counted(job.counts)
    assert counts["memory"]
    until(lambda: not memory(exporter, job), "memory given back")
    found = seen(exporter.scrape(), job.pid)
    # A probe is hit before its function counts: the one call that the end came into may be seen and not counted.
    assert counts["launches"]["driver"] <= found["launches"]["driver"] <= counts["launches"]["driver"] + 1
    assert counts["copies"] == found["copies"]
    ended = exporter.scrape()
    back = ended.total("gpu_cuda_memory_frees_bytes_total", pid=str(job.pid), implicit="true")
    assert counts["memory"]["device"] == back
    ran.note(f"{int(back or 0):,} bytes freed")


def test_there_before_the_exporter(job: Job, ran: Ran) -> None:
    """A job that started before the exporter and holds memory: every call from then on is counted."""
    job.run("held = torch.empty(64 * MIB, dtype=torch.uint8, device='cuda'); x = torch.zeros(1000, device='cuda')")
    with Exporter((EXACT,), dict(os.environ)) as late:

        def seen_by_it() -> bool:
            job.run("x.add_(1); torch.empty(40 * MIB, dtype=torch.uint8, device='cuda'); torch.cuda.empty_cache()")
            return bool(late.scrape().total(ALLOCATED, pid=str(job.pid)))

        late.until(seen_by_it, "no allocation of the job was seen")
        before, first = job.counts, seen(late.scrape(), job.pid)
        job.run(
            "for _ in range(2300): x.add_(1)\n"
            "more = torch.empty(30 * MIB, dtype=torch.uint8, device='cuda'); torch.cuda.synchronize()"
        )
        found, calls = seen(late.scrape(), job.pid), job.counts.calls
        late.until(lambda: 0 == late.scrape().total(SEEN_FROM_START, pid=str(job.pid)), "the job is not known")
        made = {name: count - first["calls"].get(name, 0) for name, count in found["calls"].items()}
        assert {name: calls(name) - before.calls(name) for name in found["calls"]} == made
        assert 2300 == made["cuLaunchKernel"] == found["launches"]["driver"] - first["launches"]["driver"]
        assert 1 == made["cuCtxSynchronize"]
        assert {"device": 30 << 20} == found["memory"]
    ran.note(f"{made['cuLaunchKernel']:,} launches, {sum(made.values()):,} calls, {30 << 20:,} bytes device since then")


def test_runtime(release: Release, folder: Path, ran: Ran) -> None:
    """Both API layers probed: training, copies, a failed allocation, calls of CUDA's runtime."""
    with (
        Exporter((EXACT, "--collector.cuda.layers=both"), dict(os.environ)) as both,
        Job(release, folder, SOFTGPU_BYTES=CONTEXT + (256 << 20)) as job,
    ):
        job.run("pass")
        both.until(lambda: attached(both) and attached(both, runtime(release.cuda)), "the libraries were not probed")
        job.run(
            f"{TRAIN}\ntrain(100)\n"
            "torch.ones(MIB).cuda().cpu(); torch.ones(MIB, pin_memory=True).cuda()\n"
            "try: torch.empty(MIB << 10, device='cuda')\n"
            "except torch.cuda.OutOfMemoryError: pass\n"
            "torch.cuda.empty_cache(); torch.cuda.synchronize()"
        )
        page, of_runtime = both.scrape(), counted(job.counts, "runtime", job.runtime_counts)
        assert of_runtime["errors"]["cudaMalloc"]
        # Its libraries were mapped before they were probed: what no call was seen for may be pinned all the same.
        of_runtime["copies"] = {it.replace("pageable", "unknown"): size for it, size in of_runtime["copies"].items()}
        assert of_runtime == seen(page, job.pid, "runtime")
        assert counted(job.counts)["calls"] == seen(page, job.pid)["calls"]
        ran.note(in_words({**of_runtime, "memory": {}, "copies": {}}))
