"""Samples of what RDMA did in a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping

from exporter.durations import durations
from exporter.ledger import Process
from exporter.model import Distribution, Metric, Sample, Value
from exporter.verbs import metrics
from exporter.verbs.activity import Activity, QpId, Times
from exporter.verbs.control import Qp
from exporter.verbs.destroyed_qps import PostedRequests
from exporter.verbs.peers import Peers
from exporter.verbs.posted import RdmaPort
from exporter.verbs.posts import UNKNOWN_QP
from exporter.verbs.spans import OPCODES, status_name

MOST = (1 << 63) - 1
TIME_FIRST = -22
"""TIME_FIRST of bpf/verbs/verbs.h."""
_READ = "RDMA_READ"
"""The operation with bytes that the peer sends."""
_TIMED: Mapping[str, Metric] = {
    "timed_post_send": metrics.POST_SECONDS,
    "timed_poll_cq": metrics.POLL_SECONDS,
    "timed_request": metrics.LATENCY,
    "timed_ack": metrics.ACK,
}


class PeerLabels:
    """The labels of the peers of queue pairs, remembered while samples have them.

    A counter keeps its labels when its queue pair is destroyed and has left the kernel's list.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._known: dict[tuple[int, QpId], dict[str, str]] = {}
        self._used: dict[tuple[int, QpId], dict[str, str]] = {}

    def turn(self) -> None:
        """Forget labels that were not used since the last turn."""
        self._known, self._used = self._used, {}

    def of(self, pid: int, qps: Mapping[QpId, Qp], qp_id: QpId) -> dict[str, str]:
        """Return peer_qp, and peer_gid or else peer_lid, as far as they are or were known."""
        key = pid, qp_id
        found = self._find(pid, qps.get(qp_id), qp_id) or self._known.get(key, {})
        self._used[key] = found
        return found

    def _find(self, pid: int, qp: Qp | None, qp_id: QpId) -> dict[str, str]:
        kernel = self._peers.kernel(qp_id.device, qp_id.number)
        remote = kernel.remote if kernel and kernel.remote and not qp_id.created_ns else None
        if qp:
            peer = remote if qp.peer is None else qp.peer
            lid = "" if qp.peer_gid or not qp.peer_lid else str(qp.peer_lid)
            return {"peer_qp": "" if peer is None else str(peer), "peer_gid": qp.peer_gid, "peer_lid": lid}
        return (
            {"peer_qp": str(remote), "peer_gid": "", "peer_lid": ""} if remote and kernel and kernel.pid == pid else {}
        )


def samples(process: Process[Activity], timed: Mapping[str, int], peer_labels: PeerLabels) -> Iterator[Sample]:
    """Yield what one process posted and saw complete. `timed` is enum timed of bpf/verbs/verbs.h."""
    activity = process.activity

    def sample(metric: Metric, value: Value, **own: str) -> Sample:
        if isinstance(value, int):  # what a process makes up has to fit the 64 bits of OTLP
            value = min(value, MOST)
        return Sample(metric, {**process.labels, **own}, value, process.since)

    calls: Counter[tuple[str, int]] = Counter()
    for qp_id, count in activity.calls.items():
        calls[qp_id.device, qp_id.number] += count
    for (device, number), count in calls.items():
        yield sample(metrics.POSTS, count, device=device, qp=_name(number))
    for qp, posted in _posted(process.pid, activity, peer_labels).items():
        labels = dict(qp)
        yield sample(metrics.BYTES, posted.bytes, **labels)
        yield sample(metrics.REQUESTS, posted.requests, **labels)
        if not posted.unsized:
            yield sample(metrics.PACKETS, posted.packets, **labels)
    for (device, status), count in activity.completions.items():
        yield sample(metrics.COMPLETIONS, count, device=device, status=status_name(status))
    for name, metric in _TIMED.items():
        for (what, device, opcode), times in activity.times.items():
            if what == timed[name]:
                own = {"opcode": OPCODES.get(opcode, str(opcode))} if "opcode" in metric.labels else {}
                yield sample(metric, _distribution(times), device=device, **own)


def bytes_by_port(process: Process[Activity], peers: Peers) -> dict[Hashable, tuple[RdmaPort, int]]:
    """Return bytes that one process posted and this node sends, by row, with the port they leave through."""
    qps, found = process.activity.qps, dict[Hashable, tuple[RdmaPort, int]]()
    for (qp_id, opcode), posted in process.activity.posted.items():
        if OPCODES.get(opcode) == _READ:
            continue
        qp, kernel = qps.get(qp_id), peers.kernel(qp_id.device, qp_id.number)
        number = (qp.port if qp else 0) or (kernel.port if kernel and not qp_id.created_ns else 0)
        found[process.pid, process.since, qp_id, opcode] = RdmaPort(qp_id.device, number), posted.bytes
    return found


def _posted(pid: int, activity: Activity, peer_labels: PeerLabels) -> dict[frozenset[tuple[str, str]], PostedRequests]:
    """Return posted requests by labels: queue pairs that had one number and one peer in turn are one."""
    qps, summed = activity.qps, dict[frozenset[tuple[str, str]], PostedRequests]()
    for (qp_id, opcode), posted in activity.posted.items():
        labels = {"device": qp_id.device, "qp": _name(qp_id.number), "opcode": OPCODES.get(opcode, "OTHER")}
        own = frozenset((labels | peer_labels.of(pid, qps, qp_id)).items())
        summed[own] = summed.get(own, PostedRequests()).plus(posted)
    return summed


def _name(number: int) -> str:
    """Return the label of a queue pair's number."""
    return "unknown" if number == UNKNOWN_QP else str(number)


def _distribution(times: Times) -> Distribution:
    return durations(times.slots, times.sum_ns, TIME_FIRST)
