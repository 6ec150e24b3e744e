"""GPUs for the CUDA collector, and the values of its metrics by GPU, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from exporter.nvml.gpus import Gpus
from exporter.nvml.snapshot import PROCESSES, Gpu, GpuProcess, GpuSnapshot, Readings
from exporter.views.prometheus import name
from tests.bpf.cuda_node import Script, build_standins, observe
from tests.bpf.observed import Observed
from tests.unit.resolve.gpus import gpu, snapshot


class Node:
    """NVML of our own: four GPUs of 80 GiB, and on which of them it lists which process, with how many bytes.

    The collector's start waits for the memory of all of them. Lists are new, unless `listed_at` has their time.
    """

    def __init__(self) -> None:
        self.gpus, self.listed = Gpus(), dict[int, dict[int, int]]()
        self.listed_at: float | None = None
        self.gpus.serve(self.snapshot, lambda seconds: True)

    def snapshot(self) -> GpuSnapshot:
        return snapshot(*map(self._gpu, range(4)))

    def _gpu(self, index: int) -> Gpu:
        on = tuple(GpuProcess(pid, "compute", on[index]) for pid, on in self.listed.items() if index in on)
        listed = gpu(index, processes=on)
        listing = listed.sets[PROCESSES]
        if self.listed_at is not None:
            listing = replace(listing, at=self.listed_at)
        return replace(listed, sets={PROCESSES: listing, "fast": Readings(0.0, {"memory_bytes": 80 << 30})})


def fixtures() -> tuple[Any, Any]:
    """Return two fixtures, to be named `node` and `observed`: the node, and its collector, for all of a module."""

    @pytest.fixture(scope="module")
    def node() -> Node:
        return Node()

    @pytest.fixture(scope="module")
    def observed(node: Node) -> Iterator[Observed]:
        build_standins()
        with observe(gpus=node.gpus) as running:
            yield running

    return node, observed


def by_gpu(observed: Observed, metric: str, job: Script, **labels: str) -> dict[str, object]:
    """The values of a metric by GPU, "" where it is not known."""
    wanted = labels | {"pid": str(job.pid)}
    found = [it for it in observed.samples() if name(it.metric) == metric and wanted.items() <= it.labels.items()]
    assert len(found) == len({it.labels.get("gpu_uuid", "") for it in found})
    return {it.labels.get("gpu", ""): it.value for it in found}
