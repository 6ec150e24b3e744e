"""The allocation of this node's GPUs to pods and jobs: written by the allocation collector, read by others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from exporter.kubernetes import devices
from exporter.kubernetes.podresources import ContainerDevice
from exporter.model import Labels
from exporter.resolve.gpu import GpuDevice, Inventory
from exporter.resolve.slurm import JobGpu


@dataclass(frozen=True, slots=True)
class Allocation:
    """A GPU or a MIG device that a container or a Slurm job has; `gpu` is None when the device is not identified.

    `device` is the kubelet's device id, `pod_labels` are the configured labels of the pod, as label_NAME. Other fields
    are empty where they do not apply.
    """

    gpu: GpuDevice | None
    pod: str = ""
    namespace: str = ""
    container: str = ""
    resource: str = ""
    device: str = ""
    slurm_job_id: str = ""
    pod_labels: Labels = field(default_factory=dict)
    workload: Labels = field(default_factory=dict)
    """The labels of the pod's workload."""

    @property
    def labels(self) -> Labels:
        """The labels of gpu_allocation_info."""
        gpu_labels = {**self.gpu.labels, "mig_uuid": self.gpu.mig_uuid} if self.gpu else {}
        names = ("pod", "namespace", "container", "resource", "device", "slurm_job_id")
        labels = {**self.pod_labels, **self.workload, **gpu_labels, **{name: getattr(self, name) for name in names}}
        return {name: value for name, value in labels.items() if value}


def of_containers(
    containers: Iterable[ContainerDevice],
    inventory: Inventory,
    pod_labels: Mapping[tuple[str, str], Labels] | None = None,
    workloads: Mapping[tuple[str, str], Labels] | None = None,
) -> list[Allocation]:
    """Return the allocations of the kubelet, one for each device, or several for the MIG devices of a GPU instance.

    `pod_labels` and `workloads` are labels of pods and of their workloads by namespace and name of the pod.
    """
    labels, of_workloads = pod_labels or {}, workloads or {}
    found: list[Allocation] = []
    for held in containers:
        of = held.namespace, held.pod
        allocation = Allocation(
            None,
            held.pod,
            held.namespace,
            held.container,
            held.resource,
            held.device,
            pod_labels=labels.get(of, {}),
            workload=of_workloads.get(of, {}),
        )
        gpus = devices.gpus(held.device, inventory)
        found += [replace(allocation, gpu=gpu) for gpu in gpus] or [allocation]
    return found


def of_jobs(jobs: Iterable[JobGpu], inventory: Inventory) -> list[Allocation]:
    """Return the allocations of the mapping folder, without GPUs that NVML does not list."""
    return [Allocation(gpu, slurm_job_id=job.job) for job in jobs for gpu in inventory.at(job.gpu, job.instance)]


class Allocations:
    """The allocations of the node, one object for all collectors; empty at first. Safe from any thread."""

    def __init__(self) -> None:
        self._by_uuid: dict[str, list[Allocation]] = {}

    def replace(self, allocations: Iterable[Allocation]) -> None:
        """Replace all allocations by the current ones."""
        by_uuid: dict[str, list[Allocation]] = {}
        for allocation in allocations:
            if allocation.gpu:
                by_uuid.setdefault(allocation.gpu.uuid, []).append(allocation)
        self._by_uuid = by_uuid

    def of(self, uuid: str) -> Labels:
        """Return pod (with its label_NAME), namespace, container and hpc_job of a GPU or MIG device by its UUID.

        A label is left out when several pods, containers or jobs share the device.
        """
        holders = self._by_uuid.get(uuid, ())
        pods = {(holder.namespace, holder.pod) for holder in holders if holder.pod}
        containers = {holder.container for holder in holders if holder.pod}
        jobs = {holder.slurm_job_id for holder in holders if holder.slurm_job_id}
        labels: dict[str, str] = {}
        if len(pods) == 1:
            labels.update(next(holder.pod_labels for holder in holders if holder.pod))
            [(labels["namespace"], labels["pod"])] = pods
            labels["container"] = _only(sorted(containers))
        labels["hpc_job"] = _only(sorted(jobs))
        return {name: value for name, value in labels.items() if value}


def _only(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else ""
