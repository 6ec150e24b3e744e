"""From what RDMA did in a process to samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exporter.bpf import slot_bounds
from exporter.ledger import Process
from exporter.model import Distribution, Metric, Sample, Value
from exporter.verbs import metrics
from exporter.verbs.activity import Activity, Times
from exporter.verbs.control import Qp
from exporter.verbs.peers import Peers
from exporter.verbs.spans import status_name

OPCODES: Mapping[int, str] = {
    0: "RDMA_WRITE",
    1: "RDMA_WRITE_WITH_IMM",
    2: "SEND",
    3: "SEND_WITH_IMM",
    4: "RDMA_READ",
    5: "ATOMIC_CMP_AND_SWP",
    6: "ATOMIC_FETCH_AND_ADD",
    7: "LOCAL_INV",
    8: "BIND_MW",
    9: "SEND_WITH_INV",
    10: "TSO",
    11: "DRIVER1",
    14: "FLUSH",
    15: "ATOMIC_WRITE",
}
"""enum ibv_wr_opcode of infiniband/verbs.h, without IBV_WR_."""

MOST = (1 << 63) - 1
_FIRST_SLOT = 8
_TIMED: Mapping[str, Metric] = {
    "timed_post_send": metrics.POST_SECONDS,
    "timed_poll_cq": metrics.POLL_SECONDS,
    "timed_request": metrics.LATENCY,
    "timed_ack": metrics.ACK,
}


def samples(process: Process[Activity], timed: Mapping[str, int], peers: Peers) -> Iterator[Sample]:
    """What one process posted and saw complete. `timed` is enum timed of bpf/verbs.h."""
    activity = process.activity
    qps = {(qp.device, qp.number): qp for qp in activity.control.qps.values()}

    def sample(metric: Metric, value: Value, **own: str) -> Sample:
        if isinstance(value, int):  # what a process makes up has to fit the 64 bits of OTLP
            value = min(value, MOST)
        return Sample(metric, {**process.labels, **own}, value, process.since)

    for (device, number), calls in activity.calls.items():
        yield sample(metrics.POSTS, calls, device=device, qp=str(number))
    for (device, number, opcode), it in activity.posted.items():
        labels = {"device": device, "qp": str(number), "opcode": OPCODES.get(opcode, str(opcode))}
        labels |= _peer(qps.get((device, number)), peers)
        yield sample(metrics.BYTES, it.bytes, **labels)
        yield sample(metrics.REQUESTS, it.requests, **labels)
        if not it.unsized:
            yield sample(metrics.PACKETS, it.packets, **labels)
    for (device, status), count in activity.completions.items():
        yield sample(metrics.COMPLETIONS, count, device=device, status=status_name(status))
    for name, metric in _TIMED.items():
        for (what, device, opcode), times in activity.times.items():
            if what == timed[name]:
                own = {"opcode": OPCODES.get(opcode, str(opcode))} if "opcode" in metric.labels else {}
                yield sample(metric, _distribution(times), device=device, **own)


def _peer(qp: Qp | None, peers: Peers) -> dict[str, str]:
    if qp is None:
        return {}
    kernel = peers.kernel(qp.device, qp.number)
    peer = qp.peer if qp.peer is not None else kernel.remote if kernel and kernel.remote else None
    return {"peer_qp": "" if peer is None else str(peer), "peer_gid": qp.peer_gid}


def _distribution(times: Times) -> Distribution:
    return Distribution(slot_bounds(len(times.slots), _FIRST_SLOT, 1e-9), times.slots, times.sum_ns / 1e9)
