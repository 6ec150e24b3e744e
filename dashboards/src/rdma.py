"""RDMA network: traffic by peer, how fast, what is lost or held up on the way, and which links are not ok."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.labels import OF_JOB, columns, legend
from dashboards.parts import (
    DETAIL,
    FULL,
    HALF,
    THIRD,
    Query,
    board,
    choice,
    heat,
    lines,
    number,
    rate,
    rows,
    select,
    share,
    total,
)
from dashboards.workloads import now_of, rate_of, workloads

DEVICE = ('device=~"$device"',)
WHO = (*DEVICE, *OF_JOB)
PROCESS = ("workload", "instance", "namespace", "pod", "slurm_job_id", "comm", "pid")
NAME = legend("workload", "namespace", "pod", "slurm_job_id", "comm", "pid", "instance")
PROCESS_COLUMNS = columns("workload", "instance", "namespace", "pod", "slurm_job_id", "comm", "pid")
PORT = ("instance", "device", "port")
PORT_NAME = "{{instance}} {{device}}/{{port}}"
PORT_COLUMNS = columns("instance", "device", "port")
PEER = ("instance", "device", "peer_gid", "peer_lid")
PEER_NAME = "{{instance}} {{device}} → {{peer_gid}} {{peer_lid}}"
PEER_COLUMNS = columns("instance", "device", "peer_gid", "peer_lid")
USER = ("job", "cluster", "instance", "pid", "device")


def of(metric: str, *matchers: str) -> str:
    """A metric of the chosen devices."""
    return select(metric, *DEVICE, *matchers)


def rising(metric: str, *labels: str, only: tuple[str, ...] = ()) -> str:
    """A counter's rate of the chosen devices, by labels."""
    return total(rate(metric, *DEVICE, *only), *labels)


def used(metric: str, *labels: str) -> str:
    """A counter's rate of the chosen jobs on the chosen devices, by labels."""
    return total(rate_of(metric, *WHO), *labels)


def most(metric: str, *labels: str, only: tuple[str, ...] = ()) -> str:
    return f"max by ({', '.join(labels)}) ({of(metric, *only)})"


def quantiles(histogram: str, *labels: str) -> list[Query]:
    """Median and 99th percentile by labels."""
    buckets = used(f"{histogram}_bucket", "le", *labels)
    name = " ".join(f"{{{{{label}}}}}" for label in labels)
    return [Query(f"histogram_quantile({q}, {buckets})", f"{name} {q:.0%}") for q in (0.5, 0.99)]


def traffic(direction: str, *labels: str) -> str:
    """Bytes per second of ports, by their own counters."""
    return rising("rdma_port_io_bytes_total", *labels, *PORT, only=(f'direction="{direction}"',))


def of_speed(direction: str) -> str:
    """A port's traffic as a share of what its link carries."""
    speed = most("rdma_link_speed_bytes_per_second", "cluster", *PORT)
    return f"{traffic(direction, 'cluster')} / on (cluster, {', '.join(PORT)}) {speed}"


def of_peers(metric: str) -> str:
    """A counter of processes on a device by the peers that they send to, whichever of these it counted."""
    users = ", ".join(USER)
    peers = f"group by ({users}, peer_gid, peer_lid) ({rate_of('rdma_send_bytes_total', *WHO)})"
    return total(f"{peers} * on ({users}) group_left () {used(metric, *USER)}", *PEER)


QUEUE_PAIRS = now_of("rdma_queue_pairs", *WHO)
SETTINGS = {
    "device": "Device",
    "type": "Type",
    "state": "State",
    "mtu": "MTU",
    "timeout_seconds": "Timeout",
    "retries": "Retries",
    "rnr_retries": "RNR retries",
}
QUEUE_PAIR = {
    "device": "Device",
    "qp": "QP",
    "type": "Type",
    "peer_gid": "Peer GID",
    "peer_qp": "Peer QP",
    "peer_pod": "Peer pod",
    "peer_lid": "Peer LID",
}
IN_ERROR = now_of("rdma_queue_pairs", *WHO, 'state="ERR"')
ONE = (*PROCESS, "device", "qp", "peer_gid", "peer_lid", "peer_qp")
LATENCY, ACK, POST = "rdma_work_request_latency_seconds", "rdma_ack_latency_seconds", "rdma_post_send_seconds"
MEAN = f"{of_peers(f'{LATENCY}_sum')} / ({of_peers(f'{LATENCY}_count')} > 0)"
LOSS, SLOW = ('kind=~"sequence|implied"',), ('kind="rnr"',)
RETRIES, LINK_ERRORS, DISCARDED = (
    "rdma_retries_exceeded_total",
    "rdma_link_errors_total",
    "rdma_packets_discarded_total",
)
DOWN = of("rdma_link_state")
FAILED = ('status!="SUCCESS"',)

