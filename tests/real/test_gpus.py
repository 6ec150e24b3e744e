"""Released software on two soft GPUs, with an NVML that reports the same processes: which GPU holds and does what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import LAUNCHES, USED
from tests.real.conftest import EXACT, Keeper, Ran
from tests.real.job import Job
from tests.real.releases import NUMBA, TINYGRAD, TORCH, Release
from tests.softgpu.story import CONTEXT, Story
from tests.standins import nvml
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
]

HELD = "gpu_process_memory_usage_bytes"
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


@pytest.mark.parametrize("visible", ["", "1,0"])
def test_two_gpus(release: Release, exporter: Exporter, folder: Path, ran: Ran, story: Story, visible: str) -> None:
    """Memory and launches of each of two GPUs, also where CUDA_VISIBLE_DEVICES turns them round."""
    order = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    with Job(release, folder, **order) as job:
        job.run(_PROGRAMS[release])
        ordinals = job.counts.gpus
        gpus = {1 - n if visible else n: size for n, size in ordinals.items()}
        assert 1 << 20 <= ordinals[0] < ordinals[1]
        story.report({job.pid: gpus})
        expected = {str(gpu): size for gpu, size in gpus.items()}
        until(lambda: by_gpu(exporter, USED, job) == expected, lambda: by_gpu(exporter, USED, job), 30)
        assert {gpu: size + CONTEXT for gpu, size in expected.items()} == by_gpu(exporter, HELD, job)
        assert dict.fromkeys(expected, CONTEXT) == by_gpu(exporter, UNATTRIBUTED, job)
        launches = by_gpu(exporter, LAUNCHES, job)
        first, second = ("1", "0") if visible else ("0", "1")
        assert job.counts.calls("cuLaunchKernel") + job.counts.calls("cuLaunchKernelEx") == sum(launches.values())
        assert 23 <= launches[first] < launches[second]
        ran(job)
        story.report({})


def test_xid(exporter: Exporter, story: Story) -> None:
    """An Xid of one GPU."""
    story.xid(1, 79)
    until(lambda: 1 == exporter.scrape().total("gpu_xid_errors_total", gpu="1", xid="79"), "the Xid", 30)
    assert not exporter.scrape().total("gpu_xid_errors_total", gpu="0", xid="79")
