"""Owners of GPUs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from exporter.compat.dcgm.owners import EntityOwners
from exporter.compat.dcgm.series import Entity
from exporter.model import Labels
from exporter.nvml.snapshot import GpuProcess
from exporter.resolve.allocations import Allocations
from tests.unit.dcgm.gpus import gpu, mig

JOBS: Mapping[int, Labels] = {
    1: {"pid": "1", "slurm_job_id": "42", "comm": "python"},
    2: {"pid": "2", "slurm_job_id": "42", "comm": "nccl"},
    3: {"pid": "3", "slurm_job_id": "43"},
    4: {"pid": "4", "pod": "train-0", "namespace": "ml", "container": "main"},
    5: {"pid": "5", "comm": "Xorg"},
}


class Allocated:
    def __init__(self, known: Mapping[str, Labels]) -> None:
        self._known = known

    def of(self, uuid: str) -> Labels:
        return self._known.get(uuid, {})


def labels(pid: int) -> Labels:
    return JOBS[pid]


@pytest.mark.parametrize(
    ("pids", "expected"),
    [
        ((), {}),
        ((1, 2), {"hpc_job": "42"}),
        ((1, 3), {}),
        ((1, 5), {"hpc_job": "42"}),
        ((4,), {"pod": "train-0", "namespace": "ml", "container": "main"}),
        ((5,), {}),
    ],
)
def test_by_processes(pids: tuple[int, ...], expected: Labels) -> None:
    """The only job with processes on a GPU is its owner; two jobs are no owner, a process without a job is ignored."""
    entity = Entity(gpu(processes=tuple(GpuProcess(pid, "compute", 0) for pid in pids)))

    assert expected == EntityOwners(Allocations(), labels)(entity)


def test_allocation_first() -> None:
    """The owner of an allocation counts, whatever processes are on the GPU."""
    entity = Entity(gpu(processes=(GpuProcess(1, "compute", 0),)))

    assert {"pod": "a"} == EntityOwners(Allocated({"GPU-0": {"pod": "a"}}), labels)(entity)


def test_labels_of_pods() -> None:
    """Labels of a pod have dcgm-exporter's names, unless such a name is in use or invalid."""
    known = {"label_app": "llm", "label_pod": "x", "label_1st": "y", "pod": "a", "namespace": "ml"}
    expected = {"app": "llm", "label_pod": "x", "label_1st": "y", "pod": "a", "namespace": "ml"}

    assert expected == EntityOwners(Allocated({"GPU-0": known}), labels)(Entity(gpu()))


def test_instances() -> None:
    """A GPU instance has its own processes and allocation; two pods in one instance are no owner."""
    migs = (mig(1), mig(2, 0), mig(2, 1))
    processes = (GpuProcess(1, "compute", 0, gpu_instance=1), GpuProcess(3, "compute", 0, gpu_instance=2))
    divided = gpu(migs=migs, processes=processes)
    first, second = Entity(divided, migs[:1]), Entity(divided, migs[1:])

    assert [{"hpc_job": "42"}, {"hpc_job": "43"}] == [
        EntityOwners(Allocations(), labels)(part) for part in (first, second)
    ]
    pods: dict[str, Labels] = {"MIG-1-0": {"pod": "a"}, "MIG-2-0": {"pod": "b"}, "MIG-2-1": {"pod": "c"}}
    assert {"pod": "a"} == EntityOwners(Allocated(pods), labels)(first)
    assert {"hpc_job": "43"} == EntityOwners(Allocated(pods), labels)(second)
