"""Faults that stop jobs: from the kernel log, PCIe, memory controllers, sensors, drives, and processes that crashed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from exporter.bpf import events, status
from exporter.faults import machine, metrics, pci, sensors
from exporter.faults.asked import Asked
from exporter.faults.ipmi import Ipmi
from exporter.faults.kernel_log import WORDS, KernelLog
from exporter.faults.rises import Rises
from exporter.faults.smart import Smart
from exporter.kmsg.reader import Reader
from exporter.model import Metric, Sample, Unavailable
from exporter.node import Node
from exporter.nvml.samples import samples as gpu_samples
from exporter.options import Flag, SettingsError, Value

METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
FLAGS = (
    Flag("kmsg", "/dev/kmsg", "The kernel log; a FIFO or a file with lines of the same form serves for tests."),
    Flag("from-processes", False, "Believe lines that a process wrote into the kernel log too."),
    Flag("interval", 15.0, "Seconds between two looks at sysfs.", 1, 86_400),
    Flag("shutdown-file", str(machine.SCHEDULED), "Where systemd-logind says that a shutdown is scheduled."),
    Flag("nvme-smart", False, "Ask NVMe drives for their SMART log every minute; keeps CAP_SYS_ADMIN for it."),
    Flag(
        "ipmi",
        False,
        "Ask the management controller for its sensors, with FreeIPMI's ipmi-sensors and /dev/ipmi0 (docs/ipmi.md).",
    ),
    Flag("ipmi-interval", 300.0, "Seconds between two rounds over the management controller's sensors.", 1, 86_400),
    Flag("ipmi-host", "", "ADDRESS or ADDRESS:PORT of the controller in the network, in place of /dev/ipmi0."),
    Flag(
        "ipmi-config", "", "FreeIPMI configuration file: user, password, sensors to leave out; empty: FreeIPMI's own."
    ),
    Flag(
        "reports",
        "",
        "Folder where others report faults or maintenance of the node, a file CATEGORY.COMPONENT each; empty: none.",
    ),
    Flag(
        "diagnostic-stamp",
        "",
        "File that whoever tests the GPUs touches when they passed (dcgmi diag, a burn-in); empty: not known.",
    ),
)
log = logging.getLogger(__name__)


def configure(values: Mapping[str, Value]) -> Mapping[str, Any]:
    """Raises SettingsError where ipmi-host is a list or a range, for FreeIPMI takes these too."""
    if set(str(values["ipmi-host"])) & set(", "):
        raise SettingsError("collector.faults.ipmi-host: give one controller, this node's own")
    return values


def create(node: Node) -> Faults:
    return Faults(node)


class Faults:
    """Reads the kernel log as it comes and looks at sysfs now and then; a scrape shows what was found."""

    name = "faults"

    def __init__(self, node: Node) -> None:
        settings = node.settings
        self._node, self._interval = node, float(settings["interval"])
        self._ledger = node.faults
        self._rises = Rises(self._ledger.add)
        kernel_log = KernelLog(self._ledger.add, node.clock, settings["from-processes"])
        self._reader = Reader(Path(settings["kmsg"]), WORDS, kernel_log.receive)
        self._sources: dict[str, Callable[[], Iterable[Sample]]] = {
            "pci": self._pci,
            "edac": partial(sensors.edac, node.sys),
            "hwmon": partial(sensors.hwmon, node.sys),
            "nvme": partial(sensors.nvme, node.sys),
            "boot": partial(machine.boot, node.proc),
            "shutdown": partial(machine.shutdown, Path(settings["shutdown-file"])),
            "cpus": partial(machine.processors, node.sys),
            "memory": partial(machine.memory, node.proc),
        }
        if settings["reports"]:
            self._sources["reports"] = partial(machine.reports, Path(settings["reports"]))
        if settings["diagnostic-stamp"]:
            self._sources["diagnostic"] = partial(machine.active_test, Path(settings["diagnostic-stamp"]))
        self._asked: list[Asked] = []
        if settings["nvme-smart"]:
            self._asked.append(smart := Smart(node.sys))
            self._sources["nvme_smart"] = smart.samples
        if settings["ipmi"]:
            ipmi = Ipmi(float(settings["ipmi-interval"]), settings["ipmi-host"], settings["ipmi-config"])
            self._asked.append(ipmi)
            self._sources["ipmi"] = ipmi.samples
        self._found: dict[str, list[Sample]] = {}
        self._absent: dict[str, str] = {}
        self._looked = 0.0
        self._refusal, self._reading = "", False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    def start(self) -> None:
        """Starts both. A kernel log that may not be read is said; what sysfs tells is shown all the same."""
        try:
            self._reader.start()
            self._reading = True
        except Unavailable as error:
            self._refusal = f"{error.reason}; {error.remedy}"
            log.warning("faults in the kernel log are not seen: %s", self._refusal)
        for asked in self._asked:
            asked.start()
        self._thread.start()

    def collect(self) -> Iterator[Sample]:
        yield from self._ledger.samples()
        found, absent = self._found, self._absent
        for samples in found.values():
            yield from samples
        yield metrics.SOURCE.sample(int(not self._refusal and not self._reader.failure), {"source": "kernel_log"})
        for source in self._sources:
            if source in found or source in absent:
                yield metrics.SOURCE.sample(int(source in found), {"source": source})
        yield events.EVENTS_LOST.sample(self._reader.lost, {"stream": "faults_kmsg"})
        if self._looked:
            yield status.SOURCE_AGE.sample(time.monotonic() - self._looked, {"source": "faults_sysfs"})

    def problems(self) -> Iterator[str]:
        """For the landing page: sources that this node does not have, or that failed."""
        if refusal := self._refusal or self._reader.failure:
            yield refusal
        yield from self._absent.values()

    def close(self) -> None:
        self._closing.set()
        for asked in self._asked:
            asked.close()
        if self._reading:
            self._reader.close()
        if self._thread.ident is not None:
            self._thread.join(1)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception:
                log.exception("looking for faults failed; it is tried again")
            self._closing.wait(self._interval)

    def look(self) -> None:
        """Reads all sources but the kernel log once. NVML's are shown by their own collector."""
        found: dict[str, list[Sample]] = {}
        absent: dict[str, str] = {}
        for name, read in self._sources.items():
            try:
                found[name] = list(read())
            except BlockingIOError:
                continue  # not asked yet: nothing is known of it
            except OSError as error:
                absent[name] = f"faults of {name} are not seen: {error.filename or ''} {error.strerror}"
        self._rises.see((it for samples in found.values() for it in samples), time.time())
        self._rises.see(gpu_samples(self._node.gpus.snapshot(), lambda pid: {}), time.time())
        self._found, self._absent, self._looked = found, absent, time.monotonic()

    def _pci(self) -> Iterator[Sample]:
        for device in pci.devices(self._node.sys):
            for kind, count in pci.errors(device).items():
                yield metrics.AER.sample(count, device.labels | {"type": kind})
            yield from pci.link(device)
