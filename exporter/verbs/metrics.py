"""The metrics of the RDMA data path; those of the control path are in control_samples.py."""

from __future__ import annotations

from exporter.model import Kind, Metric

_UNSEEN = (
    " qp=unknown: estimate of the calls that were not probed, to stay within --overhead.max-ratio; absent for a "
    "process without an estimate."
)
POSTS = Metric(
    "rdma.post_send.calls",
    "Calls of ibv_post_send and of ibv_wr_complete, failed calls included; each posts one or more work requests."
    + _UNSEEN,
    Kind.COUNTER,
    labels=("device", "qp"),
    process=True,
    identity=("qp",),
)
_POSTED = (
    " Without return probes (see accel_exporter_probe_attached), requests that a failed call refused are included. "
    "Traffic that bypasses verbs is not seen."
)
_PEER = ("qp", "peer_qp", "peer_gid", "peer_lid")
"""Labels of one queue pair; peer_lid is there where the path has no GID, as on InfiniBand within a subnet."""
_QP = ("device", *_PEER, "opcode")
BYTES = Metric(
    "rdma.send",
    "Bytes of work requests posted by ibv_post_send, or from ibv_wr_start to ibv_wr_complete; for RDMA_READ the bytes "
    "to read." + _POSTED + _UNSEEN,
    Kind.COUNTER,
    "By",
    labels=_QP,
    process=True,
    identity=_PEER,
)
REQUESTS = Metric(
    "rdma.send.work_requests",
    "Work requests posted by ibv_post_send, or from ibv_wr_start to ibv_wr_complete." + _POSTED + _UNSEEN,
    Kind.COUNTER,
    labels=_QP,
    process=True,
    identity=_PEER,
)
PACKETS = Metric(
    "rdma.send.packets.estimated",
    "Estimated packets of work requests: bytes divided by the path's MTU, rounded up for each request; one packet for "
    "a read. Without retransmissions. Only where the probes saw the MTU set for all requests.",
    Kind.COUNTER,
    labels=_QP,
    process=True,
    identity=_PEER,
)
BUSIEST = Metric(
    "rdma.qp.busiest",
    "Bytes a second posted on each of the ten busiest queue pairs of this node, between two readings at least five "
    "seconds apart. rdma_send_bytes_total has every process.",
    Kind.GAUGE,
    "By/s",
    labels=("device", *_PEER),
    process=True,
    identity=_PEER,
)
POST_SECONDS = Metric(
    "rdma.post_send",
    "Time that threads spent in the provider's post_send, for every call, overhead of the probe included. Needs "
    "return probes.",
    Kind.HISTOGRAM,
    "s",
    labels=("device",),
    process=True,
)
_SAMPLED = " Only while poll_cq is probed: rdma_poll_cq_sampled_ratio is the share of time."
POLL_SECONDS = Metric(
    "rdma.poll_cq",
    "Time that threads spent in calls of poll_cq or start_poll that returned completions, overhead of the probe "
    "included." + _SAMPLED,
    Kind.HISTOGRAM,
    "s",
    labels=("device",),
    process=True,
)
LATENCY = Metric(
    "rdma.work_request.latency",
    "Time from the post of a signaled work request until poll_cq returned its completion: queueing, transfer, "
    "acknowledgement, and the wait until the program polled. Only successful requests." + _SAMPLED,
    Kind.HISTOGRAM,
    "s",
    labels=("device", "opcode"),
    process=True,
)
ACK = Metric(
    "rdma.ack.latency",
    "Latency of requests posted while no other request was outstanding on their queue pair, no larger than the path's "
    "MTU where the probes saw it set: about the round trip, plus the time until the program polled." + _SAMPLED,
    Kind.HISTOGRAM,
    "s",
    labels=("device",),
    process=True,
)
COMPLETIONS = Metric(
    "rdma.completions",
    "Completions that poll_cq, or start_poll and next_poll, returned, receives included, by enum ibv_wc_status. A "
    "sample, not all." + _SAMPLED,
    Kind.COUNTER,
    labels=("device", "status"),
    process=True,
)
SAMPLED = Metric(
    "rdma.poll_cq.sampled.ratio",
    "Share of the last minute for which poll_cq of this provider was probed: about 1 while no thread calls it often, "
    "as where programs wait for events; else windows only, so that a thread that polls without pause loses little of "
    "its time. Programs that alternate are observed more in their quiet phases.",
    Kind.GAUGE,
    "1",
    labels=("library",),
)
UNMATCHED = Metric(
    "rdma.completions.unmatched",
    "Successful completions without a known latency, because their work request is not certain: by their wr_id, or "
    "because the program did not read queue pair and opcode of an extended completion queue.",
    Kind.COUNTER,
)
UNREAD = Metric(
    "rdma.calls.unread",
    "Items that the probes could not read from a process's memory, or beyond the number that they read in one call: "
    "work requests (the rest of a chain counts once), bytes of requests, completions, failed calls.",
    Kind.COUNTER,
    labels=("what",),
)
