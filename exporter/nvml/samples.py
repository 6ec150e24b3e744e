"""Samples of a snapshot of the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from uuid import UUID

from exporter.model import Labels, Metric, Sample
from exporter.nvml import metrics
from exporter.nvml.reading import Reading
from exporter.nvml.readings import GPU_BY_KEY, LINK_BY_KEY, MIG_BY_KEY
from exporter.nvml.snapshot import FAST, DriverVersions, Gpu, GpuProcess, GpuSnapshot, Mig, Values

STATES = ("ok", "degraded", "failed", "lost", "stalled")
_HEALTH = {"reset_required": "failed"}
_FABRIC_REGISTERED = 3
_CLOCK_EVENTS: Mapping[str, int] = {
    "idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}
"""Bits of the reading clocks_event_reasons."""
_FABRIC_CONDITIONS: Mapping[str, int] = {
    "degraded_bandwidth": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
}
"""Position of the two bits in the reading fabric_health: 0 unknown, 1 true, 2 false."""


def samples(snapshot: GpuSnapshot, process_labels: Callable[[int], Labels]) -> Iterator[Sample]:
    """Yields every series of the GPUs; `process_labels` returns the labels of a pid."""
    for gpu in snapshot.gpus:
        labels = {"gpu": str(gpu.index), "gpu_uuid": gpu.uuid}
        yield from _status(gpu, labels)
        if gpu.state == "ok" and snapshot.driver is not None:
            yield metrics.INFO.sample(1, {**labels, **_info(gpu, snapshot.driver)})
        for readings in gpu.sets.values():
            yield from _shown(GPU_BY_KEY, readings.values, labels)
        yield from _derived(gpu, labels)
        for link in range(gpu.identity.links):
            yield from _shown(LINK_BY_KEY, gpu.link_values(link), {**labels, "link": str(link)})
        for mig in gpu.identity.migs if gpu.state == "ok" else ():
            yield from _mig(mig, gpu.mig_values(mig.uuid), labels)
        for process in gpu.processes:
            yield from _process(process, {**process_labels(process.pid), **labels})


def _shown(declared: Mapping[str, Reading], values: Values, labels: Labels) -> Iterator[Sample]:
    for key, value in values.items():
        reading = declared.get(key)
        if reading is not None and reading.metric is not None and reading.duplicate_of not in values:
            own = {**_own(reading.metric, labels), **reading.labels}
            yield Sample(reading.metric, own, reading.scale(value))


def _own(metric: Metric, labels: Labels) -> Labels:
    return {"hw_type": "gpu", **labels} if metric.labels[0] == "hw_type" else labels


def _status(gpu: Gpu, labels: Labels) -> Iterator[Sample]:
    """Yields the state; nothing before the first readings and while NVML as a whole does not answer."""
    if gpu.state == "ok" and FAST not in gpu.sets:
        return
    state = _HEALTH.get(gpu.state, gpu.state)
    if state == "ok" and gpu.value("recovery_action"):
        state = "degraded"
    for name in STATES:
        yield metrics.STATUS.sample(int(name == state), {"hw_type": "gpu", **labels, "state": name})


def _info(gpu: Gpu, driver: DriverVersions) -> Labels:
    identity = gpu.identity
    return {
        "name": identity.name,
        "pci_bus_id": identity.pci_bus_id,
        "serial": identity.serial,
        "device": "" if identity.minor is None else str(identity.minor),
        "brand": identity.brand,
        "compute_capability": identity.compute_capability,
        "board_part_number": identity.board_part_number,
        "vbios": identity.vbios,
        "inforom_image": identity.inforom.get("image", ""),
        "driver_version": driver.version,
        "nvml_version": driver.nvml,
        "cuda_version": f"{driver.cuda // 1000}.{driver.cuda % 1000 // 10}" if driver.cuda else "",
        "mig": "enabled" if identity.mig_enabled else "disabled",
        "virtualization": identity.vgpu,
    }


def _derived(gpu: Gpu, labels: Labels) -> Iterator[Sample]:
    used, total = gpu.value("memory_used_bytes"), gpu.value("memory_bytes")
    if used is not None and total:
        yield metrics.MEMORY_SHARE.sample(used / total, labels)
    reasons = gpu.value("clocks_event_reasons")
    if reasons is not None:
        for reason, bit in _CLOCK_EVENTS.items():
            yield metrics.CLOCK_EVENT.sample(int(bool(int(reasons) & bit)), {**labels, "reason": reason})
    status, health = gpu.value("fabric_status"), gpu.value("fabric_health")
    if gpu.value("fabric_state") == _FABRIC_REGISTERED and status is not None:
        yield metrics.FABRIC_STATUS.sample(status, labels)
        if (clique := gpu.value("fabric_clique")) is not None:
            yield metrics.FABRIC_CLIQUE.sample(clique, labels)
        if (cluster := gpu.value("fabric_cluster")) is not None:
            yield metrics.FABRIC_CLUSTER.sample(int(bool(cluster)), labels)
        if found := _fabric(gpu):
            yield metrics.FABRIC_INFO.sample(1, {**labels, "cluster_uuid": found[0], "clique_id": found[1]})
    for condition, shift in _FABRIC_CONDITIONS.items():
        state = int(health or 0) >> shift & 3
        if state in (1, 2):
            yield metrics.FABRIC_HEALTH.sample(int(state == 1), {**labels, "condition": condition})


def nvlink_domain(snapshot: GpuSnapshot) -> str:
    """Returns cluster UUID and clique of the GPUs as UUID.CLIQUE, empty where they have none, or not all the same one.

    NVIDIA's GPU operator writes the same into the label nvidia.com/gpu.clique of a node.
    """
    found = {_fabric(gpu) for gpu in snapshot.gpus}
    [one] = found if len(found) == 1 else (None,)
    return ".".join(one) if one else ""


def _fabric(gpu: Gpu) -> tuple[str, str] | None:
    """Returns cluster UUID and clique of a GPU that has joined both; None of another one."""
    cluster, clique = gpu.value("fabric_cluster"), gpu.value("fabric_clique")
    joined = gpu.value("fabric_state") == _FABRIC_REGISTERED and gpu.value("fabric_status") == 0
    return (str(UUID(int=int(cluster))), str(int(clique))) if joined and cluster and clique is not None else None


def _mig(mig: Mig, values: Values, labels: Labels) -> Iterator[Sample]:
    of_mig = {
        **labels,
        "mig_uuid": mig.uuid,
        "profile": mig.profile,
        "gpu_instance": str(mig.gpu_instance),
        "compute_instance": str(mig.compute_instance),
    }
    yield metrics.MIG_INFO.sample(1, of_mig)
    yield from _shown(MIG_BY_KEY, values, of_mig)


def _process(process: GpuProcess, labels: Labels) -> Iterator[Sample]:
    if process.memory is not None:
        of_memory = {**labels, "kind": process.kind}
        if process.gpu_instance is not None:
            of_memory |= {"gpu_instance": str(process.gpu_instance), "compute_instance": str(process.compute_instance)}
        yield metrics.PROCESS_MEMORY.sample(process.memory, of_memory)
    for engine, percent in process.utilization.items():
        yield metrics.PROCESS_UTILIZATION.sample(percent / 100, {**labels, "engine": engine})
