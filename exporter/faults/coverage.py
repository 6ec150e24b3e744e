"""Which alert wakes somebody for which cause of a stopped job, and what cannot be seen; for docs/faults.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.faults import categories as rows


@dataclass(frozen=True, slots=True)
class Coverage:
    """`besides` are sources other than node_fault_total and Xids; `blind` is what stays unseen."""

    alerts: tuple[str, ...]
    besides: str
    blind: str


COVERAGE: Mapping[str, Coverage] = {
    rows.FAULTY_GPU: Coverage(
        (
            *("GpuLost", "GpuResetNeeded", "GpuNvlinkFault", "GpuUnhealthy", "GpuRecoveryActionNeeded"),
            *("GpuRecoveryPending", "GpuCountFell", "GpuFabricUnhealthy", "GpuFabricNotJoined"),
        ),
        "NVML: GPUs that are gone, recovery action, NVLinks, fabric",
        "a GPU that computes wrongly and says nothing",
    ),
    rows.HBM: Coverage(
        ("GpuMemoryFault", "GpuEccUncorrectable", "GpuRowRemapFailed", "GpuRowRemapPending", "GpuRetiredPagesPending"),
        "NVML: ECC errors, remapped rows, retired pages",
        "nothing that ECC notices; remapped rows are not told while MIG is on",
    ),
    rows.SOFTWARE: Coverage(
        ("GpuProcessCrashed", "OutOfMemoryKill", "GpuRepeatedJobFault", "CudaErrorsFrequent", "CudaContextLost"),
        "ends of GPU processes, errors that CUDA and NCCL calls return",
        "a job that ends by itself with an exception: gpu_process_exits_total has its status, which no alert can judge",
    ),
    rows.NETWORK: Coverage(
        (
            *("RdmaLinkDown", "NicDegraded", "RdmaLinkErrorsRising", "RdmaLinkSpeedReduced", "RdmaRetriesExceeded"),
            *("RdmaAckTimeouts", "RdmaNackRatioHigh", "NvswitchFatalError", "GpuNvlinkDown", "GpuNvlinkInactive"),
            *("GpuNvlinkErrorsRising", "SwitchSuspected"),
        ),
        "port counters and link states of RDMA devices",
        "the switch itself: SwitchSuspected concludes it from several nodes, where they have a label `switch`",
    ),
    rows.MAINTENANCE: Coverage(
        ("NodeShutdownScheduled", "NodeMaintenanceAnnounced", "NodeRebooted"),
        "systemd-logind's schedule, what others report, the time of the boot",
        "the metadata service of a cloud is not asked: a script that does reports what it says (below); a node that "
        "Kubernetes drains is seen by the ends of its processes alone",
    ),
    rows.SRAM: Coverage(
        ("GpuMemoryFault", "GpuSramErrorsExceeded", "GpuEccUncorrectable"),
        "NVML: SRAM ECC errors by location, and their threshold",
        "nothing that ECC notices",
    ),
    rows.PROCESSOR: Coverage(
        ("GpuResetNeeded", "GpuNvmlStalled"),
        "NVML calls that do not come back: the firmware answers them",
        "a slow firmware that answers in the end",
    ),
    rows.NIC: Coverage(
        ("NicFault", "NicDegraded", "PcieFault"),
        "PCIe errors of the NIC and the ports above it",
        "drivers other than mlx5 whose messages are not in the table",
    ),
    rows.NCCL: Coverage(
        ("NcclHang", "NcclRankBehind", "NcclRankMissing", "GpuProcessCrashed"),
        "collectives in flight and the time of the last one, ranks that RAS misses, the abort of the watchdog",
        "the rank that made the others wait, when it is on another node: compare them by communicator",
    ),
    rows.CORRUPTION: Coverage(
        ("GpuTestStale",),
        "",
        "it has no passive signal: only the age of the last test that passed is told, and that only if you have one",
    ),
    rows.THERMAL: Coverage(
        ("GpuThermalSlowdown", "ChassisFault"),
        "NVML: temperatures, margins, time slowed down by heat",
        "a sensor that tells a plausible wrong value",
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
        "the loss of the whole machine's power is seen from outside only: AccelExporterDown, and a new boot after it",
    ),
    rows.CHASSIS: Coverage(
        ("ChassisFault", "PcieLinkDegraded", "FaultReported"),
        "hwmon alarms of temperatures, fans and voltages; those of the management controller with "
        "--collector.faults.ipmi",
        "what came and went between two looks; sensors that only Redfish tells: a script reports them (below)",
    ),
    rows.EXPANSION: Coverage(
        ("PcieFault", "PcieLinkDegraded", "GpuPcieLinkDegraded", "GpuPcieReplaysFrequent"),
        "AER counters and link widths up to the root port, NVML's replay counters",
        "which of two ends of a link is at fault",
    ),
    rows.DEPENDENCY: Coverage(
        ("StorageNotResponding", "KernelStuck"),
        "",
        "services that jobs talk to by themselves (registries, stores, DNS)",
    ),
    rows.CPU: Coverage(
        ("CpuFault", "KernelStuck", "CpusMissing"),
        "how many CPUs run",
        "machine checks on kernels that do not print them",
    ),
    rows.MEMORY: Coverage(
        ("SystemMemoryFault", "SystemMemoryErrorsFrequent", "MemoryMissing", "OutOfMemoryKill"),
        "EDAC counters by module, how much memory the kernel has",
        "machines without an EDAC driver: node_fault_source_available says so",
    ),
}
"""By category, a row of the table each."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause in another fleet's words: the categories that it is here, what fires on it, what stays unseen."""

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
            *("GpuRowRemapPending", "GpuRetiredPagesPending", "CudaHardwareError"),
        ),
        "corrected errors page nobody",
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
        "a node without power says nothing: that it was power, the management controller's log tells later",
    ),
    Cause(
        "mis-operation",
        (rows.MAINTENANCE,),
        ("NodeShutdownScheduled", "NodeRebooted", "AccelExporterDown", "GpuCountFell", "RdmaLinkDown"),
        "that a person did it: only what came of it is seen",
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
        "peers that copy through the host because the topology or an IOMMU forbids more: slow, and no fault",
    ),
    Cause(
        "cooling failure",
        (rows.THERMAL, rows.CHASSIS),
        ("GpuThermalSlowdown", "ChassisFault", "FaultReported"),
    ),
)
"""What a fleet of 1,000 nodes lists as its causes."""
