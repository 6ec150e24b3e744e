"""Every cause of a stopped job, injected at its source: real exporter, real Prometheus, the shipped rules.

`python -m tests.e2e.fault_table` prints the 18 rows of the table with pass, or why not.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pynvml
import yaml

from exporter.faults import categories as rows
from tests.bpf.cuda_node import Script, build_standins
from tests.bpf.nccl_node import Rank
from tests.e2e.backend import Prometheus, until
from tests.e2e.test_cli import Exporter
from tests.e2e.test_xid import Log
from tests.standins import nvml
from tests.standins.nvml import Scenario
from tests.unit.infiniband.trees import Tree, write

ROOT = Path(__file__).parents[2]
GPU, NIC, ROOT_PORT = "0000:18:00.0", "0000:5e:00.0", "0000:00:01.0"
OF_OTHERS = {"NodeRebooted", "FaultSourceUnread"}
"""Alerts of the machine that the test runs on; so are those of other processes there."""
WITHIN = 40.0
_DAY = 86_400


class Machine:
    """A machine of our own: a healthy /sys, a kernel log, eight GPUs of the stand-in, two processes that use them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self.log = Log(folder / "kmsg")
        self.gpus = Scenario(folder, gpus=8)
        for name, text in {
            **_device(GPU, "0x030200", "0x10de"),
            **_device(NIC, "0x020000", "0x15b3"),
            "devices/system/edac/mc/mc0/ce_count": "0",
            "devices/system/edac/mc/mc0/ue_count": "0",
            "devices/system/edac/mc/mc0/dimm0/dimm_label": "DIMM_A1",
            "devices/system/edac/mc/mc0/dimm0/dimm_ce_count": "0",
            "devices/system/edac/mc/mc0/dimm0/dimm_ue_count": "0",
            "class/hwmon/hwmon0/name": "psu",
            "class/hwmon/hwmon0/power1_alarm": "0",
            "class/hwmon/hwmon1/name": "nct6779",
            "class/hwmon/hwmon1/fan2_alarm": "0",
            "class/nvme/nvme0/state": "live",
        }.items():
            self.write(name, text)
        for name in (GPU, NIC):
            link = folder / "sys/bus/pci/devices" / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder / "sys/devices/pci0000:00" / ROOT_PORT / name)
        self.port = Tree(folder / "sys").infiniband()
        self.stamp, self.shutdown = folder / "passed", folder / "scheduled"
        self.stamp.touch()
        self.worker = stack.enter_context(Script())
        self.rank = stack.enter_context(Rank())
        self.rank.run("c = init(0, 2, b'table')")

    def write(self, name: str, text: str) -> None:
        """A file of /sys."""
        path = self._folder / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def exporter(self) -> Exporter:
        """The real one, which looks every second."""
        return Exporter(
            self._folder,
            f"--path.sysfs={self._folder / 'sys'}",
            *(f"--collector.{name}.kmsg={self.log.path}" for name in ("faults", "xid")),
            "--collector.faults.interval=1",
            "--collector.infiniband.interval=1s",
            f"--collector.faults.shutdown-file={self.shutdown}",
            f"--collector.faults.diagnostic-stamp={self.stamp}",
            *(f"--collector.nvml.{set}-interval=1" for set in ("fast", "processes", "slow")),
            **self.gpus.environment(),
        )


def _device(bus_id: str, kind: str, vendor: str) -> dict[str, str]:
    folder = f"devices/pci0000:00/{ROOT_PORT}/{bus_id}"
    return {
        f"{folder}/class": kind,
        f"{folder}/vendor": vendor,
        f"{folder}/aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
        f"{folder}/aer_dev_fatal": "TOTAL_ERR_FATAL 0",
        f"{folder}/current_link_width": "16",
        f"{folder}/max_link_width": "16",
    }


@dataclass(frozen=True)
class Case:
    """A fault: the row it is of, its source, how it is done to a machine, and the alert with labels that tell it."""

    category: str
    source: str
    inject: Callable[[Machine], None]
    alert: str
    labels: Mapping[str, str] = field(default_factory=dict)


def _says(text: str) -> Callable[[Machine], None]:
    return lambda machine: machine.log.say(text)


def _file(name: str, text: str) -> Callable[[Machine], None]:
    return lambda machine: machine.write(name, text)


def _nvml(key: str, value: object) -> Callable[[Machine], None]:
    return lambda machine: machine.gpus.set({key: value})


