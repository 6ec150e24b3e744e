"""One RDMA device: its readings over time, converted to samples."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from exporter.compat import node_exporter
from exporter.infiniband import metrics, pauses, port_samples, sysfs
from exporter.infiniband.counters import Excess, WideCounters, WindowRatio
from exporter.infiniband.drivers import HW_GROUP, PORT_GROUP, CounterName, Driver, scale, unknown
from exporter.infiniband.ethtool import Ethtool
from exporter.infiniband.sysfs import DeviceReading, PortLink, SysfsPort
from exporter.model import Metric, Sample
from exporter.verbs.posted import Posted

LINK_SECONDS = 15.0
"""Interval between two readings of a link: ib_get_eth_speed() of the kernel logs a line for each on a port that is
down."""
POSTED_SECONDS = 30.0
"""Interval between two queries for the bytes posted on a port: each query reads all counts of the verbs collector."""

_SUMS: tuple[tuple[str, Metric], ...] = (
    ("packets", metrics.PACKETS_SENT),
    ("timeouts", metrics.TIMEOUTS),
    ("retransmitted", metrics.RETRANSMITTED),
    ("ecn_marked", metrics.ECN_MARKED),
)
_KINDS: tuple[tuple[str, Metric], ...] = (
    ("received", metrics.NAKS_RECEIVED),
    ("sent", metrics.NAKS_SENT),
    ("cnps", metrics.CNPS),
    ("retries", metrics.RETRIES_EXCEEDED),
)


class RdmaDevice:
    """One RDMA device, read by one thread at a time."""

    def __init__(
        self,
        path: Path,
        drivers: Mapping[str, Driver],
        posted: Posted,
        ethtool: Ethtool | None,
        compatible: bool,
        wide_counters: WideCounters | None = None,
        all_counters: bool = False,
    ) -> None:
        """Read node_exporter's series too with `compatible`, and none of network interfaces without `ethtool`.

        `wide_counters` are those of this device from before. With `all_counters` each file has a series of its name.
        """
        self._path, self._drivers, self._posted = path, drivers, posted
        self._ethtool, self._compatible, self._all_counters = ethtool, compatible, all_counters
        self._wide_counters = wide_counters or WideCounters()
        self._links: dict[int, PortLink] = {}
        self._links_at = time.monotonic()
        self._ratios: dict[int, WindowRatio] = {}
        self._excesses: dict[int, Excess] = {}
        self._unattributed: dict[int, tuple[float, int | None]] = {}
        """Monotonic time and result of the last query for unattributed bytes, by port."""

    def read(self) -> list[Sample]:
        """Read the device once and return its samples. Raises OSError when the device does not exist any more."""
        now = time.monotonic()
        if now - self._links_at >= LINK_SECONDS:
            self._links.clear()
            self._links_at = now
        reading = sysfs.read(self._path, self._links)
        self._links |= {port.number: port.link for port in reading.ports}
        return list(self._samples(reading))

    def _samples(self, reading: DeviceReading) -> Iterator[Sample]:
        driver = self._drivers.get(reading.driver) or unknown(reading.driver)
        yield metrics.DEVICE_INFO.sample(
            1,
            {
                "device": reading.device,
                "driver": reading.driver,
                "firmware": reading.firmware,
                "board_id": reading.board_id,
                "hca_type": reading.hca_type,
                "pci_bus_id": reading.bus_id,
            },
        )
        if self._compatible:
            yield node_exporter.of_device(reading)
        failed = reading.unreadable
        for port in reading.ports:
            labels = {"device": reading.device} | ({"port": str(port.number)} if port.number else {})
            values = self._values(port, driver)
            if self._all_counters:
                yield from _counters(values, driver, labels)
            if port.number:
                yield from port_samples.samples(driver, values, labels)
                only = len(reading.ports) == 2
                yield from self._meanings(driver, port, values, labels, only)
                yield from _link(driver, port, values, labels)
                yield from self._interface(reading.bus_id, port, labels, failed)
                if self._compatible:
                    yield from node_exporter.of_port(port, values, labels)
        for error, count in sorted(failed.items()):
            yield metrics.UNREADABLE.sample(count, {"device": reading.device, "error": error})

    def _values(self, port: SysfsPort, driver: Driver) -> dict[CounterName, int]:
        return {
            name: scale(name)
            * self._wide_counters.update(
                (port.number, *name), value, driver.narrow(name) and not driver.gauge(name), identity
            )
            for name, value, identity in sysfs.names(port.groups)
        }

    def _meanings(
        self, driver: Driver, port: SysfsPort, values: Mapping[CounterName, int], labels: Mapping[str, str], only: bool
    ) -> Iterator[Sample]:
        for what, metric in _SUMS:
            total = driver.total(what, values)
            if total is not None:
                yield metric.sample(total, labels)
        for what, metric in _KINDS:
            for kind, count in driver.by_kind(what, values).items():
                yield metric.sample(count, {**labels, "kind": kind})
        naks, packets = driver.by_kind("received", values), driver.total("packets", values)
        if naks and packets is not None:
            ratio = self._ratios.setdefault(port.number, WindowRatio())
            for kind, share in ratio.update(time.monotonic(), naks, packets).items():
                yield metrics.NACK_RATIO.sample(share, {**labels, "kind": kind})
        unattributed = self._beyond(port.number, driver.total("bytes", values), only)
        if unattributed is not None:
            yield metrics.UNATTRIBUTED.sample(unattributed, labels)

    def _beyond(self, port: int, sent: int | None, only: bool) -> int | None:
        """Return the bytes sent beyond those posted. The posted bytes are queried after `sent` was read."""
        queried_at, known = self._unattributed.get(port, (-POSTED_SECONDS, None))
        now = time.monotonic()
        if now - queried_at < POSTED_SECONDS:
            return known
        seen = None if sent is None else self._posted.seen(self._path.name, port, only)
        known = None
        if sent is not None and seen is not None:
            known = self._excesses.setdefault(port, Excess()).update(sent, seen.bytes, seen.since)
        self._unattributed[port] = now, known
        return known

    def _interface(
        self, bus_id: str, port: SysfsPort, labels: Mapping[str, str], failed: dict[str, int]
    ) -> Iterator[Sample]:
        if self._ethtool is None or not port.netdev or not bus_id:
            return
        try:
            yield from pauses.samples(self._ethtool.statistics(port.netdev, bus_id), labels)
        except OSError as error:
            name = "NETDEV_" + errno.errorcode.get(error.errno or 0, "OTHER")
            failed[name] = failed.get(name, 0) + 1


def _counters(values: Mapping[CounterName, int], driver: Driver, labels: Mapping[str, str]) -> Iterator[Sample]:
    for name, value in values.items():
        metric = metrics.HW_VALUE if driver.gauge(name) else metrics.HW_COUNTER
        yield metric.sample(value, {**labels, "group": name[0], "counter": name[1]})


def _link(
    driver: Driver, port: SysfsPort, values: Mapping[CounterName, int], labels: Mapping[str, str]
) -> Iterator[Sample]:
    about = {"link_layer": port.link.layer, "netdev": port.netdev, "rate": port.link.rate}
    yield metrics.PORT_INFO.sample(1, {**labels, **about})
    for metric, value in (
        (metrics.STATE, port.link.state),
        (metrics.PHYSICAL_STATE, port.link.physical_state),
        (metrics.SPEED, port.link.speed if port.link.active else None),
        (metrics.WIDTH, port.link.width if port.link.active else None),
        (metrics.DOWNED, _downed(driver, port, values)),
    ):
        if value is not None:
            yield metric.sample(value, labels)


def _downed(driver: Driver, port: SysfsPort, values: Mapping[CounterName, int]) -> int | None:
    """Return the times that the link went down. On Ethernet counters/link_downed stays 0; the interface counts them."""
    own = driver.total("link_downed", values)
    if own is not None:
        return own
    if port.link.layer == "InfiniBand":
        return values.get((PORT_GROUP, "link_downed"), values.get((HW_GROUP, "link_downed")))
    return port.carrier_losses
