"""Every fault that is injected: the row of the table it is of, its source, and the alert that it has to fire."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pynvml

from exporter.faults import categories as rows
from tests.drivers.controller import BAY, CPU, DIMM, FAN, INLET, SLOT, SUPPLIES, Sensor
from tests.e2e.fault_machine import GPU, NIC, PCI, Machine
from tests.unit.amdgpu import trees as amdgpu
from tests.unit.infiniband.trees import write

_DAY = 86_400


@dataclass(frozen=True)
class Case:
    """A fault: its row, its source, how it is injected into a machine, and its alert with the labels that name it.

    One that keeps others from being seen comes `last`, when their alerts fire. Without a row it is of the exporter's
    own sight.
    """

    category: str
    source: str
    inject: Callable[[Machine], None]
    alert: str
    labels: Mapping[str, str] = field(default_factory=dict)
    last: bool = False


def _logs(*texts: str) -> Callable[[Machine], None]:
    def inject(machine: Machine) -> None:
        for text in texts:
            machine.log.add(text)

    return inject


def _file(name: str, text: str) -> Callable[[Machine], None]:
    return lambda machine: machine.write(name, text)


def _nvml(key: str, value: object) -> Callable[[Machine], None]:
    return lambda machine: machine.gpus.set({key: value})


def _field(gpu: int, name: str, value: int) -> Callable[[Machine], None]:
    return _nvml(f"gpu{gpu}.field.{getattr(pynvml, 'NVML_FI_DEV_' + name)}", value)


def _link_errors(machine: Machine) -> None:
    machine.gpus.set({f"gpu6.field.{pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY}.link": 500})


def _cuda_fails(machine: Machine) -> None:
    machine.failing.begin(
        "lib.standin_fail(b'cuMemAlloc_v2', 719)\n"
        "while True:\n"
        "    new(lib.cuMemAlloc_v2, size(64), check=719)\n"
        "    time.sleep(0.01)"
    )


def _abort(machine: Machine) -> None:
    machine.worker.begin("os.kill(os.getpid(), 6)")


def _hang(machine: Machine) -> None:
    machine.rank.begin("lib.standin_stall(c_uint64(600 * 10**9)); reduce_all(c, 1)")


def _link_down(machine: Machine) -> None:
    write(machine.port / "state", "1: DOWN")


def _schedule(machine: Machine) -> None:
    machine.shutdown.write_text(f"USEC={(time.time() + 3600) * 1e6:.0f}\nMODE=reboot\n")


def _forget_the_test(machine: Machine) -> None:
    os.utime(machine.stamp, (time.time() - 8 * _DAY,) * 2)


def _controller(category: str, sensor: Sensor, name: str, alert: str) -> Case:
    return Case(
        category, "management controller", lambda machine: machine.controller.fails(sensor), alert, {"component": name}
    )


_DIMM = "devices/system/edac/mc/mc0/dimm0"
CASES = (
    Case(rows.FAULTY_GPU, "kernel log", _logs("NVRM: Xid (PCI:0000:3b:00): 79, x"), "GpuLost"),
    Case(rows.FAULTY_GPU, "NVML", _nvml("gpu3.lost", 1), "GpuUnhealthy", {"gpu": "3", "state": "lost"}),
    Case(rows.FAULTY_GPU, "NVML", _field(1, "GET_GPU_RECOVERY_ACTION", 1), "GpuRecoveryActionNeeded", {"gpu": "1"}),
    Case(rows.HBM, "kernel log", _logs("NVRM: Xid (PCI:0000:3b:00): 171, x"), "GpuMemoryFault", {"xid": "171"}),
    Case(rows.HBM, "NVML", _field(2, "ECC_DBE_VOL_TOTAL", 3), "GpuEccUncorrectable", {"gpu": "2"}),
    Case(rows.HBM, "NVML", _field(2, "REMAPPED_FAILURE", 1), "GpuRowRemapFailed", {"gpu": "2"}),
    Case(
        rows.HBM,
        "RAS counts of amdgpu in sysfs",
        lambda machine: write(machine.amd / "ras/umc_err_count", "ue: 2\nce: 7\nde: 5"),
        "GpuAmdErrorsUncorrected",
        {"pci_bus_id": amdgpu.BUS},
    ),
    Case(rows.SOFTWARE, "SIGABRT of a GPU process", _abort, "GpuProcessCrashed"),
    Case(
        rows.SOFTWARE,
        "kernel log",
        _logs("Memory cgroup out of memory: Killed process 4711 (train) total-vm:1000kB"),
        "OutOfMemoryKill",
    ),
    Case(
        rows.NETWORK,
        "kernel log",
        _logs(f"mlx5_core {NIC}: Port module event: module 0, Cable unplugged"),
        "NicDegraded",
        {"component": NIC, "category": rows.NETWORK},
    ),
    Case(rows.NETWORK, "RDMA link in sysfs", _link_down, "RdmaLinkInactive", {"device": "mlx5_0"}),
    Case(
        rows.NETWORK,
        "RDMA counter in sysfs",
        lambda machine: write(machine.port / "counters/link_downed", 3),
        "NicDegraded",
        {"component": "mlx5_0 1", "signal": "rdma_link_flap"},
    ),
    Case(
        rows.NETWORK,
        "kernel log",
        _logs("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error"),
        "NvswitchFatalError",
    ),
    Case(rows.MAINTENANCE, "systemd-logind's schedule", _schedule, "NodeShutdownScheduled", {"mode": "reboot"}),
    Case(rows.SRAM, "NVML", _nvml("gpu4.sram_threshold", 1), "GpuSramErrorsExceeded", {"gpu": "4"}),
    Case(
        rows.PROCESSOR,
        "kernel log",
        _logs("NVRM: Xid (PCI:0000:5e:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response"),
        "GpuResetNeeded",
        {"action": "RESET_GPU"},
    ),
    Case(
        rows.NIC,
        "kernel log",
        _logs(f"mlx5_core {NIC}: print_health:427: synd 0x8: unrecoverable hardware error"),
        "NicFault",
        {"component": NIC},
    ),
    Case(rows.NCCL, "NCCL call that does not return", _hang, "NcclHang"),
    Case(rows.CORRUPTION, "age of the last test", _forget_the_test, "GpuTestStale"),
    Case(
        rows.THERMAL,
        "NVML",
        _field(5, "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", 100_000_000_000),
        "GpuThermalSlowdown",
        {"gpu": "5"},
    ),
    Case(
        rows.SSD,
        "kernel log",
        _logs("nvme nvme0: I/O 22 QID 5 timeout, aborting"),
        "DriveFault",
        {"component": "nvme0", "signal": "nvme_timeout"},
    ),
    Case(
        rows.SSD,
        "NVMe state in sysfs",
        _file("class/nvme/nvme0/state", "dead"),
        "DriveFault",
        {"component": "nvme0", "signal": "nvme_not_live"},
    ),
    Case(
        rows.POWER,
        "NVML",
        _field(6, "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", 100_000_000_000),
        "GpuPowerBrake",
        {"gpu": "6"},
    ),
    Case(
        rows.POWER,
        "hwmon",
        _file("class/hwmon/hwmon0/power1_alarm", "1"),
        "ChassisFault",
        {"component": "psu_hwmon0 power1"},
    ),
    Case(
        rows.CHASSIS,
        "hwmon",
        _file("class/hwmon/hwmon1/fan2_alarm", "1"),
        "ChassisFault",
        {"component": "nct6779_hwmon1 fan2"},
    ),
    Case(
        rows.CHASSIS,
        "PCIe link in sysfs",
        _file(f"{PCI}/{NIC}/current_link_width", "8"),
        "PcieLinkDegraded",
        {"pci_bus_id": NIC},
    ),
    Case(
        rows.EXPANSION,
        "AER in sysfs",
        _file(f"{PCI}/{GPU}/aer_dev_fatal", "TOTAL_ERR_FATAL 1"),
        "PcieFault",
        {"component": GPU, "signal": "pcie_fatal"},
    ),
    Case(
        rows.DEPENDENCY,
        "kernel log",
        _logs("nfs: server storage1.example not responding, still trying"),
        "StorageNotResponding",
        {"component": "storage1.example"},
    ),
    Case(
        rows.CPU,
        "kernel log",
        _logs("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: be00000000800400"),
        "CpuFault",
        {"component": "12"},
    ),
    Case(
        rows.MEMORY,
        "EDAC in sysfs",
        _file(f"{_DIMM}/dimm_ue_count", "1"),
        "SystemMemoryFault",
        {"component": "mc0 DIMM_A1"},
    ),
    Case(rows.FAULTY_GPU, "kernel log", _logs("NVRM: Xid (PCI:0000:3b:00): 74, x"), "GpuNvlinkFault", {"xid": "74"}),
    Case(
        rows.FAULTY_GPU,
        "kernel log",
        _logs(
            "NVRM: Xid (PCI:0000:77:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
        ),
        "GpuRecoveryActionNeeded",
        {"pci_bus_id": "00000000:77:00.0"},
    ),
    Case(rows.FAULTY_GPU, "NVML", _nvml("gpu0.fabric_health", "0x29"), "GpuFabricUnhealthy", {"gpu": "0"}),
    Case(rows.FAULTY_GPU, "NVML", _nvml("gpu1.fabric_state", 2), "GpuFabricNotJoined", {"gpu": "1"}),
    Case(rows.FAULTY_GPU, "NVML, a GPU less", lambda machine: None, "GpuCountFell"),
    Case(rows.HBM, "NVML", _field(0, "REMAPPED_PENDING", 1), "GpuRowRemapPending", {"gpu": "0"}),
    Case(rows.HBM, "NVML", _field(0, "RETIRED_PENDING", 1), "GpuRetiredPagesPending", {"gpu": "0"}),
    Case(rows.SOFTWARE, "CUDA calls that fail", _cuda_fails, "CudaContextLost"),
    Case(rows.SOFTWARE, "CUDA calls that fail", lambda machine: None, "CudaErrorsFrequent"),
    Case(rows.NETWORK, "NVML", _nvml("gpu6.link_state.3", 0), "GpuNvlinkDown", {"gpu": "6"}),
    Case(rows.NETWORK, "NVML", lambda machine: None, "GpuNvlinkInactive", {"gpu": "6"}),
    Case(rows.NETWORK, "NVML", _link_errors, "GpuNvlinkErrorsRising", {"gpu": "6"}),
    Case(rows.MAINTENANCE, "boot time in /proc", lambda machine: machine.node.boot(), "NodeRebooted"),
    Case(
        rows.PROCESSOR, "NVML call that hangs", _nvml("hang", "nvmlDeviceGetPowerUsage@7"), "GpuNvmlStalled", last=True
    ),
    Case(rows.POWER, "kernel log", _logs("NVRM: Xid (PCI:0000:3b:00): 54, x"), "GpuNeedsService", {"xid": "54"}),
    Case(rows.EXPANSION, "NVML", _nvml("gpu2.pcie_width", 8), "GpuPcieLinkDegraded", {"gpu": "2"}),
    Case(rows.EXPANSION, "NVML", _field(2, "PCIE_REPLAY_COUNTER", 100_000), "GpuPcieReplaysFrequent", {"gpu": "2"}),
    Case(
        rows.DEPENDENCY,
        "kernel log",
        _logs(*["INFO: task python3:4711 blocked for more than 120 seconds."] * 3),
        "KernelStuck",
    ),
    Case(
        rows.CPU,
        "kernel log",
        _logs("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [nv_queue:1234]"),
        "KernelStuck",
    ),
    Case(rows.MEMORY, "EDAC in sysfs", _file(f"{_DIMM}/dimm_ce_count", "5000"), "SystemMemoryErrorsFrequent"),
    Case(rows.CPU, "CPUs in sysfs", _file("devices/system/cpu/online", "0-63"), "CpusMissing"),
    Case(rows.MEMORY, "/proc/meminfo after a boot", lambda machine: None, "MemoryMissing"),
    Case(
        rows.MAINTENANCE,
        "a report",
        lambda machine: (machine.reports / "host_maintenance.gce").touch(),
        "NodeMaintenanceAnnounced",
        {"component": "gce"},
    ),
    Case(
        rows.POWER,
        "a report",
        lambda machine: (machine.reports / "power_supply.PSU1").touch(),
        "FaultReported",
        {"component": "PSU1"},
    ),
    _controller(rows.POWER, SUPPLIES[1], "Power Supply 2 Status", "ChassisFault"),
    _controller(rows.CHASSIS, FAN, "Fan FAN1", "ChassisFault"),
    _controller(rows.CHASSIS, INLET, "System Board Inlet Temp", "ChassisFault"),
    _controller(rows.EXPANSION, SLOT, "Add-in Card Riser", "PcieFault"),
    _controller(rows.CPU, CPU, "Processor CPU0 Status", "CpuFault"),
    _controller(rows.MEMORY, DIMM, "Memory Device DIMM A1", "SystemMemoryFault"),
    _controller(rows.SSD, BAY, "Disk Drive Bay Bay 0", "DriveFault"),
    Case(
        "",
        "management controller that is gone",
        lambda machine: machine.controller.end(),
        "ManagementControllerSilent",
        last=True,
    ),
    Case("", "no /dev/kmsg", lambda machine: None, "FaultSourceUnread"),
)
NOT_INJECTED = {
    "RdmaLinkDown": "takes a gigabyte of traffic within the hour before: promtool tests it",
    "SwitchInMaintenance": "takes links of several nodes to one switch: promtool tests it",
    "SwitchSuspected": "takes links of several nodes to one switch: promtool tests it",
    "GpuNvmlRestarting": "takes three crashes of NVML and growing pauses: tests/program/nvml/test_supervisor.py",
    "GpuRepeatedJobFault": "takes three bursts with three minutes between: see tests/program/faults/xid/test_counts.py",
    "HipContextLost": "takes HIP's library in the scene: promtool tests it, and tests/bpf/test_hip.py counts the calls",
    "HipErrorsFrequent": "takes HIP's library in the scene: promtool tests it, and see tests/bpf/test_hip.py",
    "NcclInitHang": "takes a first NCCL call that lasts 20 minutes: promtool tests it",
    "NcclErrors": "NCCL calls that fail are counted in tests/bpf/test_nccl_counts.py",
    "NcclRankBehind": "is known by RAS alone: tests/unit/ras queries a stand-in of it",
    "NcclRankMissing": "is known by RAS alone: tests/unit/ras queries a stand-in of it",
    "NcclStraggler": "compares ranks of several nodes over minutes: tests/e2e/test_nccl_traces.py",
    **dict.fromkeys(
        (
            *("RdmaNackRatioHigh", "RdmaReceiverNotReady", "RdmaRetriesExceeded", "RdmaAckTimeouts"),
            *("RdmaLinkErrorsRising", "RdmaLinkSpeedReduced"),
        ),
        "tests/program/test_rdma_alerts.py injects it",
    ),
    **dict.fromkeys(
        ("RdmaPausedLong", "RdmaPauseStorm", "RdmaPciStalled"),
        "ethtool's counters need a NIC: tests/unit/infiniband",
    ),
    "RdmaQueuePairError": "takes a queue pair of the kernel's: make test-rdma",
    **dict.fromkeys(
        (
            *(
                "DevicesMissing",
                "GpuCorrectedErrorsFrequent",
                "GpuEccDisabled",
                "GpuFabricUnassigned",
                "GpuServiceDown",
            ),
            *("GpuSlow", "GpuSpareRowsLow", "RdmaPacketsDiscarded", "RdmaPausesSent", "RdmaSubnetManagerAbsent"),
        ),
        "compares days, or GPUs and nodes with each other, or takes a NIC: promtool tests it",
    ),
}
"""Alerts on faults that no case fires, and why. promtool tests their rules all the same (alerts/*.test.yaml)."""
