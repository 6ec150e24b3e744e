"""Released software on two soft GPUs, with an NVML that reports the same processes: which GPU holds and does what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import ERRORS, LAUNCHES, USED
from tests.real.conftest import EXACT, Keeper, Ran
from tests.real.job import Job
from tests.real.releases import BINDINGS, NUMBA, TINYGRAD, TORCH, Release
from tests.softgpu.story import CONTEXT, Story
from tests.standins import nvml
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA work by GPU", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA errors", on="real program on a stand-in"),
]

HELD = "gpu_process_memory_usage_bytes"
OF_GPU = "hw_gpu_memory_usage_bytes"
UTILIZATION, XIDS = "gpu_process_utilization_ratio", "gpu_xid_errors_total"
WAITED = "gpu_cuda_sync_wait_seconds_sum"
_ALLOCATE = {  # step(n) frees what the step before allocated, in part
    NUMBA: (
        "cuda.current_context(); held = []\n"
        "def step(n):\n"
        "    held.extend(cuda.device_array(n * MIB + i, np.uint8) for i in range(23))\n"
        "    del held[n::2]; cuda.current_context().deallocations.clear()\n"
    ),
    BINDINGS: (
        "ok(cu.cuInit(0)); context, held = ok(cu.cuCtxCreate(None, 0, 0)), []\n"
        "def step(n):\n"
        "    held.extend(ok(cu.cuMemAlloc(n * MIB + i)) for i in range(23))\n"
        "    for address in held[n::2]: ok(cu.cuMemFree(address))\n"
        "    del held[n::2]\n"
    ),
}
UNATTRIBUTED = "gpu_cuda_memory_unattributed_bytes"
_PROGRAMS = {
    TORCH[0]: (
        "held = [torch.empty((n + 1) * 64 * MIB, dtype=torch.uint8, device=f'cuda:{n}') for n in (0, 1)]\n"
        "for n in (0, 1):\n"
        "    for _ in range(23 * (n + 1)): held[n].add_(1)\n"
    ),
    NUMBA: (
        "@cuda.jit\ndef add(x): x[cuda.grid(1)] += 1\n"
        "for n in (0, 1):\n"
        "    with cuda.gpus[n]:\n"
        "        held = cuda.device_array((n + 1) * 64 * MIB, np.uint8); globals()[f'held{n}'] = held\n"
        "        for _ in range(23 * (n + 1)): add[4, 256](held)\n"
    ),
    TINYGRAD: (
        "held = [Tensor(np.ones((n + 1) * 4 * MIB, np.float32), device=f'CUDA:{n}').realize() for n in (0, 1)]\n"
        "for n in (0, 1):\n"
        "    for _ in range(23 * (n + 1)): (held[n] + 1).realize()\n"
    ),
}
SOFTWARE = tuple(_PROGRAMS)
_ADD = (
    "import select\n@cuda.jit\ndef add(x): x[cuda.grid(1)] += 1\n"
    "held = cuda.device_array(4096, np.uint8); add[4, 256](held); cuda.synchronize()"
)
_KEEP_BUSY = """
late = took = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    begun = time.monotonic(); add[4, 256](held)
    launched = time.monotonic(); cuda.synchronize()
    late += launched - begun
    took += time.monotonic() - launched
