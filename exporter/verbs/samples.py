"""From what RDMA did in a process to samples."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from exporter.bpf import slot_bounds
from exporter.ledger import Process
from exporter.model import Distribution, Metric, Sample, Value
from exporter.verbs import metrics
from exporter.verbs.activity import Activity, Times
from exporter.verbs.control import Qp
from exporter.verbs.peers import Peers
from exporter.verbs.spans import OPCODES, status_name

MOST = (1 << 63) - 1
_FIRST_SLOT = 8
_TIMED: Mapping[str, Metric] = {
    "timed_post_send": metrics.POST_SECONDS,
    "timed_poll_cq": metrics.POLL_SECONDS,
    "timed_request": metrics.LATENCY,
    "timed_ack": metrics.ACK,
}


class Ends:
    """The other ends of queue pairs, remembered: a counter keeps its labels when its queue pair is destroyed."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._known: dict[tuple[int, str, int], dict[str, str]] = {}

    def of(self, pid: int, qps: Mapping[tuple[str, int], Qp], device: str, number: int) -> dict[str, str]:
        """peer_qp and peer_gid, as far as they are or were known."""
        key = pid, device, number
        if qp := qps.get((device, number)):
            self._known[key] = _peer(qp, self._peers)
        return self._known.get(key, {})

    def keep(self, pids: Collection[int]) -> None:
        """Forgets those of other processes."""
        self._known = {key: it for key, it in self._known.items() if key[0] in pids}


def samples(process: Process[Activity], timed: Mapping[str, int], ends: Ends) -> Iterator[Sample]:
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
        labels |= ends.of(process.pid, qps, device, number)
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


def _peer(qp: Qp, peers: Peers) -> dict[str, str]:
    kernel = peers.kernel(qp.device, qp.number)
    peer = qp.peer if qp.peer is not None else kernel.remote if kernel and kernel.remote else None
    return {"peer_qp": "" if peer is None else str(peer), "peer_gid": qp.peer_gid}


def _distribution(times: Times) -> Distribution:
    return Distribution(slot_bounds(len(times.slots), _FIRST_SLOT, 1e-9), times.slots, times.sum_ns / 1e9)
