"""The signals of accel_node_fault_total that the kernel log shows: meaning, category and pattern of each.

Data only; docs/faults.md is generated from this table. The patterns match messages of the kernel itself (facility 0),
from their first character on, with the prefixes of Linux's own sources. The kernel also prints names that any user
chooses: that of a process, 15 bytes long, at the beginning of a message too, that of a file further on. So what a
pattern takes from a driver is longer than 15 bytes, and goes on as no message does that begins with a process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from exporter.faults import categories as rows

_BDF = r"(?P<component>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_DEVICE = rf"[^\s:]{{1,32}} {_BDF}: "
_MLX5 = rf"mlx5_core {_BDF}\b.*"
_WATCHDOG = r"(?:(?:NMI )?watchdog: )?"
_UNCORRECTED = r"[abef][0-9a-f]{15}\b"
"""MCi_STATUS with the bits VAL and UC. AMD's decoder (edac/mce_amd.c) prints the names of bits instead."""


@dataclass(frozen=True, slots=True)
class FaultSignal:
    """A kind of fault. `pattern` matches the beginning of its kernel message; its group `component` is what failed.

    `fixed` is the component where the message names none.
    """

    name: str
    category: str
    meaning: str
    action: str
    pattern: re.Pattern[str] | None = None
    fixed: str = ""


def _logged(name: str, category: str, pattern: str, meaning: str, action: str, fixed: str = "") -> FaultSignal:
    return FaultSignal(name, category, meaning, action, re.compile(pattern), fixed)


