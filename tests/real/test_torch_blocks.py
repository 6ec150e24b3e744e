"""PyTorch's caching allocator on the soft GPU: memory in use by the lines that hold tensors, as PyTorch counts it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import USED
from tests.real.conftest import EXACT, Keeper, Ran
from tests.real.job import Job
from tests.real.releases import TORCH, Release
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="profiles of stacks", on="real program on a stand-in"),
]
SOFTWARE = TORCH
SITES = 23
CACHED = "[cached by the allocator]"
FLAGS = ("--web.enable-profiles", "--collector.cuda.profile-allocators", "--collector.cuda.profile-cpu-ratio=1")
DEFINED = "".join(
    f"def site_{n}(size): return torch.empty(size, dtype=torch.uint8, device='cuda')\n" for n in range(SITES)
)
SIZES = [1 + n * n * 99_991 for n in range(SITES)]
"""Bytes of a tensor of each site: in segments for small and for large ones, and in some of their own."""
COUNTED = """
blocks, at = {}, None
for segment in torch.cuda.memory_snapshot():
    for block in segment['blocks']:
        if block['state'] == 'active_allocated': blocks[block['address']] = block['size']
by_site = {name: blocks[tensor.data_ptr()] for name, tensor in held.items()}
out = [by_site, sum(blocks.values()), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
"""


@pytest.fixture(scope="module")
def profiling(keeper: Keeper) -> Iterator[Exporter]:
    with Exporter((EXACT, *FLAGS), dict(os.environ)) as exporter:
        exporter.until(lambda: keeper.observed(exporter), "the soft driver was not probed")
        yield exporter


def in_use(exporter: Exporter, job: Job) -> Counter[str]:
    """Bytes in use by the site that called the allocator, with its line; by the leaf of other stacks."""
    found: Counter[str] = Counter()
    for row in exporter.get(f"/debug/pprof/gpu_inuse?format=collapsed&pid={job.pid}").splitlines():
        stack, _, value = row.rpartition(" ")
        site = re.search(r"(site_\d+) \(<string>:(\d+)\)", stack)
        found[f"{site[1]} in {site[2]}" if site else stack.rpartition(";")[2]] += int(value)
    return found


def dropped(exporter: Exporter) -> Mapping[str, float]:
    """Stacks without frames by reason, of all processes on the machine."""
    return {labels["reason"]: count for labels, count in exporter.scrape().rows("gpu_profile_stacks_dropped_total")}


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_tensors_by_line(release: Release, profiling: Exporter, folder: Path, ran: Ran, settings: str) -> None:
    """Tensors of 23 lines, a third freed, then all: each line has the bytes of its block, the rest is cached."""
    with Job(release, folder, **({"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {})) as job:

        def probed() -> bool:
            job.run(f"{DEFINED}\nwarm = site_0(1)")
            return bool(in_use(profiling, job)["site_0 in 1"])

        until(probed, "the allocator was not probed")
        job.run(f"del warm\nheld = {{f'site_{{n}}': globals()[f'site_{{n}}'](size) for n, size in enumerate({SIZES})}}")
        for lines in ("pass", "for n in range(0, 23, 3): del held[f'site_{n}']", "held.clear()"):
            by_site, blocks, allocated, reserved = job.run(f"{lines}\n{COUNTED}")
            found = in_use(profiling, job)
            assert blocks == allocated
            expected = {f"site_{n} in {n + 1}": by_site.get(f"site_{n}", 0) for n in range(SITES)}
            expected = {name: size for name, size in expected.items() if size}
            assert {**expected, CACHED: reserved - allocated} == dict(found)
            assert reserved == found.total() == profiling.scrape().total(USED, pid=str(job.pid), api_layer="driver")
        ran.note(f"{SITES} lines, {sum(SIZES):,} bytes of tensors")


def test_a_step_of_training(release: Release, profiling: Exporter, folder: Path, ran: Ran) -> None:
    """A step of training with Adam, 40 layers: at least nine tenths of the tensors' bytes have their line."""
    with Job(release, folder) as job:

        def probed() -> bool:
            job.run(f"{DEFINED}\nwarm = site_0(1)")
            return bool(in_use(profiling, job)["site_0 in 1"])

        until(probed, "the allocator was not probed")
        allocated, reserved = job.run(
            "del warm\nmodel = torch.nn.Sequential(*(torch.nn.Linear(512, 512, device='cuda') for _ in range(40)))\n"
            "optimiser = torch.optim.Adam(model.parameters(), foreach=False)\n"
            "for parameter in model.parameters(): parameter.grad = torch.zeros_like(parameter)\n"
            "optimiser.step(); torch.cuda.synchronize()\n"
            "out = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]"
        )
        found = in_use(profiling, job)
        assert reserved == found.total()
        assert reserved - allocated == found[CACHED], (found, dropped(profiling))
        known = allocated - found["[unknown stack]"]
        assert 0.9 * allocated < known
        ran.note(f"{known:,} of {allocated:,} bytes of tensors have their line, {reserved - allocated:,} are cached")
