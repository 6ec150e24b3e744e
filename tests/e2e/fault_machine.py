"""Machines of our own, on which faults are injected at their sources: healthy ones until then."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pynvml

from tests.bpf.cuda_node import Script
from tests.bpf.nccl_node import Rank
from tests.drivers.controller import Controller
from tests.program.process import Exporter
from tests.program.test_xid import Log
from tests.standins.nvml import Scenario
from tests.unit.amdgpu import trees as amdgpu
from tests.unit.infiniband.trees import Tree

GPU, NIC, ROOT_PORT = "0000:18:00.0", "0000:5e:00.0", "0000:00:01.0"
PCI = f"devices/pci0000:00/{ROOT_PORT}"
AMD_PEER = "0000:c2:00.0"
_BOOT = "sys/kernel/random/boot_id"


def _device(bus_id: str, kind: str, vendor: str) -> dict[str, str]:
    folder = f"{PCI}/{bus_id}"
    return {
        f"{folder}/class": kind,
        f"{folder}/vendor": vendor,
        f"{folder}/aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
        f"{folder}/aer_dev_fatal": "TOTAL_ERR_FATAL 0",
        f"{folder}/current_link_width": "16",
        f"{folder}/max_link_width": "16",
    }


def _amd_gpus(sys: Path) -> Path:
    """Two healthy GPUs of AMD, linked; this process has memory of the first. Returns the folder of that one."""
    tree, healthy = amdgpu.Tree(sys), {"ras/umc_err_count": "ue: 0\nce: 7\nde: 5"}
    first = tree.card(**healthy)
    tree.card("card2", AMD_PEER, **healthy)
    for number, bus_id in enumerate((amdgpu.BUS, AMD_PEER), 1):
        tree.node(number, 51110 + number, bus_id, 127 + number)
        tree.link(number, 3 - number, amdgpu.XGMI, 128_000)
    tree.process(os.getpid(), gpu_51111=23 << 30)
    return first


class Machine:
    """A healthy /sys, a kernel log, eight GPUs of the stand-in, two of AMD, three processes; and a node beside it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self.log = Log(folder / "kmsg")
        self.gpus = Scenario(folder, gpus=8, **{f"gpu.field.{pynvml.NVML_FI_DEV_RETIRED_PENDING}": 0})
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
            "devices/system/cpu/online": "0-127",
        }.items():
            self.write(name, text)
        for name in (GPU, NIC):
            link = folder / "sys/bus/pci/devices" / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder / "sys" / PCI / name)
        self.port = Tree(folder / "sys").infiniband()
        self.amd = _amd_gpus(folder / "sys")
        self.stamp, self.shutdown, self.reports = folder / "passed", folder / "scheduled", folder / "reports"
        self.stamp.touch()
        self.reports.mkdir()
        self.controller = Controller(folder / "controller")
        stack.callback(self.controller.end)
        self.worker, self.failing = stack.enter_context(Script()), stack.enter_context(Script())
        self.rank = stack.enter_context(Rank())
        self.rank.run("c = init(0, 2, b'table')")
        self.node = Neighbour(folder / "neighbour", stack)

    def write(self, name: str, text: str) -> None:
        """A file of /sys."""
        path = self._folder / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def exporter(self, *arguments: str) -> Exporter:
        """The real one, which looks every second."""
        return Exporter(
            self._folder,
            f"--path.sysfs={self._folder / 'sys'}",
            f"--kmsg.path={self.log.path}",
            "--collector.faults.interval=1",
            "--collector.infiniband.interval=1s",
            "--collector.amdgpu",
            "--collector.amdgpu.interval=1",
            f"--collector.faults.shutdown-file={self.shutdown}",
            f"--collector.faults.diagnostic-stamp={self.stamp}",
            f"--collector.faults.reports={self.reports}",
            *(f"--collector.nvml.{readings}-interval=1" for readings in ("fast", "processes", "slow")),
            "--collector.faults.ipmi",
            "--collector.faults.ipmi-interval=1",
            f"--collector.faults.ipmi-host={self.controller.host}",
            f"--collector.faults.ipmi-config={self.controller.config}",
            *arguments,
            **self.gpus.environment(),
        )


class Neighbour:
    """A node with a /proc of ours too: one that boots again, and then has less memory and no kernel log to read."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._boots("11111111-1d1f-4d49-ad44-b323a7176f73", time.time() - 86_400, 1024)
        (folder / "sys").mkdir()
        self._log = Log(folder / "kmsg")
        self._gpus = Scenario(folder)
        self._exporter = self._start()
        self.address = self._exporter.address
        stack.callback(lambda: self._exporter.end())

    def boot(self) -> None:
        """Starts the node again with a module of memory less, the exporter with it, and without a /dev/kmsg."""
        self._exporter.end()
        self._boots("22222222-1d1f-4d49-ad44-b323a7176f73", time.time(), 992)
        self._log.path.unlink()
        self._exporter = self._start(f"--web.listen-address={self.address}")

    def _start(self, *arguments: str) -> Exporter:
        return Exporter(
            self._folder,
            "--collector.disable-defaults",
            *(f"--collector.{name}" for name in ("faults", "nvml", "xid")),
            f"--path.procfs={self._folder / 'proc'}",
            f"--path.sysfs={self._folder / 'sys'}",
            f"--kmsg.path={self._log.path}",
            "--collector.faults.interval=1",
            *arguments,
            **self._gpus.environment(),
        )

    def _boots(self, identity: str, at: float, gib: int) -> None:
        meminfo = f"MemTotal:       {gib << 20} kB\nMemFree: 1 kB"
        for name, text in ((_BOOT, identity), ("stat", f"cpu 1 2 3\nbtime {at:.0f}"), ("meminfo", meminfo)):
            path = self._folder / "proc" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
