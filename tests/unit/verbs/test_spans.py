"""Work requests become spans, and both hosts name the trace of a message alike."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.node import Clock
from exporter.verbs.control import Qp
from exporter.verbs.spans import OPCODES, STATUSES, Ends, WorkRequest, message_trace, span, status_name, trace_id

A = "fe80:0000:0000:0000:0211:22ff:fe33:4455"
B = "0000:0000:0000:0000:0000:ffff:0a00:0002"
SENDS = Qp("mlx5_0", 17, 2, 3, created_ns=1, port=1, peer=23, peer_gid=B, send_psn=99, receive_psn=7)
RECEIVES = Qp("rocep1s0", 23, 2, 3, created_ns=5, port=1, peer=17, peer_gid=A, send_psn=7, receive_psn=99)
SENT = WorkRequest(1_000, 5_000, "SEND", 4096, 0, message=3, tid=11)
RECEIVED = WorkRequest(2_000, 6_000, "RECV", 4096, 0, message=3, received=True)
AT_SENDER, AT_RECEIVER = Ends(A, 17, B, 23), Ends(B, 23, A, 17)


class Still(Clock):
    def wall_ns(self, monotonic_ns: int) -> int:
        return 1_700_000_000_000_000_000 + monotonic_ns


def test_both_hosts_name_the_trace_alike() -> None:
    """The sender of a message and its receiver derive one trace id, this one."""
    expected = "6e1fef5fbaca0641801a73d2d7cdc3a7"
    assert expected == message_trace(SENT, SENDS, AT_SENDER)
    assert expected == message_trace(RECEIVED, RECEIVES, AT_RECEIVER)
    assert expected == trace_id((A, 17), (B, 23), psn=99, message=3)
    assert re.fullmatch("[0-9a-f]{32}", expected)


@pytest.mark.parametrize(
    "other",
    [
        trace_id((A, 17), (B, 23), 99, 4),
        trace_id((A, 17), (B, 23), 98, 3),
        trace_id((B, 23), (A, 17), 99, 3),
        trace_id((A, 18), (B, 23), 99, 3),
        trace_id((A, 17), (A, 23), 99, 3),
    ],
    ids=["next message", "other connection", "other way", "other queue pair", "other host"],
)
def test_other_messages_are_other_traces(other: str) -> None:
    """The number, the connection, the direction and each end distinguish messages."""
    assert trace_id((A, 17), (B, 23), 99, 3) != other


def test_trace_ids_are_even_enough_to_sample() -> None:
    """A sampler that keeps a quarter by the low 56 bits keeps about a quarter of consecutive messages."""
    low = [int(trace_id((A, 17), (B, 23), 0, n)[-14:], 16) for n in range(4000)]
    kept = sum(it < 1 << 54 for it in low)
    assert 850 < kept < 1150
    assert len(set(low)) == 4000


@pytest.mark.parametrize(
    ("work", "qp", "ends"),
    [
        (SENT, replace(SENDS, created_ns=0), AT_SENDER),
        (SENT, replace(SENDS, resets=1), AT_SENDER),
        (SENT, replace(SENDS, type=4), AT_SENDER),
        (SENT, replace(SENDS, send_psn=None), AT_SENDER),
        (replace(SENT, message=None), SENDS, AT_SENDER),
        (SENT, SENDS, replace(AT_SENDER, gid="")),
        (SENT, SENDS, replace(AT_SENDER, peer_gid="")),
        (SENT, SENDS, replace(AT_SENDER, peer=None)),
    ],
    ids=["late", "reset", "UD", "no packet number", "not numbered", "no GID", "no peer GID", "no peer"],
)
def test_where_it_would_be_a_guess(work: WorkRequest, qp: Qp, ends: Ends) -> None:
    """A queue pair that was not seen whole, or an end that is not known, gives a trace of its own, new each time."""
    first, second = (span(work, qp, ends, Still(), {}) for _ in range(2))
    assert "" == message_trace(work, qp, ends)
    assert first.trace_id != second.trace_id
    assert first.attributes["rdma.trace_shared"] is False


def test_a_span_has_both_ends() -> None:
    """Times are wall time; both QPNs and GIDs, bytes, opcode and status are attributes."""
    made = span(SENT, SENDS, AT_SENDER, Still(), {"pid": "7"})
    assert (1_700_000_000_000_001_000, 1_700_000_000_000_005_000) == (made.start_ns, made.end_ns)
    assert ("rdma SEND", "", True, {"pid": "7"}) == (made.name, made.error, made.slow, made.process)
    assert {
        "rdma.device": "mlx5_0",
        "rdma.port": 1,
        "rdma.qp": 17,
        "rdma.qp.type": "RC",
        "rdma.peer_qp": 23,
        "rdma.gid": A,
        "rdma.peer_gid": B,
        "rdma.opcode": "SEND",
        "rdma.bytes": 4096,
        "rdma.status": "SUCCESS",
        "rdma.message": 3,
        "rdma.trace_shared": True,
        "thread.id": 11,
    } == made.attributes


def test_a_failed_work_request() -> None:
    """The status is the error; what a failed completion does not have is absent."""
    failed = WorkRequest(1, 2, "", None, 12, message=None)
    made = span(failed, SENDS, Ends("", 17, "", None), Still(), {})
    assert ("RETRY_EXC_ERR", False, "rdma work request") == (made.error, made.slow, made.name)
    assert {
        "rdma.device": "mlx5_0",
        "rdma.port": 1,
        "rdma.qp": 17,
        "rdma.qp.type": "RC",
        "rdma.status": "RETRY_EXC_ERR",
        "rdma.trace_shared": False,
        "error.type": "RETRY_EXC_ERR",
    } == made.attributes


def test_names_are_those_of_the_header() -> None:
    """enum ibv_wc_status and ibv_wr_opcode of infiniband/verbs.h; an unknown status keeps its number."""
    assert ("SUCCESS", "WR_FLUSH_ERR", "RNR_RETRY_EXC_ERR", "99") == tuple(map(status_name, (0, 5, 13, 99)))
    header = Path("/usr/include/infiniband/verbs.h")
    if not header.exists():
        pytest.skip("libibverbs-dev is not installed: its header has the order")
    [body] = re.findall(r"enum ibv_wc_status {(.*?)};", header.read_text(), re.S)
    assert list(STATUSES) == re.findall(r"IBV_WC_(\w+)", body)
    [body] = re.findall(r"enum ibv_wr_opcode {(.*?)};", header.read_text(), re.S)
    numbers: dict[int, str] = {}
    for name, number in re.findall(r"IBV_WR_(\w+)(?:\s*=\s*(\d+))?", body):
        numbers[int(number) if number else max(numbers, default=-1) + 1] = name
    assert numbers == {number: OPCODES[number] for number in numbers}
