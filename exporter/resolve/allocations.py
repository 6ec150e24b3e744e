"""Whom the GPUs of this node are given to, for all who ask: the allocation collector writes it, others read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from exporter.kubernetes import devices
from exporter.kubernetes.podresources import Given
from exporter.model import Labels
from exporter.resolve.gpu import Inventory, Place
from exporter.resolve.slurm import Mapped


@dataclass(frozen=True, slots=True)
class Allocation:
    """A GPU or a MIG device that a container or a Slurm job has; `place` is None when it is not known which it is.

    `device` is what the kubelet calls it, `of_pod` are the pod's own labels, as label_NAME, that were asked for. Empty
    strings stand for what does not apply.
    """

    place: Place | None
    pod: str = ""
    namespace: str = ""
    container: str = ""
    resource: str = ""
    device: str = ""
    slurm_job_id: str = ""
    of_pod: Labels = field(default_factory=dict)

    @property
    def labels(self) -> Labels:
        """Those of gpu_allocation_info."""
        of_gpu = {**self.place.labels, "mig_uuid": self.place.mig_uuid} if self.place else {}
        names = ("pod", "namespace", "container", "resource", "device", "slurm_job_id")
        labels = {**self.of_pod, **of_gpu, **{name: getattr(self, name) for name in names}}
        return {name: value for name, value in labels.items() if value}


def of_containers(
    given: Iterable[Given], inventory: Inventory, of_pods: Mapping[tuple[str, str], Labels] | None = None
) -> list[Allocation]:
    """What the kubelet told. One device is one allocation, except a GPU instance, which may be several MIG devices.

    `of_pods` are labels of pods by namespace and name.
    """
    more = of_pods or {}
    found: list[Allocation] = []
    for it in given:
        of_pod = more.get((it.namespace, it.pod), {})
        allocation = Allocation(None, it.pod, it.namespace, it.container, it.resource, it.device, of_pod=of_pod)
        places = devices.places(it.device, inventory)
        found += [replace(allocation, place=place) for place in places] or [allocation]
    return found


def of_jobs(mapped: Iterable[Mapped], inventory: Inventory) -> list[Allocation]:
    """What the mapping folder told; a GPU that NVML does not know is left out, for its index alone says little."""
    return [Allocation(place, slurm_job_id=it.job) for it in mapped for place in inventory.at(it.gpu, it.instance)]


class Allocations:
    """One for a node. Knows nothing before it is told. Safe from any thread."""

    def __init__(self) -> None:
        self._by_uuid: dict[str, list[Allocation]] = {}

    def tell(self, allocations: Iterable[Allocation]) -> None:
        """These are all there are now."""
        by_uuid: dict[str, list[Allocation]] = {}
        for it in allocations:
            if it.place:
                by_uuid.setdefault(it.place.uuid, []).append(it)
        self._by_uuid = by_uuid

    def of(self, uuid: str) -> Labels:
        """The pod (with its label_NAME), namespace, container and hpc_job of a GPU or MIG device by its UUID: where
        there is but one of each.
        """
        holders = self._by_uuid.get(uuid, ())
        pods = {(it.namespace, it.pod) for it in holders if it.pod}
        containers = {it.container for it in holders if it.pod}
        jobs = {it.slurm_job_id for it in holders if it.slurm_job_id}
        labels: dict[str, str] = {}
        if len(pods) == 1:
            labels.update(next(it.of_pod for it in holders if it.pod))
            [(labels["namespace"], labels["pod"])] = pods
            labels["container"] = _only(sorted(containers))
        labels["hpc_job"] = _only(sorted(jobs))
        return {name: value for name, value in labels.items() if value}


def _only(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else ""