OVERVIEW = [
    number(
        "Ports not active",
        "Ports with a link that is down, or still comes up; unused ones too.",
        "short",
        Query(f"count({DOWN} < 4) or vector(0)"),
    ),
    number(
        "NACK ratio: sequence",
        "Sequence errors that peers reported over packets sent, of the worst port: loss on the way.",
        "percentunit",
        Query(f"max({of('rdma_nack_ratio', *LOSS)})"),
        alarm=0.001,
    ),
    number(
        "NACK ratio: RNR",
        "Receivers that had no buffer posted, over packets sent, of the worst port: not loss, but a slow peer.",
        "percentunit",
        Query(f"max({of('rdma_nack_ratio', *SLOW)})"),
        alarm=0.01,
    ),
    number(
        "Retries exhausted",
        "Requests given up after their last retry, per second: their queue pairs fail.",
        "cps",
        Query(f"{rising(RETRIES)} or vector(0)"),
        alarm=0.0001,
    ),
    number(
        "Queue pairs in error",
        "Queue pairs in state ERR now.",
        "short",
        Query(f"{total(IN_ERROR)} or vector(0)"),
        alarm=1,
    ),
    number("Posted", "Bytes of work requests posted.", "Bps", Query(used("rdma_send_bytes_total"))),
]

LATENCIES = [
    lines(
        "Work request latency by device",
        "From posting a signaled request until poll_cq returned its completion: queueing, transfer, acknowledgement, "
        "and the time until the program looked. A sample.",
        "s",
        *quantiles(LATENCY, "instance", "device"),
    ),
    heat(
        "Work request latency",
        "Distribution of latencies; a sample.",
        "s",
        Query(used(f"{LATENCY}_bucket", "le"), "{{le}}"),
    ),
]

TRAFFIC = [
    lines(
        "Bytes by process",
        "Posted with ibv_post_send; what GPUs, UCX's rc_mlx5 or the kernel post is not seen.",
        "Bps",
        Query(used("rdma_send_bytes_total", *PROCESS), NAME),
    ),
    lines(
        "Bytes by peer",
        "Posted to each peer's GID, or LID, by all nodes; without one, where it was not seen set.",
        "Bps",
        Query(used("rdma_send_bytes_total", "peer_gid", "peer_lid"), "{{peer_gid}} {{peer_lid}}"),
    ),
    lines(
        "Busiest queue pairs",
        "The ten queue pairs of each node that post most.",
        "Bps",
        Query(
            f"topk(20, max by ({', '.join(ONE)}) ({now_of('rdma_qp_busiest_bytes_per_second', *WHO)}))",
            NAME + " {{device}} {{qp}} → {{peer_gid}} {{peer_lid}} {{peer_qp}}",
        ),
    ),
    lines(
        "Work requests by opcode",
        "Posted per second. Of RDMA_READ the bytes flow the other way.",
        "cps",
        Query(used("rdma_send_work_requests_total", "opcode"), "{{opcode}}"),
        width=HALF,
        stacked=True,
    ),
    lines(
        "Calls that post",
        "By process; far fewer than work requests where a call posts many.",
        "ops",
        Query(used("rdma_post_send_calls_total", *PROCESS), NAME),
    ),
    lines(
        "Packets, estimated",
        "Packets that the requests make at the path's MTU, by process. Only where the MTU was seen set.",
        "cps",
        Query(used("rdma_send_packets_estimated_total", *PROCESS), NAME),
    ),
]

