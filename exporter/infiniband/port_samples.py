"""Samples of an RDMA port: data sent and received, waits, discards, and link errors, each with its own unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exporter.infiniband import metrics
from exporter.infiniband.drivers import PORT_GROUP, CounterName, Driver
from exporter.model import Metric, Sample

_BY_DIRECTION: tuple[tuple[Metric, str, str, str], ...] = (
    (metrics.IO, "transmit", "bytes", "port_xmit_data"),
    (metrics.IO, "receive", "bytes_received", "port_rcv_data"),
    (metrics.PACKETS, "transmit", "packets", "port_xmit_packets"),
    (metrics.PACKETS, "receive", "packets_received", "port_rcv_packets"),
    (metrics.DISCARDED, "transmit", "", "port_xmit_discards"),
    (metrics.DISCARDED, "receive", "discarded", ""),
)
"""Metric, direction, the sum in drivers.yaml, and the file of counters/ of drivers that list none."""
_ERRORS = {
    "symbol": "symbol_error",
    "recovery": "link_error_recovery",
    "local_integrity": "local_link_integrity_errors",
    "buffer_overrun": "excessive_buffer_overrun_errors",
    "receive": "port_rcv_errors",
    "remote_physical": "port_rcv_remote_physical_errors",
}


def samples(driver: Driver, values: Mapping[CounterName, int], labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield what is known of a port; `values` are its counters, data in bytes."""
    for metric, direction, what, file in _BY_DIRECTION:
        total = driver.total(what, values)
        if total is None:
            total = values.get((PORT_GROUP, file))
        if total is not None:
            yield metric.sample(total, {**labels, "direction": direction})
    waited = values.get((PORT_GROUP, "port_xmit_wait"))
    if waited is not None:
        yield metrics.TRANSMIT_WAIT.sample(waited, labels)
    for error, file in _ERRORS.items():
        count = values.get((PORT_GROUP, file))
        if count is not None:
            yield metrics.LINK_ERRORS.sample(count, {**labels, "error": error})
