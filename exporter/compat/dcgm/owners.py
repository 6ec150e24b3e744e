"""Owner of a GPU in dcgm-exporter's labels: of the allocation, else the only job with processes on the GPU."""

from __future__ import annotations

from collections.abc import Callable

from exporter.compat.dcgm.series import OWNER_LABELS, Entity
from exporter.model import Labels
from exporter.resolve.allocations import Allocations

_FROM_PROCESS = {"pod": "pod", "namespace": "namespace", "container": "container", "slurm_job_id": "hpc_job"}
"""dcgm-exporter's names for labels of a process."""


class EntityOwners:
    """Finds owners; `labels` returns the labels of a pid."""

    def __init__(self, allocations: Allocations, labels: Callable[[int], Labels]) -> None:
        self._allocations, self._labels = allocations, labels

    def __call__(self, entity: Entity) -> Labels:
        """Returns the known labels; none where several jobs share the entity, because a series has room for one job."""
        uuids = [mig.uuid for mig in entity.migs] or [entity.gpu.uuid]
        known = _only([self._allocations.of(uuid) for uuid in uuids]) or _only(self._jobs(entity))
        return {_own_name(name): value for name, value in known.items()}

    def _jobs(self, entity: Entity) -> list[Labels]:
        jobs: list[Labels] = []
        for process in entity.gpu.processes:
            if not entity.migs or process.gpu_instance == entity.migs[0].gpu_instance:
                labels = self._labels(process.pid)
                jobs.append({ours: labels[name] for name, ours in _FROM_PROCESS.items() if labels.get(name)})
        return jobs


def _own_name(name: str) -> str:
    """Returns the name without the prefix label_, as in dcgm-exporter, unless the short name is invalid or in use."""
    short = name.removeprefix("label_")
    return name if short[:1].isdigit() or short in OWNER_LABELS else short


def _only(found: list[Labels]) -> Labels:
    """Returns the only distinct set of labels; no labels where there are several or none."""
    different = {frozenset(labels.items()): labels for labels in found if labels}
    return next(iter(different.values())) if len(different) == 1 else {}
