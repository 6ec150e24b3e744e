"""Samples of queue pairs and memory regions of processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from exporter.model import Kind, Metric, Sample
from exporter.verbs.control import TYPES, Control, Qp, Regions
from exporter.verbs.peers import Peers

STATE_CHANGES = Metric(
    "rdma.qp.state.changes",
    "Successful changes of a queue pair's state by ibv_modify_qp, by new state. Changes by the hardware itself, such "
    "as to ERR, are no calls: see rdma_qp_state.",
    Kind.COUNTER,
    labels=("device", "state"),
    process=True,
)
QP = Metric(
    "rdma.qp.state",
    "State of a queue pair of the process, in libibverbs' numbers: 0 RESET, 1 INIT, 2 RTR, 3 RTS, 4 SQD, 5 SQE, 6 "
    "ERR. A label is absent where the probes did not see its value set; peer_pod and peer_namespace are known only of "
    "a peer on this node. For a queue pair older than the exporter, the kernel reports type, state and peer_qp, once "
    "a minute.",
    Kind.GAUGE,
    labels=("device", "port", "qp", "type", "peer_qp", "local_gid", "peer_gid", "peer_lid")
    + ("peer_pod", "peer_namespace"),
    process=True,
    identity=("qp", "peer_qp", "local_gid", "peer_gid", "peer_lid", "peer_pod", "peer_namespace"),
)
QUEUE_PAIRS = Metric(
    "rdma.queue_pairs",
    "Existing queue pairs of the process, by state and by the attributes that ibv_modify_qp set. A label is absent "
    "where the probes did not see its value set. mtu is the path's MTU in bytes; timeout_seconds is 4.096 us times a "
    "power of two, 0 means none; rnr_retries=7 means without limit.",
    Kind.GAUGE,
    labels=("device", "type", "state", "mtu", "timeout_seconds", "retries", "rnr_retries"),
    process=True,
)
GID = Metric(
    "rdma.gid.info",
    "Always 1: a GID of this node that a queue pair uses. Join it with peer_gid of other nodes.",
    Kind.GAUGE,
    labels=("device", "port", "gid"),
)
REGISTERED = Metric(
    "rdma.memory_region.registered",
    "Memory registered for RDMA and not deregistered, by the lengths of the calls. memory=dmabuf is device memory. "
    "Pages registered twice count twice. Without regions of the whole address space (implicit on-demand paging) and "
    "memory registered before the process was observed. Absent once a call of the process found no room in a table.",
    Kind.GAUGE,
    "By",
    labels=("device", "memory"),
    process=True,
)
OPERATIONS = Metric(
    "rdma.memory_region.operations",
    "Successful registrations (reg), changes (rereg) and deregistrations (dereg) of memory regions. memory=unknown: "
    "deregistration of a region of which no registration was counted: it came before the process was observed, by "
    "ibv_reg_dm_mr, ibv_alloc_null_mr or ibv_import_mr, or while the table of regions had no room.",
    Kind.COUNTER,
    labels=("device", "operation", "memory"),
    process=True,
)

STATES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")


class Owned(Protocol):
    """The part of exporter.ledger.Process that is used here."""

    @property
    def pid(self) -> int: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def since(self) -> float: ...
    @property
    def ended(self) -> bool: ...


def samples(processes: Iterable[tuple[Owned, Control]], peers: Peers) -> Iterator[Sample]:
    """Yield the samples of all processes of the node: each may be the peer of another."""
    processes = list(processes)
    owners = {
        (gid, qp.number): process.labels
        for process, control in processes
        for qp in control.qps.values()
        if (gid := peers.gid(qp.device, qp.port, qp.gid_index))
    }
    for process, control in processes:
        for (device, state), changes in control.states.items():
            own = {"device": device, "state": _state(state)}
            yield Sample(STATE_CHANGES, {**process.labels, **own}, changes, process.since)
        for (device, memory), regions in control.regions.items():
            labels = {**process.labels, "device": device}
            if not control.memory_missed and (registered := regions.bytes) is not None:
                yield REGISTERED.sample(registered, {**labels, "memory": memory})
            yield from _operations(regions, labels, memory, process.since)
        if not process.ended:
            yield from _queue_pairs(process, control, peers, owners)


def _operations(regions: Regions, labels: Mapping[str, str], memory: str, since: float) -> Iterator[Sample]:
    counted = {"reg": regions.registrations, "rereg": regions.reregistrations, "dereg": regions.deregistrations}
    for operation, count in counted.items():
        yield Sample(OPERATIONS, {**labels, "operation": operation, "memory": memory}, count, since)
    if regions.unmatched:
        yield Sample(OPERATIONS, {**labels, "operation": "dereg", "memory": "unknown"}, regions.unmatched, since)


def _queue_pairs(
    process: Owned, control: Control, peers: Peers, owners: Mapping[tuple[str, int], Mapping[str, str]]
) -> Iterator[Sample]:
    shown: set[tuple[str, int]] = set()
    alike: Counter[tuple[tuple[str, str], ...]] = Counter()
    for qp in control.qps.values():
        if (qp.device, qp.number) in shown:  # one that was not seen destroyed
            continue
        shown.add((qp.device, qp.number))
        labels = describe(qp, peers)
        if owner := owners.get((qp.peer_gid, qp.peer or 0)):
            labels |= {"peer_pod": owner.get("pod", ""), "peer_namespace": owner.get("namespace", "")}
        yield QP.sample(qp.state, {**process.labels, **labels})
        alike[_settings(qp)] += 1
    for kernel in peers.of(process.pid):
        if (kernel.device, kernel.number) not in shown:
            peers.want()  # its end will not be seen
            before = Qp(kernel.device, kernel.number, kernel.type, kernel.state, port=kernel.port)
            yield QP.sample(before.state, {**process.labels, **describe(before, peers)})
            alike[_settings(before)] += 1
    for settings, count in alike.items():
        yield QUEUE_PAIRS.sample(count, {**process.labels, **dict(settings)})


def gids(processes: Iterable[tuple[Owned, Control]], peers: Peers) -> Iterator[Sample]:
    """Yield the GIDs of this node that queue pairs of processes use."""
    found = {
        (qp.device, str(qp.port), gid)
        for process, control in processes
        if not process.ended
        for qp in control.qps.values()
        if (gid := peers.gid(qp.device, qp.port, qp.gid_index))
    }
    for own in sorted(found):
        yield GID.sample(1, dict(zip(GID.labels, own, strict=True)))


def describe(qp: Qp, peers: Peers) -> dict[str, str]:
    """Return the labels of a queue pair besides its state, as far as they are known."""
    kernel = peers.kernel(qp.device, qp.number)
    peer = qp.peer if qp.peer is not None else kernel.remote if kernel and kernel.remote else None
    labels = {
        "device": qp.device,
        "port": str(qp.port or ""),
        "qp": str(qp.number),
        "type": TYPES.get(qp.type, str(qp.type)),
        "local_gid": peers.gid(qp.device, qp.port, qp.gid_index),
        "peer_gid": qp.peer_gid,
    }
    for name, value in (("peer_qp", peer), ("peer_lid", qp.peer_lid)):
        labels[name] = "" if value is None else str(value)
    return labels


def _settings(qp: Qp) -> tuple[tuple[str, str], ...]:
    """Return the labels that queue pairs with the same state and settings share."""
    return (
        ("device", qp.device),
        ("type", TYPES.get(qp.type, str(qp.type))),
        ("state", _state(qp.state)),
        ("mtu", str(qp.mtu or "")),
        ("timeout_seconds", "" if qp.timeout is None else _timeout(qp.timeout)),
        ("retries", "" if qp.retries is None else str(qp.retries)),
        ("rnr_retries", "" if qp.rnr_retries is None else str(qp.rnr_retries)),
    )


def _state(state: int) -> str:
    return STATES[state] if 0 <= state < len(STATES) else ""


def _timeout(exponent: int) -> str:
    """Return seconds: 4.096 us times 2 to the exponent (IBTA 11.6.2); 0 is no timeout."""
    return f"{4.096e-6 * 2**exponent:.6g}" if 0 < exponent < 32 else "0"
