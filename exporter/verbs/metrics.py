"""The metrics of the RDMA data path; those of the control path are in control_samples.py."""

from __future__ import annotations

from exporter.model import Kind, Metric

_UNSEEN = (
    " qp unknown: estimated calls that were not probed, to stay within --overhead.max-ratio; absent for a process "
    "of which nothing could be estimated."
)
POSTS = Metric(
    "rdma.post_send.calls",
    "Calls of ibv_post_send and of ibv_wr_complete, failed ones included; each posts one or more work requests."
    + _UNSEEN,
    Kind.COUNTER,
    labels=("device", "qp"),
    process=True,
    identity=("qp",),
)
_POSTED = (
    " Without return probes (see accel_exporter_probe_attached), what a failed call refused is counted too. Not what "
    "bypasses verbs."
)
_PEER = ("qp", "peer_qp", "peer_gid", "peer_lid")
"""Labels of one queue pair; peer_lid is there where the path has no GID, as on InfiniBand within a subnet."""
_QP = ("device", *_PEER, "opcode")
BYTES = Metric(
    "rdma.send",
    "Bytes of work requests posted by ibv_post_send, or from ibv_wr_start to ibv_wr_complete; of RDMA_READ those to "
    "be read." + _POSTED + _UNSEEN,
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
    "Estimated packets of work requests: bytes over the path's MTU, each rounded up, one for a read. Only where the "
    "MTU was seen set for all of them; without retransmissions.",
    Kind.COUNTER,
    labels=_QP,
    process=True,
    identity=_PEER,
)
BUSIEST = Metric(
    "rdma.qp.busiest",
    "Bytes a second posted on each of the ten queue pairs of this node that posted most, between two readings at least "
    "five seconds apart. Every process is in rdma_send_bytes_total.",
    Kind.GAUGE,
    "By/s",
    labels=("device", *_PEER),
    process=True,
    identity=_PEER,
)
POST_SECONDS = Metric(
    "rdma.post_send",
    "Time threads spent in the provider's post_send, every call, with the probe's own cost. Needs return probes.",
    Kind.HISTOGRAM,
    "s",
    labels=("device",),
    process=True,
)
_SAMPLED = " Seen only while poll_cq is probed: the share of time is rdma_poll_cq_sampled_ratio."
POLL_SECONDS = Metric(
    "rdma.poll_cq",
    "Time threads spent in calls of poll_cq or start_poll that returned completions, with the probe's own cost."
    + _SAMPLED,
    Kind.HISTOGRAM,
    "s",
    labels=("device",),
    process=True,
)
LATENCY = Metric(
    "rdma.work_request.latency",
    "Time from the post of a signaled work request until poll_cq returned its completion: queueing, transfer, "
    "acknowledgement, and the wait until the program polled. Successful requests only." + _SAMPLED,
    Kind.HISTOGRAM,
    "s",
    labels=("device", "opcode"),
    process=True,
)
ACK = Metric(
    "rdma.ack.latency",
    "Latency of requests posted while nothing else was outstanding on their queue pair, no larger than the path's "
    "MTU where that was seen set: close to the round trip, and the time until the program looked." + _SAMPLED,
    Kind.HISTOGRAM,
    "s",
    labels=("device",),
    process=True,
)
COMPLETIONS = Metric(
    "rdma.completions",
    "Completions that poll_cq, or start_poll and next_poll, returned, receives included, by enum ibv_wc_status: a "
    "sample, not all." + _SAMPLED,
    Kind.COUNTER,
    labels=("device", "status"),
    process=True,
)
SAMPLED = Metric(
    "rdma.poll_cq.sampled.ratio",
    "Share of the last minute for which poll_cq of this provider was probed: about 1 while no thread calls it often, "
    "as where programs wait for events; else windows only, so that a thread that polls without pause loses little of "
    "its time. Programs that alternate are seen more in their quiet phases.",
    Kind.GAUGE,
    "1",
    labels=("library",),
)
UNMATCHED = Metric(
    "rdma.completions.unmatched",
    "Successful completions seen with a work request that is not certain, so that their latency is not known: by their "
    "wr_id, or because the program did not read queue pair and opcode of an extended completion queue.",
    Kind.COUNTER,
)
UNREAD = Metric(
    "rdma.calls.unread",
    "Items that the probes could not read from a process's memory, or beyond the number that they read in one call: "
    "work requests (the rest of a chain counts once), requests' bytes, completions, failed calls.",
    Kind.COUNTER,
    labels=("what",),
)
