"""The same counters with the names of Prometheus' node_exporter.

Names, kinds and units are those of collector/infiniband_linux.go of node_exporter b401dcf (of 2026; its releases up to
1.9 have no hw_counters) and sysfs/class_infiniband.go of procfs 01309d2. node_exporter reads hw_counters/ of mlx5 and
irdma only; here every driver's file of the same name is shown. node_exporter's 32-bit counters fall when they wrap;
the counters here do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exporter.infiniband.drivers import HW_GROUP, PORT_GROUP, CounterName
from exporter.infiniband.sysfs import DeviceReading, SysfsPort
from exporter.model import Kind, Metric, Sample

_EXTENDED = "counters_ext"
_NAMES = {
    _EXTENDED: {
        "port_multicast_rcv_packets": "legacy_multicast_packets_received",
        "port_multicast_xmit_packets": "legacy_multicast_packets_transmitted",
        "port_rcv_data_64": "legacy_data_received_bytes",
        "port_rcv_packets_64": "legacy_packets_received",
        "port_unicast_rcv_packets": "legacy_unicast_packets_received",
        "port_unicast_xmit_packets": "legacy_unicast_packets_transmitted",
        "port_xmit_data_64": "legacy_data_transmitted_bytes",
        "port_xmit_packets_64": "legacy_packets_transmitted",
    },
    PORT_GROUP: {
        "excessive_buffer_overrun_errors": "excessive_buffer_overrun_errors",
        "link_downed": "link_downed",
        "link_error_recovery": "link_error_recovery",
        "local_link_integrity_errors": "local_link_integrity_errors",
        "multicast_rcv_packets": "multicast_packets_received",
        "multicast_xmit_packets": "multicast_packets_transmitted",
        "port_rcv_constraint_errors": "port_constraint_errors_received",
        "port_xmit_constraint_errors": "port_constraint_errors_transmitted",
        "port_rcv_data": "port_data_received_bytes",
        "port_xmit_data": "port_data_transmitted_bytes",
        "port_rcv_discards": "port_discards_received",
        "port_xmit_discards": "port_discards_transmitted",
        "port_rcv_errors": "port_errors_received",
        "port_rcv_packets": "port_packets_received",
        "port_xmit_packets": "port_packets_transmitted",
        "port_xmit_wait": "port_transmit_wait",
        "unicast_rcv_packets": "unicast_packets_received",
        "unicast_xmit_packets": "unicast_packets_transmitted",
        "port_rcv_remote_physical_errors": "port_receive_remote_physical_errors",
        "port_rcv_switch_relay_errors": "port_receive_switch_relay_errors",
        "symbol_error": "symbol_error",
        "VL15_dropped": "vl15_dropped",
    },
    HW_GROUP: {
        "duplicate_request": "duplicate_requests_packets",
        "implied_nak_seq_err": "implied_nak_seq_errors",
        "local_ack_timeout_err": "local_ack_timeout_errors",
        "np_cnp_sent": "np_cnp_packets_sent",
        "np_ecn_marked_roce_packets": "np_ecn_marked_roce_packets_received",
        "out_of_buffer": "out_of_buffer_drops",
        "out_of_sequence": "out_of_sequence_packets_received",
        "packet_seq_err": "packet_sequence_errors",
        "req_cqe_error": "req_cqes_errors",
        "req_cqe_flush_error": "req_cqes_flush_errors",
        "req_remote_access_errors": "req_remote_access_errors",
        "req_remote_invalid_request": "req_remote_invalid_request_errors",
        "resp_cqe_error": "resp_cqes_errors",
        "resp_cqe_flush_error": "resp_cqes_flush_errors",
        "resp_local_length_error": "resp_local_length_errors",
        "resp_remote_access_errors": "resp_remote_access_errors",
        "rnr_nak_retry_err": "rnr_nak_retry_packets_received",
        "roce_adp_retrans": "roce_adp_retransmits",
        "roce_adp_retrans_to": "roce_adp_retransmits_timeout",
        "roce_slow_restart": "roce_slow_restart_used",
        "roce_slow_restart_cnps": "roce_slow_restart_cnps",
        "roce_slow_restart_trans": "roce_slow_restart",
        "rp_cnp_handled": "rp_cnp_packets_handled",
        "rp_cnp_ignored": "rp_cnp_ignored_packets_received",
        "rx_atomic_requests": "rx_atomic_requests",
        "rx_dct_connect": "rx_dct_connect_requests",
        "rx_icrc_encapsulated": "rx_icrc_encapsulated_errors",
        "rx_read_requests": "rx_read_requests",
        "rx_write_requests": "rx_write_requests",
    },
}
_PREFIX = "node_infiniband_"


def _metric(name: str, what: str, kind: Kind, labels: tuple[str, ...] = ("device", "port")) -> Metric:
    return Metric(_PREFIX + name, f"{what}, under node_exporter's name.", kind, labels=labels, literal=True)


INFO = _metric(
    "info", "Always 1: properties of an RDMA device", Kind.GAUGE, ("device", "board_id", "firmware_version", "hca_type")
)
STATE = _metric("state_id", "State of the link (4 is active)", Kind.GAUGE)
PHYSICAL_STATE = _metric("physical_state_id", "Physical state of the link (5 is up)", Kind.GAUGE)
RATE = _metric("rate_bytes_per_second", "Rate of the link", Kind.GAUGE)
LIFESPAN = _metric("lifespan_seconds", "Age up to which the driver repeats counters, in whole seconds", Kind.GAUGE)
_COUNTERS = {
    (group, file): _metric(f"{name}_total", f"Counter of the file {group}/{file} of a port", Kind.COUNTER)
    for group, names in _NAMES.items()
    for file, name in names.items()
}
METRICS = (INFO, STATE, PHYSICAL_STATE, RATE, LIFESPAN, *_COUNTERS.values())


def of_device(reading: DeviceReading) -> Sample:
    labels = {"board_id": reading.board_id, "firmware_version": reading.firmware, "hca_type": reading.hca_type}
    return INFO.sample(1, {"device": reading.device, **labels})


def of_port(port: SysfsPort, values: Mapping[CounterName, int], labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield node_exporter's samples of a port with the counters `values`, in the units of scale()."""
    for metric, value in (
        (STATE, port.link.state),
        (PHYSICAL_STATE, port.link.physical_state),
        (RATE, port.link.speed),
    ):
        if value is not None:
            yield metric.sample(value, labels)
    if (lifespan := values.get((HW_GROUP, "lifespan"))) is not None:
        yield LIFESPAN.sample(lifespan // 1000, labels)  # the file is in milliseconds
    for name, metric in _COUNTERS.items():
        if name in values:
            yield metric.sample(values[name], labels)
