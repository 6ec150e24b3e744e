"""Work requests that took long or failed are told one by one."""

from __future__ import annotations

import pytest

from tests.bpf.verbs_node import Job, attached, build_standins, eventually, observe

pytestmark = pytest.mark.needs_bpf

SEND = 2
FLUSHED, RETRIES_EXCEEDED = 5, 12


def test_slow_and_failed_requests() -> None:
    """A request above the threshold is a span with bytes and time, a failed one with its status; others are none."""
    build_standins()
    with observe(span_seconds=0.02) as observed, attached(observed, Job()) as job:
        job.post(0, 1, opcode=SEND, size=700)
        job.step("complete", 1, 0)
        assert 1 == job.step("poll", 1)
        job.post(0, 1, opcode=SEND, size=4096)
        job.step("sleep", 50_000)
        job.step("complete", 1, 0)
        assert 1 == job.step("poll", 1)
        job.post(1, 2)
        job.step("complete", 1, RETRIES_EXCEEDED)
        job.step("complete", 1, FLUSHED)
        assert 2 == job.step("poll", 2)
        eventually(lambda: len(observed.spans) == 2, "two spans")
        slow, failed = observed.spans
    assert ("rdma SEND", "", 4096, 100) == (
        slow.name,
        slow.error,
        slow.attributes["rdma.bytes"],
        slow.attributes["rdma.qp"],
    )
    assert 50_000_000 < slow.end_ns - slow.start_ns < 5_000_000_000
    assert ("RETRY_EXC_ERR", 101, str(job.pid)) == (failed.error, failed.attributes["rdma.qp"], failed.process["pid"])
    assert [False, False] == [it.attributes["rdma.trace_shared"] for it in (slow, failed)]