def _field(gpu: int, name: str, value: int) -> Callable[[Machine], None]:
    return _nvml(f"gpu{gpu}.field.{getattr(pynvml, 'NVML_FI_DEV_' + name)}", value)


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


_PCI = f"devices/pci0000:00/{ROOT_PORT}"
_DIMM = "devices/system/edac/mc/mc0/dimm0/dimm_ue_count"
CASES = (
    Case(rows.FAULTY_GPU, "kernel log", _says("NVRM: Xid (PCI:0000:3b:00): 79, x"), "GpuLost"),
    Case(rows.FAULTY_GPU, "NVML", _nvml("gpu3.lost", 1), "GpuUnhealthy", {"gpu": "3", "state": "lost"}),
    Case(rows.FAULTY_GPU, "NVML", _field(1, "GET_GPU_RECOVERY_ACTION", 1), "GpuRecoveryActionNeeded", {"gpu": "1"}),
    Case(rows.HBM, "kernel log", _says("NVRM: Xid (PCI:0000:3b:00): 94, x"), "GpuMemoryFault", {"xid": "94"}),
    Case(rows.HBM, "NVML", _field(2, "ECC_DBE_VOL_TOTAL", 3), "GpuEccUncorrectable", {"gpu": "2"}),
    Case(rows.HBM, "NVML", _field(2, "REMAPPED_FAILURE", 1), "GpuRowRemapFailed", {"gpu": "2"}),
    Case(rows.SOFTWARE, "SIGABRT of a GPU process", _abort, "GpuProcessCrashed", {"signal": "process_sigabrt"}),
    Case(
        rows.SOFTWARE,
        "kernel log",
        _says("Memory cgroup out of memory: Killed process 4711 (train) total-vm:1000kB"),
        "OutOfMemoryKill",
        {"component": "train"},
    ),
    Case(
        rows.NETWORK,
        "kernel log",
        _says(f"mlx5_core {NIC}: Port module event: module 0, Cable unplugged"),
        "NicDegraded",
        {"component": NIC, "category": rows.NETWORK},
    ),
    Case(rows.NETWORK, "RDMA link in sysfs", _link_down, "RdmaLinkDown", {"device": "mlx5_0"}),
    Case(
        rows.NETWORK,
        "RDMA counter in sysfs",
        lambda machine: write(machine.port / "counters/link_downed", 1),
        "NicDegraded",
        {"component": "mlx5_0 1", "signal": "rdma_link_flap"},
    ),
    Case(
        rows.NETWORK,
        "kernel log",
        _says("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error"),
        "NvswitchFatalError",
    ),
    Case(rows.MAINTENANCE, "systemd-logind's schedule", _schedule, "NodeShutdownScheduled", {"mode": "reboot"}),
    Case(rows.SRAM, "NVML", _nvml("gpu4.sram_threshold", 1), "GpuSramErrorsExceeded", {"gpu": "4"}),
    Case(
        rows.PROCESSOR,
        "kernel log",
        _says("NVRM: Xid (PCI:0000:5e:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response"),
        "GpuResetNeeded",
        {"action": "RESET_GPU"},
    ),
    Case(
        rows.NIC,
        "kernel log",
        _says(f"mlx5_core {NIC}: print_health:427: synd 0x8: unrecoverable hardware error"),
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
        _says("nvme nvme0: I/O 22 QID 5 timeout, aborting"),
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
        _file(f"{_PCI}/{NIC}/current_link_width", "8"),
        "PcieLinkDegraded",
        {"pci_bus_id": NIC},
    ),
    Case(
        rows.EXPANSION,
        "AER in sysfs",
        _file(f"{_PCI}/{GPU}/aer_dev_fatal", "TOTAL_ERR_FATAL 1"),
        "PcieFault",
        {"component": GPU, "signal": "pcie_fatal"},
    ),
    Case(
        rows.DEPENDENCY,
        "kernel log",
        _says("nfs: server storage1.example not responding, still trying"),
        "StorageNotResponding",
        {"component": "storage1.example"},
    ),
    Case(
        rows.CPU,
        "kernel log",
        _says("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010090"),
        "CpuFault",
        {"component": "12"},
    ),
    Case(rows.MEMORY, "EDAC in sysfs", _file(_DIMM, "1"), "SystemMemoryFault", {"component": "mc0 DIMM_A1"}),
)


@dataclass
class Outcome:
    """`early`: alerts that fired on the healthy machine; `missing`: cases whose alert did not fire, by number."""

    early: list[str]
    seconds: dict[int, float]
    missing: dict[int, str]


