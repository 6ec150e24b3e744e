"""The metrics of the InfiniBand collector."""

from __future__ import annotations

from exporter.model import Kind, Metric

PORT = ("device", "port")

IO = Metric(
    "rdma.port.io",
    "Bytes that a port sent and received, headers included: all traffic on InfiniBand, RDMA traffic on Ethernet. "
    "Absent where the driver does not count them.",
    Kind.COUNTER,
    "By",
    (*PORT, "direction"),
)
PACKETS = Metric(
    "rdma.port.packets",
    "Packets that a port sent and received, counted like rdma_port_io_bytes_total.",
    Kind.COUNTER,
    "{packet}",
    (*PORT, "direction"),
)
TRANSMIT_WAIT = Metric(
    "rdma.port.transmit_wait",
    "Ticks in which a port had data to send, but no credits, or lost the arbitration (port_xmit_wait). The device "
    "defines the length of a tick.",
    Kind.COUNTER,
    "{tick}",
    PORT,
)
LINK_ERRORS = Metric(
    "rdma.link.errors",
    "Errors of the link, by the InfiniBand specification's counters: symbol errors, recoveries, exceeded limits of "
    "local integrity and of receive buffers, packets received damaged, and packets damaged before they reached the "
    "link's other end. Kinds overlap: do not add them.",
    Kind.COUNTER,
    labels=(*PORT, "error"),
)
DISCARDED = Metric(
    "rdma.packets.discarded",
    "Packets discarded by the port, by direction: to transmit (the link is down or congested), or received. Absent "
    "where the driver does not count them.",
    Kind.COUNTER,
    "{packet}",
    (*PORT, "direction"),
)
RETRIES_EXCEEDED = Metric(
    "rdma.retries.exceeded",
    "Requests given up after their last retry, by kind: transport (no acknowledgement), rnr (the receiver had no "
    "buffer).",
    Kind.COUNTER,
    "{request}",
    (*PORT, "kind"),
)
HW_COUNTER = Metric(
    "rdma.port.hw_counter",
    "Counter from a file of counters/ or hw_counters/ (the label group) of a port, or of the device where port is "
    "missing. Only with --collector.infiniband.all-counters. Units are the units of the files, except port_xmit_data "
    "and port_rcv_data, which are in bytes; a counter that wraps at 32 bits in the device does not wrap here.",
    Kind.COUNTER,
    labels=(*PORT, "group", "counter"),
)
HW_VALUE = Metric(
    "rdma.port.hw_value",
    "Value of a file next to the counters that is not a counter: a current number or a setting, as the driver has it. "
    "Only with --collector.infiniband.all-counters.",
    Kind.GAUGE,
    labels=(*PORT, "group", "counter"),
)
NAKS_RECEIVED = Metric(
    "rdma.naks.received",
    "Negative acknowledgements that this port received for packets it sent, by kind: sequence (the peer missed a "
    "packet; one for a gap, not for each packet), rnr (the peer had no receive buffer), implied (by a later packet's "
    "number). Absent where the driver does not count them.",
    Kind.COUNTER,
    labels=(*PORT, "kind"),
)
NAKS_SENT = Metric(
    "rdma.naks.sent",
    "Negative acknowledgements that this port sent, by the kinds of rdma_naks_received_total. Absent where the driver "
    "does not count exactly these.",
    Kind.COUNTER,
    labels=(*PORT, "kind"),
)
PACKETS_SENT = Metric(
    "rdma.packets.sent",
    "RDMA packets sent by this port, acknowledgements and retransmissions included; on an InfiniBand link, all "
    "packets. Absent where the driver does not count them.",
    Kind.COUNTER,
    labels=PORT,
)
NACK_RATIO = Metric(
    "rdma.nack",
    "Negative acknowledgements received per packet sent, by kind, within the last minute of readings. Absent where "
    "nothing was sent, or where the driver does not count both.",
    Kind.GAUGE,
    "1",
    (*PORT, "kind"),
)
RETRANSMITTED = Metric(
    "rdma.packets.retransmitted",
    "Packets retransmitted. EFA has no negative acknowledgements: its loss is this number over "
    "rdma_packets_sent_total.",
    Kind.COUNTER,
    labels=PORT,
)
TIMEOUTS = Metric(
    "rdma.ack.timeouts",
    "Acknowledgements that did not reach the sender in time.",
    Kind.COUNTER,
    labels=PORT,
)
ECN_MARKED = Metric(
    "rdma.ecn.packets.marked",
    "RDMA packets received with a switch's mark for congestion (ECN).",
    Kind.COUNTER,
    labels=PORT,
)
CNPS = Metric(
    "rdma.cnp.packets",
    "Congestion notification packets, by kind: sent (to a peer that sends too fast), handled (received and obeyed), "
    "ignored (received and not obeyed).",
    Kind.COUNTER,
    labels=(*PORT, "kind"),
)
UNATTRIBUTED = Metric(
    "rdma.bytes.unattributed",
    "Bytes sent by this port beyond the bytes seen posted, since every process was observed: headers, "
    "acknowledgements, retransmissions, answers to READs of peers, and posts that bypass libibverbs (by GPUs, UCX "
    "rc_mlx5, EFA direct, the kernel). Absent while the post_send of a provider in use is not probed.",
    Kind.COUNTER,
    "{byte}",
    PORT,
)
STATE = Metric(
    "rdma.link.state",
    "State of the link, in InfiniBand's numbers: 1 down, 2 init, 3 armed, 4 active, 5 active and about to go down.",
    Kind.GAUGE,
    labels=PORT,
)
PHYSICAL_STATE = Metric(
    "rdma.link.physical_state",
    "Physical state of the link: 1 sleep, 2 polling, 3 disabled, 4 training, 5 up, 6 recovering from errors, 7 test.",
    Kind.GAUGE,
    labels=PORT,
)
SPEED = Metric(
    "rdma.link.speed",
    "Negotiated data rate of the link, all lanes together. Only while the link is up or comes up.",
    Kind.GAUGE,
    "By/s",
    PORT,
)
WIDTH = Metric("rdma.link.width", "Current number of lanes of the link.", Kind.GAUGE, "{lane}", PORT)
DOWNED = Metric(
    "rdma.link.downed",
    "Times that the link went down: link_downed on InfiniBand (where many devices stop at 255), carrier losses on "
    "Ethernet.",
    Kind.COUNTER,
    labels=PORT,
)
DEVICE_INFO = Metric(
    "rdma.device_info",
    "Always 1: properties of an RDMA device. driver is the kernel driver.",
    Kind.GAUGE,
    labels=("device", "driver", "firmware", "board_id", "hca_type", "pci_bus_id"),
)
PORT_INFO = Metric(
    "rdma.port_info",
    "Always 1: link_layer is InfiniBand or Ethernet (RoCE), netdev the port's network interface, rate as the kernel "
    "prints it.",
    Kind.GAUGE,
    labels=(*PORT, "link_layer", "netdev", "rate"),
)
PFC_FRAMES = Metric(
    "rdma.pfc.pause_frames",
    "Pause frames of the port's network interface, by direction: received (the peer stops this port) or sent; and by "
    "priority, where all is the count for the whole link.",
    Kind.COUNTER,
    labels=(*PORT, "priority", "direction"),
)
PFC_SECONDS = Metric(
    "rdma.pfc.pause_time",
    "Time for which the port's network interface was paused (received) or paused its peer (sent).",
    Kind.COUNTER,
    "s",
    (*PORT, "priority", "direction"),
)
PFC_STORMS = Metric(
    "rdma.pfc.pause_storms",
    "Times that the interface sent pauses for too long, by severity: warning; error (the interface stopped sending "
    "them).",
    Kind.COUNTER,
    labels=(*PORT, "severity"),
)
PFC_TRANSITIONS = Metric(
    "rdma.pfc.pause_transitions",
    "Times that the port's network interface stopped being paused (received) or pausing its peer (sent).",
    Kind.COUNTER,
    labels=(*PORT, "priority", "direction"),
)
NETDEV_IO = Metric(
    "rdma.netdev.io",
    "Bytes of RDMA that the port's network interface sent and received, by addressing: unicast or multicast.",
    Kind.COUNTER,
    "By",
    (*PORT, "direction", "cast"),
)
NETDEV_PACKETS = Metric(
    "rdma.netdev.packets",
    "Packets of RDMA that the port's network interface sent and received, by addressing: unicast or multicast.",
    Kind.COUNTER,
    "{packet}",
    (*PORT, "direction", "cast"),
)
NETDEV_DISCARDED = Metric(
    "rdma.netdev.packets.discarded",
    "Packets that the port's network interface received and discarded, by reason: buffer (the port had none), "
    "host_buffer (no receive buffer of the host), host_congestion (a congested host), pcie (a full buffer towards "
    "PCIe). priority=all is the count for the whole link.",
    Kind.COUNTER,
    "{packet}",
    (*PORT, "priority", "reason"),
)
NETDEV_MARKED = Metric(
    "rdma.netdev.packets.marked",
    "Packets received with a mark for congestion (ECN), for the whole link (priority=all). by=device: packets that "
    "the device itself marked because the host is congested, by priority.",
    Kind.COUNTER,
    "{packet}",
    (*PORT, "priority", "by"),
)
PCI_STALLED_TIME = Metric(
    "rdma.pci.stalled_time",
    "Seconds in which rdma_pci_stalled_ratio was above 30 %.",
    Kind.COUNTER,
    "s",
    (*PORT, "direction"),
)
PCI_STALLED = Metric(
    "rdma.pci.stalled",
    "Share of the last second in which the device had reads or writes for the host and PCIe accepted none.",
    Kind.GAUGE,
    "1",
    (*PORT, "direction"),
)
QP_COUNTER = Metric(
    "rdma.qp.hw_counter",
    "Counters of queue pairs created since --collector.infiniband.qp-counters enabled them: of one process (value "
    "pid), or of all processes on the port. qp_type is empty where types are not distinguished.",
    Kind.COUNTER,
    labels=(*PORT, "qp_type", "counter"),
    process=True,
)
SUCCESS = Metric(
    "accel_exporter.infiniband.device_success",
    "1 when the device was read in time; 0 when the reading failed or has not ended, and the device's series are "
    "absent.",
    Kind.GAUGE,
    labels=("device",),
)
UNREADABLE = Metric(
    "accel_exporter.infiniband.files_unreadable",
    "Counters of a device that could not be read at the last reading, by error.",
    Kind.GAUGE,
    labels=("device", "error"),
)