PEERS = [
    rows(
        "Traffic by peer",
        "Each device and the peers to which it posts. Latency is the mean over the processes that talk to that peer, "
        "whichever peer their requests went to; a sample.",
        "short",
        PEER_COLUMNS,
        Query(used("rdma_send_bytes_total", *PEER), "Bytes", "Bps"),
        Query(MEAN, "Latency", "s"),
    ),
    lines(
        "Bytes by device and peer",
        "Bytes posted on each device for each peer.",
        "Bps",
        Query(used("rdma_send_bytes_total", *PEER), PEER_NAME),
    ),
    lines(
        "Latency by device and peer",
        "Mean of work requests of the processes that talk to that peer, as in the table.",
        "s",
        Query(MEAN, PEER_NAME),
    ),
    rows(
        "GID owners",
        "Nodes and devices of the GIDs that queue pairs here use: look up a peer's GID in it.",
        "short",
        {"gid": "GID", "instance": "Instance", "device": "Device", "port": "Port"},
        Query(f"count by (gid, {', '.join(PORT)}) ({of('rdma_gid_info')})", "Is", hidden=True),
        width=HALF,
    ),
    rows(
        "Queue pairs by setting",
        "Queue pairs of each process, and what they were set to.",
        "short",
        {
            **PROCESS_COLUMNS,
            **SETTINGS,
        },
        Query(total(QUEUE_PAIRS, *PROCESS, *SETTINGS), "Queue pairs"),
        width=HALF,
    ),
]

LOSSES = [
    lines(
        "NACK ratio: sequence errors",
        "Negative acknowledgements received for packets that a peer missed, over packets sent: the network lost or "
        "reordered some. One stands for a gap, not for a packet.",
        "percentunit",
        Query(most("rdma_nack_ratio", *PORT, "kind", only=LOSS), f"{PORT_NAME} {{{{kind}}}}"),
        width=THIRD,
    ),
    lines(
        "NACK ratio: receiver not ready",
        "Negative acknowledgements because the receiver was not ready (RNR), over packets sent: the peer's program is"
        " slow.",
        "percentunit",
        Query(most("rdma_nack_ratio", *PORT, only=SLOW), PORT_NAME),
        width=THIRD,
    ),
    lines(
        "Retries exhausted by port",
        "Requests given up after their last retry: without an acknowledgement (transport), or of a receiver without "
        "buffers (rnr).",
        "cps",
        Query(rising(RETRIES, *PORT, "kind"), f"{PORT_NAME} {{{{kind}}}}"),
        width=THIRD,
    ),
    lines(
        "NAKs received",
        "By kind; packets of this port that a peer did not receive in order. Absent where the driver does not count "
        "them.",
        "cps",
        Query(rising("rdma_naks_received_total", *PORT, "kind"), f"{PORT_NAME} {{{{kind}}}}"),
        width=THIRD,
    ),
    lines(
        "NAKs sent",
        "By kind; packets that this port did not receive in order. The same events as the peers' received ones: never"
        " add both.",
        "cps",
        Query(rising("rdma_naks_sent_total", *PORT, "kind"), f"{PORT_NAME} {{{{kind}}}}"),
        width=THIRD,
    ),
    lines(
        "Retransmissions and timeouts",
        "Packets sent again (EFA's measure of loss), and acknowledgements that did not come in time.",
        "cps",
        Query(rising("rdma_packets_retransmitted_total", *PORT), f"{PORT_NAME} sent again"),
        Query(rising("rdma_ack_timeouts_total", *PORT), f"{PORT_NAME} timeouts"),
        width=THIRD,
    ),
    lines(
        "Completions by status",
        "As poll_cq returned them, receives included: a sample, of the time shown under blind spots.",
        "cps",
        Query(used("rdma_completions_total", "status"), "{{status}}"),
    ),
    lines(
        "Failed completions by process",
        "Completions not of status SUCCESS. The first of a queue pair has the reason, WR_FLUSH_ERR follow. A sample.",
        "cps",
        Query(
            total(rate_of("rdma_completions_total", *WHO, *FAILED), *PROCESS, "device", "status"),
            f"{NAME} {{{{status}}}}",
        ),
    ),
]

