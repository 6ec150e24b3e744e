"""Who uses a GPU, in dcgm-exporter's labels: whom it is allocated to, else the one job whose processes are on it."""

from __future__ import annotations

from collections.abc import Callable

from exporter.dcgm.series import OWNER_LABELS, Target
from exporter.model import Labels
from exporter.resolve.allocations import Allocations

_FROM_PROCESS = {"pod": "pod", "namespace": "namespace", "container": "container", "slurm_job_id": "hpc_job"}
"""Labels of a process, by the name dcgm-exporter has for them."""


class Owners:
    """`labels` says who a pid is."""

    def __init__(self, allocations: Allocations, labels: Callable[[int], Labels]) -> None:
        self._allocations, self._labels = allocations, labels

    def __call__(self, target: Target) -> Labels:
        """The labels known; none where several jobs share the target, for a series has room for one."""
        uuids = [mig.uuid for mig in target.migs] or [target.gpu.uuid]
        known = _only([self._allocations.of(uuid) for uuid in uuids]) or _only(self._jobs(target))
        return {_own_name(name): value for name, value in known.items()}

    def _jobs(self, target: Target) -> list[Labels]:
        jobs: list[Labels] = []
        for process in target.gpu.processes:
            if not target.migs or process.gpu_instance == target.migs[0].gpu_instance:
                labels = self._labels(process.pid)
                jobs.append({ours: labels[name] for name, ours in _FROM_PROCESS.items() if labels.get(name)})
        return jobs


def _own_name(name: str) -> str:
    """dcgm-exporter has a pod's labels without label_ before them; here one that is no name, or taken, keeps it."""
    short = name.removeprefix("label_")
    return name if short[:1].isdigit() or short in OWNER_LABELS else short


def _only(found: list[Labels]) -> Labels:
    """The one there is, several equal ones counted as one; nothing where there are several or none."""
    different = {frozenset(labels.items()): labels for labels in found if labels}
    return next(iter(different.values())) if len(different) == 1 else {}
