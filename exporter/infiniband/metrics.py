"""The metrics of the InfiniBand collector."""

from __future__ import annotations

from exporter.model import Kind, Metric

PORT = ("device", "port")

IO = Metric(
    "rdma.port.io",
    "Bytes that a port sent and received, headers included: on InfiniBand of all its traffic, on Ethernet of RDMA. "
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
    "Ticks for which a port had data to send, and had no credits or lost the arbitration (port_xmit_wait). "
    "The length of a tick is the device's own.",
    Kind.COUNTER,
    "{tick}",
    PORT,
)
LINK_ERRORS = Metric(
    "rdma.link.errors",
    "Errors of the link by the counters of the InfiniBand specification: symbol errors, recoveries, exceeded limits of "
    "local integrity and of receive buffers, packets received damaged, and packets damaged before the other end. "
    "Kinds overlap: their sum has no meaning.",
    Kind.COUNTER,
    labels=(*PORT, "error"),
)
DISCARDED = Metric(
    "rdma.packets.discarded",
    "Packets discarded by the port: to transmit, because the link is down or congested; received. Absent where the "
    "driver does not count them.",
    Kind.COUNTER,
    "{packet}",
    (*PORT, "direction"),
)
RETRIES_EXCEEDED = Metric(
    "rdma.retries.exceeded",
    "Requests given up after their last retry: transport, without an acknowledgement; rnr, because the receiver had no "
    "buffer.",
    Kind.COUNTER,
    "{request}",
    (*PORT, "kind"),
)
HW_COUNTER = Metric(
    "rdma.port.hw_counter",
    "With --collector.infiniband.all-counters only: a file of counters/ or hw_counters/ (the label group) of a port, "
    "or of the device where port is missing. Units are those of the files, but port_xmit_data and port_rcv_data are "
    "in bytes; a counter that wraps at 32 bits in the device does not wrap here.",
    Kind.COUNTER,
    labels=(*PORT, "group", "counter"),
)
HW_VALUE = Metric(
    "rdma.port.hw_value",
    "With --collector.infiniband.all-counters only: a file beside the counters that is not a counter: a current number "
    "or a setting, as the driver has it.",
    Kind.GAUGE,
    labels=(*PORT, "group", "counter"),
)
NAKS_RECEIVED = Metric(
    "rdma.naks.received",
    "Negative acknowledgements that this port received for packets it sent: sequence, the peer missed a packet (one "
    "for a gap, not for a packet); rnr, the peer had no receive buffer; implied by a later packet's number. Absent "
    "where the driver does not count them.",
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
    "RDMA packets that this port sent, acknowledgements and retransmissions included; on an InfiniBand link all of "
    "its packets. Absent where the driver does not count them.",
    Kind.COUNTER,
    labels=PORT,
)
NACK_RATIO = Metric(
    "rdma.nack",
    "Negative acknowledgements received over packets sent, by kind, within the last minute of readings. Absent where "
    "nothing was sent, or the driver does not count both.",
    Kind.GAUGE,
    "1",
    (*PORT, "kind"),
)
RETRANSMITTED = Metric(
    "rdma.packets.retransmitted",
    "Packets retransmitted. EFA has no negative acknowledgements: its loss is this over rdma_packets_sent_total.",
    Kind.COUNTER,
    labels=PORT,
)
TIMEOUTS = Metric(
    "rdma.ack.timeouts",
    "Acknowledgements that the sender did not receive in time.",
    Kind.COUNTER,
    labels=PORT,
)
ECN_MARKED = Metric(
    "rdma.ecn.packets.marked",
    "RDMA packets received that a switch had marked for congestion (ECN).",
    Kind.COUNTER,
    labels=PORT,
)
CNPS = Metric(
    "rdma.cnp.packets",
    "Congestion notification packets: sent to a peer that sends here too fast; handled, received and obeyed; ignored.",
    Kind.COUNTER,
    labels=(*PORT, "kind"),
)
UNATTRIBUTED = Metric(
    "rdma.bytes.unattributed",
    "Bytes that this port sent beyond those seen posted since every process was observed: headers, acknowledgements, "
    "retransmissions, answers to READs of peers, and posts that bypass libibverbs (by GPUs, UCX rc_mlx5, EFA direct, "
    "the kernel). Absent while the post_send of some provider in use is not probed.",
    Kind.COUNTER,
    "{byte}",
    PORT,
)
STATE = Metric(
    "rdma.link.state",
    "State of the link as InfiniBand numbers it: 1 down, 2 init, 3 armed, 4 active, 5 active and about to go down.",
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
    "Negotiated data rate of the link, all lanes together. Shown while the link is up or comes up.",
    Kind.GAUGE,
    "By/s",
    PORT,
)
WIDTH = Metric("rdma.link.width", "Lanes of the link now.", Kind.GAUGE, "{lane}", PORT)
DOWNED = Metric(
    "rdma.link.downed",
    "Times the link went down: link_downed on InfiniBand (where many devices stop at 255), carrier losses on Ethernet.",
    Kind.COUNTER,
    labels=PORT,
)
DEVICE_INFO = Metric(
    "rdma.device_info",
    "Always 1: properties of an RDMA device. driver is the kernel's.",
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
    "Pause frames of the port's network interface, received (the peer stops this port) or sent, by priority; "
    "priority all counts those for the whole link.",
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
    "Times the interface sent pauses for too long: warning; error, the interface stopped sending them.",
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
    "Packets that the port's network interface received and discarded: no buffer of the port, no receive buffer of the "
    "host (host_buffer), a congested host (host_congestion), or a full buffer towards PCIe (pcie). Priority all counts "
    "those for the whole link.",
    Kind.COUNTER,
    "{packet}",
    (*PORT, "priority", "reason"),
)
NETDEV_MARKED = Metric(
    "rdma.netdev.packets.marked",
    "Packets received with a mark for congestion (ECN), for the whole link (priority all); by=device: those that the "
    "device marked itself because the host is congested, by priority.",
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
    "Part of the last second in which the device had reads or writes for the host and PCIe accepted none.",
    Kind.GAUGE,
    "1",
    (*PORT, "direction"),
)
QP_COUNTER = Metric(
    "rdma.qp.hw_counter",
    "Counters of queue pairs created since --collector.infiniband.qp-counters switched them on, of one process (=pid) "
    "or of all on the port; qp_type is empty where types are not distinguished.",
    Kind.COUNTER,
    labels=(*PORT, "qp_type", "counter"),
    process=True,
)
SUCCESS = Metric(
    "accel_exporter.infiniband.device_success",
    "1 when the device was read in time, 0 when the reading failed or still runs; the device's series are absent then.",
    Kind.GAUGE,
    labels=("device",),
)
UNREADABLE = Metric(
    "accel_exporter.infiniband.files_unreadable",
    "Counters of a device that could not be read at the last reading, by error.",
    Kind.GAUGE,
    labels=("device", "error"),
)