LINKS = [
    rows(
        "Ports",
        "State 4 is active; 1 down, 2 and 3 coming up. Physical 5 is up, 2 polling, 3 disabled, 4 training.",
        "short",
        {**PORT_COLUMNS, "link_layer": "Layer", "netdev": "Interface"},
        Query(most("rdma_port_info", *PORT, "link_layer", "netdev"), "Is", hidden=True),
        Query(most("rdma_link_state", *PORT), "State"),
        Query(most("rdma_link_physical_state", *PORT), "Physical"),
        Query(most("rdma_link_speed_bytes_per_second", *PORT), "Speed", "Bps"),
        Query(most("rdma_link_width", *PORT), "Lanes"),
        Query(traffic("transmit"), "Sent", "Bps"),
        Query(traffic("receive"), "Received", "Bps"),
    ),
    lines(
        "Sent over link speed",
        "Bytes sent by each port as a share of what its link carries, by the device's own counter.",
        "percentunit",
        Query(share(of_speed("transmit")), PORT_NAME),
    ),
    lines(
        "Received over link speed",
        "Bytes received by each port as a share of what its link carries.",
        "percentunit",
        Query(share(of_speed("receive")), PORT_NAME),
    ),
    lines(
        "Link state",
        "4 is active. A line that falls is a link that went down.",
        "short",
        Query(most("rdma_link_state", *PORT), PORT_NAME),
        width=THIRD,
    ),
    lines(
        "Link went down",
        "How often, per second, by the device's or the interface's count.",
        "cps",
        Query(rising("rdma_link_downed_total", *PORT), PORT_NAME),
        width=THIRD,
    ),
    lines(
        "Link errors",
        "Bit errors, recoveries, damaged packets and discards, by the device's own counters.",
        "eps",
        Query(f"{rising(LINK_ERRORS, *PORT, 'error')} > 0", f"{PORT_NAME} {{{{error}}}}"),
        Query(f"{rising(DISCARDED, *PORT, 'direction')} > 0", f"{PORT_NAME} discarded, {{{{direction}}}}"),
        width=THIRD,
    ),
]

CONGESTION = [
    lines(
        "Paused (PFC)",
        "Share of time for which a port was paused by its peer (received) or paused it (sent), by priority.",
        "percentunit",
        Query(
            share(rising("rdma_pfc_pause_time_seconds_total", *PORT, "priority", "direction")),
            f"{PORT_NAME} {{{{priority}}}} {{{{direction}}}}",
        ),
    ),
    lines(
        "Pause frames",
        "By priority and direction; storms are pauses that do not end.",
        "cps",
        Query(
            rising("rdma_pfc_pause_frames_total", *PORT, "priority", "direction"),
            f"{PORT_NAME} {{{{priority}}}} {{{{direction}}}}",
        ),
        Query(rising("rdma_pfc_pause_storms_total", *PORT, "severity"), f"{PORT_NAME} storm {{{{severity}}}}"),
    ),
    lines(
        "ECN marks received",
        "RDMA packets received that a switch had marked for congestion.",
        "cps",
        Query(rising("rdma_ecn_packets_marked_total", *PORT), PORT_NAME),
    ),
    lines(
        "Congestion notifications",
        "Sent to peers that send here too fast; handled and ignored are received.",
        "cps",
        Query(rising("rdma_cnp_packets_total", *PORT, "kind"), f"{PORT_NAME} {{{{kind}}}}"),
    ),
    lines(
        "Waiting to transmit",
        "Ticks per second for which a port had data to send and sent none, mostly without credits of its peer. The "
        "length of a tick is the device's own: compare ports of one model.",
        "cps",
        Query(rising("rdma_port_transmit_wait_total", *PORT), PORT_NAME),
    ),
    lines(
        "PCIe stalled",
        "Part of the last second in which PCIe took nothing from the device: the host is the bottleneck.",
        "percentunit",
        Query(most("rdma_pci_stalled_ratio", *PORT, "direction"), f"{PORT_NAME} {{{{direction}}}}"),
    ),
]

RESOURCES = [
    lines(
        "Queue pairs by state",
        "Of each type; those in ERR are dead until their program makes new ones.",
        "short",
        Query(total(QUEUE_PAIRS, "type", "state"), "{{type}} {{state}}"),
        stacked=True,
    ),
    lines(
        "Changes of state",
        "By ibv_modify_qp; what the hardware does by itself is no call.",
        "cps",
        Query(used("rdma_qp_state_changes_total", "state"), "{{state}}"),
    ),
    lines(
        "Memory registered",
        "By process and kind; dmabuf is memory of a device. Pages registered twice count twice.",
        "bytes",
        Query(total(now_of("rdma_memory_region_registered_bytes", *WHO), *PROCESS, "memory"), f"{NAME} {{{{memory}}}}"),
    ),
    lines(
        "Registrations",
        "Memory regions registered, changed and deregistered. Steady flows are churn: registering is slow.",
        "ops",
        Query(used("rdma_memory_region_operations_total", "operation"), "{{operation}}"),
    ),
]

