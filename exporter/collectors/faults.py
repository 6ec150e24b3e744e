"""Faults that stop jobs, from the kernel log, PCIe, memory controllers, sensors, drives, and processes that crashed."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from exporter.background.poller import Poller
from exporter.bpf import events, privileges, status
from exporter.compat import former_names
from exporter.faults import clock, machine, metrics, pci, sensors
from exporter.faults.ipmi import Ipmi
from exporter.faults.kernel_log import WORDS, fault
from exporter.faults.processes import ProcessScan
from exporter.faults.smart import Smart
from exporter.kmsg.records import Record
from exporter.model import Metric, Sample, Unavailable
from exporter.node import Node
from exporter.nvml.samples import samples as gpu_samples
from exporter.options import Flag, SettingsError, Value

METRICS: tuple[Metric, ...] = (
    *(value for value in vars(metrics).values() if isinstance(value, Metric)),
    *former_names.METRICS,
)
FLAGS = (
    Flag("interval", 15.0, "Interval between readings of sysfs, in seconds.", 1, 86_400),
    Flag("shutdown-file", str(machine.SCHEDULED), "File in which systemd-logind keeps a scheduled shutdown."),
    Flag(
        "nvme-smart",
        False,
        "Read the SMART log of NVMe drives every minute, which needs CAP_SYS_ADMIN.",
        capability=privileges.READING_DRIVES,
    ),
    Flag(
        "ipmi",
        False,
        "Read the management controller's sensors with FreeIPMI's ipmi-sensors and /dev/ipmi0 (docs/ipmi.md).",
    ),
    Flag(
        "ipmi-interval",
        300.0,
        "Interval between readings of the management controller's sensors, in seconds.",
        1,
        86_400,
    ),
    Flag("ipmi-host", "", "Address of the controller in the network, as ADDRESS or ADDRESS:PORT. Empty: /dev/ipmi0."),
    Flag(
        "ipmi-config", "", "FreeIPMI configuration file: user, password, sensors to leave out. Empty: FreeIPMI's own."
    ),
    Flag(
        "reports",
        "",
        "Folder where other programs report faults or maintenance, one file CATEGORY.COMPONENT each. Empty: none.",
    ),
    Flag(
        "expected",
        "",
        "Devices that the node should have working, such as gpu=8,rdma_port=9,nvlink=144. Empty: unknown.",
    ),
    Flag(
        "diagnostic-stamp",
        "",
        "File that a test of the GPUs (dcgmi diag, a burn-in) touches when it has passed. Empty: none.",
    ),
    Flag("former-names", False, "Add accel_node_* metrics under their former names node_* too. In this release only."),
)
_MANY = re.compile(r"[, ]|\[[^]:]*\]")
"""A list of hosts, or a range as bmc[1-3]; an address of IPv6 has brackets too."""
log = logging.getLogger(__name__)


def configure(values: Mapping[str, Value]) -> Mapping[str, Any]:
    """Return the settings. Raises SettingsError when ipmi-host is a list or a range, which FreeIPMI accepts too, and
    when the expected devices are not KIND=NUMBER.
    """
    if _MANY.search(str(values["ipmi-host"])):
        raise SettingsError("collector.faults.ipmi-host: give one controller, this node's own")
    try:
        machine.expected(str(values["expected"]))
    except ValueError as error:
        raise SettingsError(f"collector.faults.expected: {error}") from None
    return values


def create(node: Node) -> Faults:
    return Faults(node)


class _Round(NamedTuple):
    """Results of a round over the sources: samples by source, and a sentence for each source without any."""

    found: Mapping[str, list[Sample]]
    absent: Mapping[str, str]


_NOTHING = _Round({}, {})


class Faults:
    """Follows the kernel log and polls the other sources of faults; a scrape shows the last results."""

    name = "faults"

    def __init__(self, node: Node) -> None:
        settings = node.settings
        self.node = node
        self.ledger = node.faults
        self._transitions = node.transitions.of(self.name)
        self._count_fault = self.ledger.reading(self.name, node.kernel_log.path)
        self._kernel_log = node.kernel_log.subscribe(WORDS, self._read)
        self._sources: dict[str, Callable[[], Iterable[Sample]]] = {
            "pci": self._pci,
            "edac": partial(sensors.edac, node.sys),
            "hwmon": partial(sensors.hwmon, node.sys),
            "nvme": partial(sensors.nvme, node.sys),
            "boot": partial(machine.boot, node.proc),
            "shutdown": partial(machine.shutdown, Path(settings["shutdown-file"])),
            "cpus": partial(machine.processors, node.sys),
            "memory": partial(machine.memory, node.proc),
            "clock": clock.samples,
            "processes": ProcessScan(node.proc, self._gpu_processes).samples,
        }
        if settings["reports"]:
            self._sources["reports"] = partial(machine.reports, Path(settings["reports"]))
        if settings["diagnostic-stamp"]:
            self._sources["diagnostic"] = partial(machine.active_test, Path(settings["diagnostic-stamp"]))
        self._expected = machine.expected(settings["expected"])
        self._pollers: list[Poller[list[Sample]]] = []
        if settings["nvme-smart"]:
            self._pollers.append(smart := Smart(node.sys))
            self._sources["nvme_smart"] = smart.newest
        if settings["ipmi"]:
            ipmi = Ipmi(float(settings["ipmi-interval"]), settings["ipmi-host"], settings["ipmi-config"])
            self._pollers.append(ipmi)
            self._sources["ipmi"] = ipmi.newest
        self.poller = Poller("faults", self._round, float(settings["interval"]))

    def start(self) -> None:
        """Start following and polling. A kernel log that may not be read is logged, and the other sources still run."""
        try:
            self._kernel_log.start()
        except Unavailable:
            log.warning("faults in the kernel log cannot be read: %s", self._kernel_log.problem)
        for poller in self._pollers:
            poller.start()
        self.poller.start()

    def collect(self) -> Iterator[Sample]:
        samples = self._samples()
        return former_names.with_former(samples) if self.node.settings["former-names"] else samples

    def _samples(self) -> Iterator[Sample]:
        yield from self.ledger.samples()
        yield from self._expected
        last = self.poller.last
        found, absent = last.value or _NOTHING
        for samples in found.values():
            yield from samples
        yield metrics.SOURCE.sample(int(not self._kernel_log.problem), {"source": "kernel_log"})
        for source in self._sources:
            if source in found or source in absent:
                yield metrics.SOURCE.sample(int(source in found), {"source": source})
        yield events.EVENTS_LOST.sample(self._kernel_log.lost, {"stream": "faults_kmsg"})
        if last.age is not None:
            yield status.SOURCE_AGE.sample(last.age, {"source": "faults_sysfs"})

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each source that this node lacks or that failed, for the landing page."""
        if problem := self._kernel_log.problem:
            yield problem
        yield from (self.poller.last.value or _NOTHING).absent.values()

    def close(self) -> None:
        for poller in self._pollers:
            poller.close()
        self._kernel_log.close()
        self.poller.close(1.0)

    def _read(self, record: Record, wall_time: float) -> None:
        """Count the fault of a record of the kernel log, if any, in the reader's thread."""
        if found := fault(record, wall_time):
            self._count_fault(record.sequence, found)

    def _round(self) -> _Round:
        """Read all sources but the kernel log. The samples of NVML are shown by its own collector."""
        found: dict[str, list[Sample]] = {}
        absent: dict[str, str] = {}
        for name, read in self._sources.items():
            try:
                found[name] = list(read())
            except BlockingIOError:
                continue  # not queried yet: the state of this source is unknown
            except OSError as error:
                absent[name] = f"faults of {name} are not seen: {error.filename or ''} {error.strerror}"
        self._transitions.observe((it for samples in found.values() for it in samples), time.time())
        self._transitions.observe(gpu_samples(self.node.gpus.snapshot(), lambda pid: {}), time.time())
        return _Round(found, absent)

    def _gpu_processes(self) -> Iterator[int]:
        for gpu in self.node.gpus.snapshot().gpus:
            yield from (process.pid for process in gpu.processes)

    def _pci(self) -> Iterator[Sample]:
        for device in pci.devices(self.node.sys):
            for kind, count in pci.errors(device).items():
                yield metrics.AER.sample(count, device.labels | {"type": kind})
            yield from pci.link(device)
