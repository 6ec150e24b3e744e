"""Single work requests as spans; a message with spans on both hosts is one trace.

The n-th message that one queue pair of type RC sends is the n-th that its peer receives, so each end can compute
the trace id alone: a hash of both ends, of the packet number the connection began with, and of n. That is done only for
queue pairs that were seen from their creation on; else n would be a guess, and the span has a trace of its own.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import blake2b

from exporter.model import Labels, Span
from exporter.node import Clock
from exporter.verbs.control import TYPES, Qp
from exporter.verbs.peers import Peers
from exporter.verbs.records import VerbsSpan

Attribute = str | int | float | bool

STATUSES = (
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "LOC_RDD_VIOL_ERR",
    "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",
    "INV_EECN_ERR",
    "INV_EEC_STATE_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
    "TM_ERR",
    "TM_RNDV_INCOMPLETE",
)
"""enum ibv_wc_status of infiniband/verbs.h, without IBV_WC_."""

_RC = "RC"
_PERSON = b"rdma message"


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """One work request that completed. Times are monotonic nanoseconds: posted, and its completion seen."""

    begin_ns: int
    end_ns: int
    opcode: str
    """The value of the metrics' label: SEND, RDMA_WRITE, RECV ..."""
    bytes: int | None
    status: int
    message: int | None
    """Number on the queue pair of a message that the peer receives (SEND, WRITE_WITH_IMM, RECV); None: not known.

    Counted from 0 at the queue pair's creation, sends and receives apart.
    """
    received: bool = False
    tid: int = 0


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of a queue pair; empty and None: not known."""

    gid: str
    number: int
    peer_gid: str
    peer: int | None


OPCODES = {
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

_NOT_NUMBERED = (1 << 64) - 1
_BYTES_UNKNOWN = (1 << 32) - 1


def span_of(record: VerbsSpan, peers: Peers, clock: Clock, process: Labels) -> Span:
    """Return the span of a record of `verbs_spans`: struct verbs_span in bpf/verbs/spans.h."""
    qp = Qp.of(record.qp)
    sent = OPCODES.get(record.opcode, str(record.opcode))
    request = WorkRequest(
        begin_ns=record.begin_ns,
        end_ns=record.end_ns,
        opcode="" if not record.matched else "RECV" if record.received else sent,
        bytes=record.bytes if record.matched and record.bytes != _BYTES_UNKNOWN else None,
        status=record.status,
        message=None if record.message == _NOT_NUMBERED else record.message,
        received=bool(record.received),
        tid=record.tid,
    )
    kernel = peers.kernel(qp.device, qp.number) if qp.peer is None else None
    peer = kernel.remote or None if kernel else qp.peer
    ends = Ends(peers.gid(qp.device, qp.port, qp.gid_index), qp.number, qp.peer_gid, peer)
    return span(request, qp, ends, clock, process)


def status_name(status: int) -> str:
    """Return the constant in infiniband/verbs.h without IBV_WC_, or the number."""
    return STATUSES[status] if 0 <= status < len(STATUSES) else str(status)


def span(request: WorkRequest, qp: Qp, ends: Ends, clock: Clock, process: Labels) -> Span:
    """Return the span of one work request, in the trace of the peer's span if both ends are known."""
    error = status_name(request.status) if request.status else ""
    shared = message_trace(request, qp, ends)
    attributes = _attributes(request, qp, ends)
    attributes["rdma.trace_shared"] = bool(shared)
    if error:
        attributes["error.type"] = error
    return Span(
        name=f"rdma {request.opcode}" if request.opcode else "rdma work request",
        trace_id=shared or secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        start_ns=clock.wall_ns(request.begin_ns),
        end_ns=clock.wall_ns(request.end_ns),
        attributes=attributes,
        process=process,
        error=error,
        slow=not error,
    )


def message_trace(request: WorkRequest, qp: Qp, ends: Ends) -> str:
    """Return the trace id that both hosts compute for this message; empty where they cannot."""
    psn = qp.receive_psn if request.received else qp.send_psn
    seen_whole = qp.created_ns and not qp.resets and TYPES.get(qp.type) == _RC
    if (
        not seen_whole
        or request.message is None
        or psn is None
        or not ends.gid
        or not ends.peer_gid
        or ends.peer is None
    ):
        return ""
    here, there = (ends.gid, ends.number), (ends.peer_gid, ends.peer)
    sender, receiver = (there, here) if request.received else (here, there)
    return trace_id(sender, receiver, psn, request.message)


def trace_id(sender: tuple[str, int], receiver: tuple[str, int], psn: int, message: int) -> str:
    """Return the trace id of the n-th message between two ends (GID as sysfs writes it, and QPN), 32 hex digits.

    `psn` is the sender's first packet number, which the receiver has to know too: QPNs are used again, with another
    PSN. Every bit is the hash's, so samplers that go by the low 56 or 64 bits decide alike on both hosts.
    """
    text = f"{sender[0]} {sender[1]} {receiver[0]} {receiver[1]} {psn} {message}"
    digest = blake2b(text.encode(), digest_size=16, person=_PERSON).digest()
    return (digest if any(digest) else b"\1" * 16).hex()


def _attributes(request: WorkRequest, qp: Qp, ends: Ends) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "rdma.device": qp.device,
        "rdma.qp": qp.number,
        "rdma.qp.type": TYPES.get(qp.type, str(qp.type)),
        "rdma.status": status_name(request.status),
    }
    known = {
        "rdma.opcode": request.opcode,
        "rdma.gid": ends.gid,
        "rdma.peer_gid": ends.peer_gid,
        "rdma.peer_qp": ends.peer,
        "rdma.port": qp.port or None,
        "rdma.bytes": request.bytes,
        "rdma.message": request.message,
        "thread.id": request.tid or None,
    }
    return attributes | {name: value for name, value in known.items() if value is not None and value != ""}
