"""The alerts for each cause of a stopped job, and the blind spots; for docs/faults.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.faults import categories as rows


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of one category. `besides` are sources beside accel_node_fault_total and Xids; `blind` is unseen."""

    alerts: tuple[str, ...]
    besides: str
    blind: str


COVERAGE: Mapping[str, Coverage] = {
    rows.FAULTY_GPU: Coverage(
        (
            *("GpuLost", "GpuResetNeeded", "GpuNvlinkFault", "GpuUnhealthy", "GpuRecoveryActionNeeded"),
            *("GpuCountFell", "DevicesMissing", "GpuFabricUnhealthy", "GpuFabricNotJoined", "GpuFabricUnassigned"),
            *("GpuServiceDown", "GpuSlow"),
        ),
        "NVML: missing GPUs, recovery action, NVLinks, fabric",
        "a GPU that computes wrongly without reporting an error",
    ),
    rows.HBM: Coverage(
        (
            *("GpuMemoryFault", "GpuEccUncorrectable", "GpuRowRemapFailed", "GpuRowRemapPending"),
            *("GpuRetiredPagesPending", "GpuSpareRowsLow", "GpuCorrectedErrorsFrequent", "GpuEccDisabled"),
            "GpuAmdErrorsUncorrected",
        ),
        "NVML: ECC errors, remapped rows, retired pages; amdgpu: errors by block",
        "nothing that ECC detects; remapped rows are not reported while MIG is on",
    ),
    rows.SOFTWARE: Coverage(
        (
            *("GpuProcessCrashed", "OutOfMemoryKill", "GpuRepeatedJobFault", "CudaErrorsFrequent", "CudaContextLost"),
            *("HipErrorsFrequent", "HipContextLost"),
        ),
        "ends of GPU processes, errors that CUDA, HIP and NCCL calls return",
        "a job that ends by itself with an exception: gpu_process_exits_total has its status, which no alert can judge",
    ),
    rows.NETWORK: Coverage(
        (
            *("RdmaLinkDown", "RdmaLinkInactive", "NicDegraded", "RdmaLinkErrorsRising", "RdmaLinkSpeedReduced"),
            *("RdmaRetriesExceeded", "RdmaAckTimeouts", "RdmaNackRatioHigh", "NvswitchFatalError", "SwitchSuspected"),
            *("GpuNvlinkDown", "GpuNvlinkInactive", "GpuNvlinkErrorsRising"),
            *("RdmaPausesSent", "RdmaPacketsDiscarded", "RdmaSubnetManagerAbsent"),
        ),
        "port counters and link states of RDMA devices",
        "the switch itself: SwitchSuspected infers it from several nodes, where their [topology](topology.md) is known",
    ),
    rows.MAINTENANCE: Coverage(
        ("NodeShutdownScheduled", "NodeMaintenanceAnnounced", "NodeRebooted"),
        "systemd-logind's schedule, reports of other programs, the time of the boot",
        "the metadata service of a cloud is not queried: a script can query it and report the result (below); a "
        "node that Kubernetes drains is seen only by the exits of its processes",
    ),
    rows.SRAM: Coverage(
        ("GpuMemoryFault", "GpuSramErrorsExceeded", "GpuEccUncorrectable"),
        "NVML: SRAM ECC errors by location, and their threshold",
        "nothing that ECC detects",
    ),
    rows.PROCESSOR: Coverage(
        ("GpuResetNeeded", "GpuNvmlStalled"),
        "NVML calls that do not return, because the firmware does not respond",
        "a slow firmware that responds late",
    ),
    rows.NIC: Coverage(
        ("NicFault", "NicDegraded", "PcieFault"),
        "PCIe errors of the NIC and the ports above it",
        "messages of drivers other than mlx5 that are not in the table",
    ),
    rows.NCCL: Coverage(
        ("NcclHang", "NcclInitHang", "NcclRankBehind", "NcclRankMissing", "GpuProcessCrashed"),
        "collectives in flight and the time of the last collective, ranks missing from RAS, the abort of the watchdog",
        "the rank that made the others wait, when that rank is on another node: compare ranks by communicator",
    ),
    rows.CORRUPTION: Coverage(
        ("GpuTestStale",),
        "",
        "corruption has no passive signal: only the age of the last passed test is known, if you run such a test",
    ),
    rows.THERMAL: Coverage(
        ("GpuThermalSlowdown", "ChassisFault"),
        "NVML: temperatures, margins, time slowed down by heat",
        "a sensor that reports a plausible wrong value",
    ),
    rows.SSD: Coverage(
        ("DriveFault",),
        "state of NVMe controllers; their SMART logs with --collector.faults.nvme-smart",
        "drives behind RAID controllers",
    ),
    rows.POWER: Coverage(
        ("GpuNeedsService", "GpuPowerBrake", "ChassisFault", "FaultReported", "NodeRebooted"),
        "NVML: power brake; hwmon alarms of power supplies where the machine has such sensors; those of the management "
        "controller with --collector.faults.ipmi",
        "the loss of the whole machine's power is seen only from outside: AccelExporterDown, and a new boot afterwards",
    ),
    rows.CHASSIS: Coverage(
        ("ChassisFault", "PcieLinkDegraded", "FaultReported"),
        "hwmon alarms of temperatures, fans and voltages; those of the management controller with "
        "--collector.faults.ipmi",
        "alarms that came and went between two readings; sensors that only Redfish has: a script reports them (below)",
    ),
    rows.EXPANSION: Coverage(
        ("PcieFault", "PcieLinkDegraded", "GpuPcieLinkDegraded", "GpuPcieReplaysFrequent"),
        "AER counters and link widths up to the root port, NVML's replay counters",
        "which end of a link is at fault",
    ),
    rows.DEPENDENCY: Coverage(
        ("StorageNotResponding", "KernelStuck"),
        "",
        "services that jobs use directly (registries, stores, DNS)",
    ),
    rows.CPU: Coverage(
        ("CpuFault", "KernelStuck", "CpusMissing"),
        "the number of running CPUs",
        "machine checks on kernels that do not print them",
    ),
    rows.MEMORY: Coverage(
        ("SystemMemoryFault", "SystemMemoryErrorsFrequent", "MemoryMissing", "OutOfMemoryKill"),
        "EDAC counters by module, the amount of memory of the kernel",
        "machines without an EDAC driver: accel_node_fault_source_available shows them",
    ),
}
"""Coverage by category, a row of the table each."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause as another fleet names it: its categories here, the alerts that fire on it, the blind spot."""

    name: str
    categories: tuple[str, ...]
    alerts: tuple[str, ...]
    blind: str = ""