BLIND = [
    lines(
        "Share of time poll_cq is probed",
        "Completions and latencies are a sample of this share; divide counts by it for an estimate of all.",
        "percentunit",
        Query(f"min by (instance, library) ({select('rdma_poll_cq_sampled_ratio')})", "{{instance}} {{library}}"),
        width=THIRD,
    ),
    lines(
        "Unattributed bytes",
        "Sent by a port beyond what was seen posted: headers, retransmissions, answers to READs, and what goes around "
        "libibverbs.",
        "Bps",
        Query(rising("rdma_bytes_unattributed_total", *PORT), PORT_NAME),
        width=THIRD,
    ),
    lines(
        "Completions not matched or not read",
        "Completions not matched to a request with certainty, and parts of calls that could not be read.",
        "cps",
        Query(total(rate("rdma_completions_unmatched_total"), "instance"), "{{instance}} unmatched"),
        Query(total(rate("rdma_calls_unread_total"), "instance", "what"), "{{instance}} {{what}}"),
        width=THIRD,
    ),
    rows(
        "Devices",
        "Whether each device was read in time, and counters of it that the driver refuses.",
        "short",
        {"instance": "Instance", "device": "Device", "driver": "Driver", "firmware": "Firmware", "error": "Error"},
        Query(most("rdma_device_info", "instance", "device", "driver", "firmware"), "Is", hidden=True),
        Query(most("accel_exporter_infiniband_device_success", "instance", "device"), "Read", "bool_yes_no"),
        Query(most("accel_exporter_infiniband_files_unreadable", "instance", "device", "error"), "Refused"),
    ),
]


DETAILS = [
    lines(
        "Work request latency by opcode",
        "Latency of work requests by opcode. A sample.",
        "s",
        *quantiles(LATENCY, "opcode"),
    ),
    lines(
        "ACK latency",
        "Of single packets posted while nothing else was outstanding: close to the round trip. A sample.",
        "s",
        *quantiles(ACK, "instance", "device"),
    ),
    heat(
        "ACK latencies",
        "Distribution of round trips; a sample.",
        "s",
        Query(used(f"{ACK}_bucket", "le"), "{{le}}"),
    ),
    lines(
        "Time in post_send",
        "Time threads spent in the provider's post_send, every call, with the probe's own cost. It has no opcode: a "
        "call may post several.",
        "s",
        *quantiles(POST, "instance", "device"),
    ),
    heat("Times in post_send", "Distribution of calls.", "s", Query(used(f"{POST}_bucket", "le"), "{{le}}")),
    lines(
        "Time in poll_cq",
        "Time in calls of poll_cq that returned completions, including the probe's own cost. A sample.",
        "s",
        *quantiles("rdma_poll_cq_seconds", "instance", "device"),
        width=HALF,
    ),
    rows(
        "Queue pairs",
        "Each queue pair with its process and peer. State 3 is RTS, 5 SQE, 6 ERR. In profile node those in an error "
        "state, 16 at most.",
        "short",
        {
            **PROCESS_COLUMNS,
            **QUEUE_PAIR,
        },
        Query(f"max by ({', '.join((*PROCESS, *QUEUE_PAIR))}) ({now_of('rdma_qp_state', *WHO)})", "State"),
        width=FULL,
    ),
]


def dashboard() -> Dashboard:
    devices = select("", '__name__=~"rdma_link_state|rdma_queue_pairs"')
    info = select("rdma_queue_pairs")
    return board(
        "accel-exporter-rdma",
        "RDMA network",
        "Loss and latency of the RDMA network, and the peers that are affected. Traffic, latency, losses and links.",
        [
            choice("device", "Device", f"label_values({devices}, device)", every=".*"),
            choice("namespace", "Namespace", f"label_values({info}, namespace)", every=".*"),
            workloads('namespace=~"$namespace"'),
            choice("pod", "Pod", f"label_values({info}, pod)", every=".*"),
            choice("slurm_job_id", "Slurm job", f"label_values({info}, slurm_job_id)", every=".*"),
        ],
        {
            "Overview": OVERVIEW,
            "Latency": LATENCIES,
            "Traffic": TRAFFIC,
            "Peers": PEERS,
            "Loss": LOSSES,
            "Links": LINKS,
            "Congestion": CONGESTION,
            "Queue pairs and memory": RESOURCES,
            "Blind spots": BLIND,
            DETAIL: DETAILS,
        },
    )