def shortened(folder: Path) -> list[Path]:
    """The shipped rules with a second in place of each `for`, and of NCCL's five minutes without a call."""
    copies = []
    for path in sorted((ROOT / "alerts").glob("*.yaml")):
        if path.stem.endswith(".test"):
            continue
        content = yaml.safe_load(path.read_text())
        for rule in (rule for group in content["groups"] for rule in group["rules"]):
            if "for" in rule:
                rule["for"] = "1s"
            if rule.get("alert") == "NcclHang":
                rule["expr"] = rule["expr"].replace("> 300", "> 3")
        copies.append(folder / path.name)
        copies[-1].write_text(yaml.safe_dump(content))
    return copies


def run(folder: Path) -> Outcome:
    """Starts all of it, looks that nothing fires, injects every fault, and waits for the alerts."""
    build_standins()
    nvml.build()
    with ExitStack() as stack:
        machine = Machine(folder, stack)
        exporter = machine.exporter()
        stack.callback(exporter.end)
        exporter.await_ready()
        prometheus = stack.enter_context(Prometheus(folder, exporter.address, shortened(folder)))
        until(lambda: _settled(exporter, prometheus, machine), 30, "all sources are read")
        time.sleep(3)
        own = {"", str(machine.worker.pid), str(machine.rank.pid)}
        early = sorted(
            str(dict(labels))
            for labels in firing(prometheus)
            if labels["alertname"] not in OF_OTHERS and labels.get("pid", "") in own
        )
        began = time.monotonic()
        for case in CASES:
            case.inject(machine)
        return _await(prometheus, began, early)


def _settled(exporter: Exporter, prometheus: Prometheus, machine: Machine) -> bool:
    page = exporter.get("/metrics")[1]
    machine.worker.run("new(lib.cuMemAlloc_v2, size(64))")
    machine.rank.run("reduce_all(c, 1)")
    pids = (machine.worker.pid, machine.rank.pid)
    return (
        all(re.search(rf'^{name}\b.*\bpid="{pid}"', page, re.M) for name, pid in zip(_SEEN, pids, strict=True))
        and 8 == len(re.findall(r'^hw_status\{.*state="ok".* 1$', page, re.M))
        and bool(prometheus.query("node_edac_errors_total") and prometheus.query("hw_errors_total"))
        and bool(prometheus.query("rdma_link_state"))
    )


_SEEN = ("gpu_cuda_memory_usage_bytes", "nccl_last_call_timestamp_seconds")


def _await(prometheus: Prometheus, began: float, early: list[str]) -> Outcome:
    seconds: dict[int, float] = {}
    while len(seconds) < len(CASES) and time.monotonic() - began < WITHIN:
        alerts = firing(prometheus)
        for number, case in enumerate(CASES):
            wanted = {"alertname": case.alert, **case.labels}.items()
            if number not in seconds and any(wanted <= labels.items() for labels in alerts):
                seconds[number] = time.monotonic() - began
        time.sleep(0.2)
    missing = {
        number: f"{case.alert} did not fire within {WITHIN:.0f} s"
        for number, case in enumerate(CASES)
        if number not in seconds
    }
    return Outcome(early, seconds, missing)


def firing(prometheus: Prometheus) -> list[Mapping[str, str]]:
    """The labels of the alerts that fire."""
    alerts = [alert for rule in prometheus.rules() for alert in rule.get("alerts", ())]
    return [alert["labels"] for alert in alerts if alert["state"] == "firing"]


def table(outcome: Outcome) -> str:
    """A line for each row of the table."""
    lines = []
    for row in rows.CATEGORIES:
        of_row = [(number, case) for number, case in enumerate(CASES) if case.category == row.label]
        missing = [outcome.missing[number] for number, _ in of_row if number in outcome.missing]
        verdict = "; ".join(missing) if missing else "pass"
        told = ", ".join(
            f"{case.source} → {case.alert} {outcome.seconds[number]:.0f} s"
            for number, case in of_row
            if number in outcome.seconds
        )
        if row.label == rows.CORRUPTION:
            verdict += " (cannot be seen passively: only the age of the last test)"
        lines.append(f"{row.name:32} {verdict:8}  {told}")
    return "\n".join(lines)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Path(folder))
    print(table(outcome))
    for alert in outcome.early:
        print(f"fired before any fault: {alert}")
    return int(bool(outcome.early or outcome.missing))


if __name__ == "__main__":
    sys.exit(main())
