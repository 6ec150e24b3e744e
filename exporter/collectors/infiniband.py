"""RDMA devices: their counters in the kernel, links, negative acknowledgements and pauses."""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from exporter.background.device_readers import DeviceReader, DeviceReaders, Read
from exporter.bpf import privileges
from exporter.compat import node_exporter
from exporter.device_collector import DeviceCollector, reading_of
from exporter.infiniband import drivers, metrics, sysfs
from exporter.infiniband.device import RdmaDevice
from exporter.infiniband.ethtool import Ethtool
from exporter.infiniband.qp_counters import MASKS, QpCounters
from exporter.model import Metric, Sample, Unavailable
from exporter.node import Node
from exporter.options import Option, SettingsError, Value
from exporter.series import LEAST, LIMIT_HELP, MOST

SWITCH, EXCLUDE = "collector.infiniband", "collector.infiniband.exclude"
INTERVAL, DEADLINE = "collector.infiniband.interval", "collector.infiniband.deadline"
SERIES_LIMIT, COMPATIBLE = "collector.infiniband.series-limit", "compat.node-exporter"
QP_COUNTERS, ALL_COUNTERS = "collector.infiniband.qp-counters", "collector.infiniband.all-counters"
OPTIONS = (
    Option(SWITCH, True, "Enable the infiniband collector. Counters and links of RDMA devices.", "collectors"),
    Option(
        EXCLUDE,
        (),
        "Devices that are not read; * and ? stand for any characters. Empty: none.",
        "collectors",
        metavar="NAME,NAME",
    ),
    Option(
        INTERVAL,
        5.0,
        "Interval between readings of a device: short, so that no 32-bit counter wraps twice in between.",
        "collectors",
        duration=True,
        least=1,
        most=30,
    ),
    Option(
        DEADLINE,
        5.0,
        "Time limit of a reading; a device that takes longer has no series.",
        "collectors",
        duration=True,
        least=0.1,
        most=3600,
    ),
    Option(
        QP_COUNTERS,
        "",
        "Attribute by which devices count queue pairs: process (pid), type, or both. Changes the devices' state until "
        "the exporter ends. Empty: none.",
        "collectors",
        choices=tuple(MASKS),
        metavar="pid|type|type,pid",
        capability=privileges.COUNTING_QUEUE_PAIRS,
    ),
    Option(
        ALL_COUNTERS,
        False,
        "Add each file of counters/ and hw_counters/ under its name: rdma_port_hw_counter_total and "
        "rdma_port_hw_value.",
        "collectors",
    ),
    Option(SERIES_LIMIT, 10_000, LIMIT_HELP, "collectors", least=LEAST, most=MOST),
    Option(COMPATIBLE, False, "Add node_exporter's InfiniBand series, with its names and units.", "collectors"),
)
METRICS = (*(value for value in vars(metrics).values() if isinstance(value, Metric)), *node_exporter.METRICS)
CLOSE_SECONDS = 2.5

log = logging.getLogger(__name__)


def configure(values: Mapping[str, Value]) -> Mapping[str, Any] | None:
    """Return the collector's settings, or None when the collector is switched off. Raises SettingsError."""
    if not values[SWITCH]:
        if values[COMPATIBLE]:
            raise SettingsError(f"{COMPATIBLE} has no effect without {SWITCH}; give both")
        return None
    return values


def create(node: Node) -> Infiniband:
    return Infiniband(node)


class Infiniband(DeviceCollector):
    """Reads every RDMA device of the node that is not excluded, also devices that appear later."""

    name, success = "infiniband", metrics.SUCCESS

    def __init__(self, node: Node) -> None:
        settings = node.settings
        super().__init__(node, int(settings[SERIES_LIMIT]))
        self._excluded: tuple[str, ...] = settings[EXCLUDE]
        self._ethtool: Ethtool | None = None
        self._readers = DeviceReaders(self._make, float(settings[INTERVAL]), float(settings[DEADLINE]))
        self._qp_counters = QpCounters(settings[QP_COUNTERS]) if settings[QP_COUNTERS] else None
        self._qp_reader: DeviceReader | None = None

    def start(self) -> None:
        """Start reading the devices present. Each scrape lists devices again: a driver may be loaded later."""
        try:
            self._ethtool = Ethtool()
        except OSError as error:
            log.warning("PFC pauses cannot be read: no netlink socket could be opened: %s", error.strerror)
        super().start()

    def close(self) -> None:
        self._readers.close()
        if self._qp_reader is not None:
            self._qp_reader.close(CLOSE_SECONDS)
        if self._qp_counters is not None:
            self._qp_counters.close()
        if self._ethtool is not None:
            self._ethtool.close()

    def _follow(self) -> None:
        names = self._names()
        self._readers.follow(names)
        if not names:
            reason = f"no RDMA device in {self.node.sys}/class/infiniband"
            raise Unavailable(reason + " that is not excluded" if self._excluded else reason)
        if self._qp_counters is not None and self._qp_reader is None:
            interval, deadline = float(self.node.settings[INTERVAL]), float(self.node.settings[DEADLINE])
            self._qp_reader = DeviceReader(
                "queue pairs", partial(self._read_qps, self._qp_counters), interval, deadline
            )

    def _read_qps(self, counters: QpCounters) -> list[Sample]:
        folder = self.node.sys / "class/infiniband"
        ports = {(device, number) for device in self._names() for number in sysfs.ports(folder / device)}
        return [
            metrics.QP_COUNTER.sample(
                value,
                {
                    **(self.node.processes.labels(counts.pid) if counts.pid else {}),
                    "device": counts.device,
                    "port": str(counts.port),
                    "qp_type": counts.qp_type,
                    "counter": name,
                },
            )
            for counts in counters.read(ports)
            for name, value in counts.values.items()
        ]

    def _names(self) -> list[str]:
        """Return the names of the devices that are not excluded."""
        with suppress(OSError):
            found = [device for device in sysfs.devices(self.node.sys) if not self._is_excluded(device)]
            return found[: sysfs.MOST_DEVICES]
        return []

    def _is_excluded(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._excluded)

    def _make(self, name: str) -> Read:
        path, settings = self.node.sys / "class/infiniband" / name, self.node.settings
        compatible, all_counters = bool(settings[COMPATIBLE]), bool(settings[ALL_COUNTERS])
        counters = self.node.port_counters.of(name)
        device = RdmaDevice(path, drivers.load(), self.node.posted, self._ethtool, compatible, counters, all_counters)
        transitions = self.node.transitions.of(f"infiniband {name}")

        def read() -> list[Sample]:
            samples = device.read()
            transitions.observe(samples, time.time())
            return samples

        return read

    def _samples(self, problems: list[str]) -> Iterator[Sample]:
        yield from self._of_devices(self._readers, problems)
        if self._qp_reader is not None:
            yield from reading_of(self._qp_reader.reading(), problems)