ELSEWHERE = (
    Cause("GPU lost", (rows.FAULTY_GPU,), ("GpuLost", "GpuUnhealthy", "GpuCountFell")),
    Cause(
        "ECC error",
        (rows.HBM, rows.SRAM),
        (
            *("GpuEccUncorrectable", "GpuMemoryFault", "GpuSramErrorsExceeded", "GpuRowRemapFailed"),
            *("GpuRowRemapPending", "GpuRetiredPagesPending", "CudaHardwareError", "GpuAmdErrorsUncorrected"),
            "HipHardwareError",
        ),
        "corrected errors do not page",
    ),
    Cause(
        "GPU failure",
        (rows.FAULTY_GPU, rows.PROCESSOR),
        ("GpuResetNeeded", "GpuUnhealthy", "GpuRecoveryActionNeeded", "GpuNeedsService", "GpuNvmlStalled"),
        "wrong results without an error: GpuTestStale",
    ),
    Cause("NIC failure", (rows.NIC,), ("NicFault", "NicDegraded", "RdmaLinkDown", "PcieFault")),
    Cause(
        "power outage",
        (rows.POWER,),
        ("AccelExporterDown", "NodeRebooted", "GpuPowerBrake", "ChassisFault", "FaultReported"),
        "a node without power is silent: the management controller's log shows later that power was the cause",
    ),
    Cause(
        "mis-operation",
        (rows.MAINTENANCE,),
        ("NodeShutdownScheduled", "NodeRebooted", "AccelExporterDown", "GpuCountFell", "RdmaLinkDown"),
        "the person: only the consequences are seen",
    ),
    Cause(
        "NAS failure",
        (rows.DEPENDENCY,),
        ("StorageNotResponding", "KernelStuck"),
        "file systems other than NFS are seen when their processes have hung in the kernel for two minutes",
    ),
    Cause(
        "NVLink failure",
        (rows.FAULTY_GPU, rows.NETWORK),
        (
            *("GpuNvlinkFault", "GpuNvlinkDown", "GpuNvlinkInactive", "GpuNvlinkErrorsRising"),
            *("NvswitchFatalError", "GpuFabricUnhealthy", "GpuFabricNotJoined", "CudaHardwareError"),
        ),
    ),
    Cause(
        "P2P failure",
        (rows.FAULTY_GPU, rows.EXPANSION),
        (
            *("GpuRecoveryActionNeeded", "GpuNvlinkDown", "PcieFault", "PcieLinkDegraded", "GpuPcieLinkDegraded"),
            *("GpuPcieReplaysFrequent", "CudaErrorsFrequent", "NcclErrors"),
        ),
        "peers that copy through the host because of the topology or an IOMMU: slow, but not a fault",
    ),
    Cause(
        "cooling failure",
        (rows.THERMAL, rows.CHASSIS),
        ("GpuThermalSlowdown", "ChassisFault", "FaultReported"),
    ),
)
"""The causes that a fleet of 1,000 nodes lists."""