KERNEL_LOG = (
    _logged(
        "nic_command_timeout",
        rows.NIC,
        _MLX5 + r"timeout\. Will cause a leak of a command resource",
        "the NIC's firmware did not answer a command of its driver",
        "drain the node, reset the NIC or reboot; replace the NIC when the fault comes back",
    ),
    _logged(
        "nic_health_compromised",
        rows.NIC,
        _MLX5 + r"device's health compromised",
        "the NIC's firmware hangs: its health counter does not advance",
        "drain the node and reboot; keep the driver's health report (devlink health show)",
    ),
    _logged(
        "nic_unrecoverable",
        rows.NIC,
        _MLX5 + r"unrecoverable hardware error",
        "the NIC reports a hardware error that it cannot recover from",
        "drain the node and replace the NIC",
    ),
    _logged(
        "nic_transmit_timeout",
        rows.NIC,
        r"(?:[\w.-]{1,32} \S{1,64} |NETDEV WATCHDOG: (?:CPU: \d+: )?)(?P<component>[\w.@-]{1,15})"
        r"(?: \([^)]{0,32}\)|: NETDEV WATCHDOG: CPU: \d+): transmit queue \d+ timed out",
        "a network interface sent nothing for seconds though it had to",
        "see the driver's lines beside it; firmware and cable",
    ),
    _logged(
        "nic_power",
        rows.NIC,
        _MLX5 + r"Detected insufficient power on the PCIe slot",
        "the slot gives the NIC less power than it needs",
        "check the slot's power and the server's firmware; cables to the NIC if it has any",
    ),
    _logged(
        "nic_temperature",
        rows.NIC,
        _MLX5 + r"Port module event.*High Temperature",
        "a cable module of the NIC is too hot",
        "check air flow and the module",
    ),
    _logged(
        "cable_unplugged",
        rows.NETWORK,
        _MLX5 + r"Port module event.*Cable unplugged",
        "a cable of the NIC is not plugged in any more",
        "plug it in, or replace cable or module",
    ),
    _logged(
        "module_error",
        rows.NETWORK,
        _MLX5 + r"Port module event.*(?:Cable error|[Bb]us stuck|Bad or shorted cable|No EEPROM|Unknown identifier)",
        "a cable module of the NIC has failed",
        "replace cable or module",
    ),
    _logged(
        "nvme_timeout",
        rows.SSD,
        r"nvme (?P<component>nvme\d+): (?:I/O (?:tag )?\d+.*timeout|Abort status|controller is down)",
        "an NVMe drive did not answer, or its controller is down",
        "see the drive's SMART log; replace the drive when the log shows wear or the fault comes back",
    ),
    _logged(
        "nvme_disabled",
        rows.SSD,
        r"nvme (?P<component>nvme\d+): "
        r"(?:Disabling device after reset failure|Removing after probe failure|Device not ready)",
        "an NVMe drive was given up",
        "drain the node and replace the drive",
    ),
    _logged(
        "block_error",
        rows.SSD,
        r"(?:(?:blk_update_request|print_req_error|end_request): )?"
        r"(?:critical medium|I/O) error, dev (?P<component>[\w-]{1,31}), sector",
        "a drive could not read or write",
        "see its SMART log; replace it",
    ),
    _logged(
        "filesystem_readonly",
        rows.SSD,
        r"[A-Z][A-Z0-9]{1,8}(?:-fs)? \((?P<component>[\w-]{1,31})\): (?:error: )?[Rr]emounting filesystem read-only",
        "a file system was made read-only after errors",
        "drain the node, check the drive and the file system",
    ),
    _logged(
        "machine_check",
        rows.CPU,
        r"(?:mce: )?\[Hardware Error\]: CPU:? ?(?P<component>\d+)"
        rf"(?:: Machine Check(?: Exception)?: [0-9a-f]{{1,16}} Bank \d{{1,3}}: {_UNCORRECTED}"
        r"| \([0-9a-f:]{1,32}\) MC\d{1,3}_STATUS\[[^|\]]{1,8}\|UE\|)",
        "a CPU reported an error of itself, its caches or its memory that was not corrected",
        "decode it (rasdaemon, mcelog); replace the part it names",
    ),
    _logged(
        "hardware_error",
        rows.CPU,
        r"(?:\{\d+\})?\[Hardware Error\]: event severity: (?:fatal|recoverable)",
        "the firmware reported a hardware error (CPER); the lines after it name the part",
        "read the lines after it; replace the part they name",
        "firmware",
    ),
    _logged(
        "soft_lockup",
        rows.CPU,
        _WATCHDOG + r"BUG: soft lockup - CPU#(?P<component>\d+) stuck",
        "a CPU was in the kernel for over 20 s without a break",
        "see the stack in the log: driver or kernel, seldom the CPU",
    ),
    _logged(
        "hard_lockup",
        rows.CPU,
        rf"(?:Kernel panic - not syncing: )?{_WATCHDOG}(?:CPU\d+: )?"
        r"Watchdog detected hard LOCKUP on cpu (?P<component>\d+)",
        "a CPU took no interrupt for seconds",
        "drain and reboot; see the stack in the log",
    ),
    _logged(
        "hung_task",
        rows.DEPENDENCY,
        r"INFO: task (?P<component>(?s:.{1,15}?)):\d+ blocked (?:in I/O wait )?for more than \d+ seconds",
        "a process waited in the kernel for minutes: mostly for storage or a GPU's driver",
        "see the stack in the log for what it waits for",
    ),
    _logged(
        "cpu_throttled",
        rows.CHASSIS,
        r"(?:mce: )?CPU(?P<component>\d+): (?:Core|Package) temperature (?:is )?above threshold",
        "a CPU is so hot that it slows down: often fans or the room",
        "check fans, air flow and the room's temperature",
    ),
    _logged(
        "critical_temperature",
        rows.CHASSIS,
        r"(?:thermal (?P<component>thermal_zone\d+): (?:[\w. -]{1,32}: )?|thermal_sys: )?"
        r"[Cc]ritical temperature reached",
        "a sensor of the machine is at its critical temperature",
        "check fans and cooling; the machine may switch itself off",
        "thermal",
    ),
    _logged(
        "memory_uncorrected",
        rows.MEMORY,
        r"EDAC (?P<component>MC\d+): \d+ UE (?:\w[^=\[(]{0,99} )?on \S",
        "memory of the machine had an error that was not corrected",
        "drain the node and replace the DIMM that the line names",
    ),
    _logged(
        "memory_page_failed",
        rows.MEMORY,
        r"Memory failure: 0x[0-9a-f]+: (?:recovery action for|unhandlable page)",
        "the kernel took a page with a memory error out of use; a process that used the page may have been killed",
        "replace the DIMM when the fault comes back; see EDAC for which",
        "page",
    ),
    _logged(
        "oom_kill",
        rows.SOFTWARE,
        r"(?:Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): "
        r"Killed process \d+ \((?P<component>(?s:.{1,15}?))\),? (?:total-vm|UID)",
        "the kernel killed a process because memory, of the node or of its container, ran out",
        "give the job more memory, or find what it leaks",
    ),
    _logged(
        "segfault",
        rows.SOFTWARE,
        r"(?s:.{0,15}?)\[\d+\]: segfault at \S+ ip \S+ sp \S+ error \S+ in "
        r"(?P<component>lib(?:cuda|cudart|cublas|cudnn|nccl|nvidia|nv|torch|c10|mlx5|ibverbs|rccl|"
        r"ucp|ucs|uct|nvshmem)[\w.+-]{0,48})\[",
        "a process died of a memory access in a library of the GPU or RDMA stack",
        "find the core file; the same library in several jobs is a bug of its version",
    ),
    _logged(
        "nfs_not_responding",
        rows.DEPENDENCY,
        r"nfs: server (?P<component>[\w.:-]{1,128}) not responding",
        "an NFS server does not answer: processes that read from it wait",
        "check the server and the network path to it",
    ),
    _logged(
        "pcie_uncorrected",
        rows.EXPANSION,
        _DEVICE + r"(?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able) \((?:Non-)?Fatal\)",
        "a PCIe device reported an error that was not corrected",
        "see which device and its upstream ports; reseat it, or replace riser or device",
    ),
    _logged(
        "pcie_contained",
        rows.EXPANSION,
        _DEVICE + r"DPC: containment event",
        "a PCIe port cut off what is below it after an error",
        "the devices below are gone until a reset: drain and reboot; reseat them",
    ),
    _logged(
        "pcie_link_lost",
        rows.EXPANSION,
        _DEVICE + r"pciehp: Slot\([^)]*\): (?:Link Down|Card not present)",
        "a PCIe slot lost its link or its card",
        "drain the node; reseat the card",
    ),
)
"""Signals in the order in which their patterns are tried; the first match counts."""