out = late, took
"""
"""Launches and waits until the next lines come: seconds of its calls until it waited, and while it did."""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> nvml.Scenario:
    nvml.build()
    return nvml.Scenario(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def story(scenario: nvml.Scenario) -> Story:
    return Story(scenario)


@pytest.fixture(scope="module")
def exporter(keeper: Keeper, scenario: nvml.Scenario, story: Story) -> Iterator[Exporter]:
    with Exporter((EXACT,), {**os.environ, **scenario.environment()}) as exporter:
        exporter.until(lambda: keeper.observed(exporter), "the soft driver was not probed")
        yield exporter


def by_gpu(exporter: Exporter, metric: str, job: Job) -> dict[str, float]:
    """Return what a metric has for a job by GPU, without pinned host memory."""
    found: dict[str, float] = {}
    for labels, value in exporter.scrape().rows(metric, pid=str(job.pid)):
        if value and labels.get("memory") != "pinned_host":
            found[labels.get("gpu", "")] = found.get(labels.get("gpu", ""), 0) + value
    return found


@pytest.mark.parametrize(
    "visible", ["", "1,0", f"{nvml.UUID.format(1)},{nvml.UUID.format(0)}"], ids=["", "numbers", "uuids"]
)
def test_two_gpus(release: Release, exporter: Exporter, folder: Path, ran: Ran, story: Story, visible: str) -> None:
    """Memory and launches of each of two GPUs, also where CUDA_VISIBLE_DEVICES swaps them, by number or by UUID."""
    story.follow(folder)
    order = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    with Job(release, folder, **order) as job:
        job.run(_PROGRAMS[release])
        gpus = job.counts.gpus
        first, second = (1, 0) if visible else (0, 1)
        assert 1 << 20 <= gpus[first] < gpus[second]
        expected = {str(gpu): size for gpu, size in gpus.items()}
        shown(exporter, USED, job, expected)
        shown(exporter, HELD, job, with_contexts(expected))
        assert dict.fromkeys(expected, CONTEXT) == by_gpu(exporter, UNATTRIBUTED, job)
        launches = by_gpu(exporter, LAUNCHES, job)
        assert job.counts.calls("cuLaunchKernel") + job.counts.calls("cuLaunchKernelEx") == sum(launches.values())
        assert 23 <= launches[str(first)] < launches[str(second)]
        ran(job)


def with_contexts(sizes: dict[str, int]) -> dict[str, int]:
    """Return bytes in use by GPU with those of one context on each."""
    return {gpu: size + CONTEXT for gpu, size in sizes.items()}


def shown(exporter: Exporter, metric: str, job: Job, expected: dict[str, int]) -> None:
    """Wait until the exporter shows these values of a job by GPU."""
    until(lambda: by_gpu(exporter, metric, job) == expected, lambda: by_gpu(exporter, metric, job))


@pytest.mark.releases(NUMBA, BINDINGS)
def test_one_story(release: Release, exporter: Exporter, folder: Path, ran: Ran, story: Story) -> None:
    """Two processes that allocate and free in turn: NVML's bytes equal the driver's plus a context, at each step."""
    story.follow(folder)
    with Job(release, folder) as one, Job(release, folder) as other:
        for job in (one, other):
            job.run(_ALLOCATE[release])
        for step in range(1, 8):
            (one if step % 2 else other).run(f"step({step})")
            for job in (one, other):
                expected = {str(gpu): size for gpu, size in job.counts.gpus.items() if size}
                shown(exporter, USED, job, expected)
                shown(exporter, HELD, job, with_contexts(expected) if expected else {"0": CONTEXT})
        total = sum(size for it in (one, other) for size in with_contexts(by_gpu(exporter, USED, it)).values())
        until(lambda: exporter.scrape().total(OF_GPU, gpu="0") == total, "the GPU's own memory")
        for job in (one, other):
            ran(job)
    until(lambda: not by_gpu(exporter, HELD, one), "NVML drops a process that has ended")


@pytest.mark.releases(NUMBA)
def test_utilization(release: Release, exporter: Exporter, folder: Path, story: Story, ran: Ran) -> None:
    """Kernels of 5 ms one after the other, then none: NVML's utilization of the process, and its waiting time."""
    story.follow(folder)

    def share() -> float:
        return exporter.scrape().total(UTILIZATION, pid=str(job.pid), engine="sm") or 0

    def waited() -> float:
        return exporter.scrape().total(WAITED, pid=str(job.pid), api="cuCtxSynchronize") or 0

    with Job(release, folder, SOFTGPU_KERNEL_NS=5_000_000) as job:
        job.run(_ADD)
        before, busy_before = waited(), job.counts.busy_seconds(0)
        job.begin(_KEEP_BUSY)
        until(lambda: share() > 0.5, lambda: f"{share()} of the time")
        job.begin("pass")
        late, took = job.answer()
        job.answer()
        until(lambda: share() == 0, lambda: f"{share()} of the time")
        assert (job.counts.busy_seconds(0) - busy_before) * 0.9 - late < waited() - before <= took
        ran(job)


@pytest.mark.releases(BINDINGS)
def test_fault(release: Release, exporter: Exporter, folder: Path, story: Story, ran: Ran) -> None:
    """A kernel that reads an unmapped address: each later call fails, and the GPU reports Xid 31."""
    story.follow(folder)

    def xids() -> dict[str, float]:
        return exporter.scrape().by("gpu", XIDS, xid="31")

    before = xids()
    with Job(release, folder) as job:
        job.run(_ALLOCATE[release] + "step(1); os.environ['SOFTGPU_FAIL'] = 'cuCtxSynchronize=700'")
        assert [700] * 23 == job.run("out = [int(cu.cuCtxSynchronize()[0])]; del os.environ['SOFTGPU_FAIL']\n"
                                     "out += [int(cu.cuCtxSynchronize()[0]) for _ in range(22)]")  # fmt: skip
        assert [700] * 23 == job.run("out = [int(cu.cuMemAlloc(MIB)[0]) for _ in range(23)]")
        errors = exporter.scrape().by("api", ERRORS, pid=str(job.pid), error="CUDA_ERROR_ILLEGAL_ADDRESS")
        assert {"cuCtxSynchronize": 23, "cuMemAlloc_v2": 23} == errors
        until(lambda: xids() == {**before, "0": before.get("0", 0) + 1}, lambda: str(xids()))
        ran(job)
