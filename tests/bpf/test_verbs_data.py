"""Posted work requests are counted exactly, and latencies belong to the right work requests."""

from __future__ import annotations

import time

import pytest

from exporter.model import Distribution
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.bpf.verbs_node import Job, attached, build_standins, observe
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.evidence(feature="RDMA work and completions", on="stand-in"),
    pytest.mark.evidence(feature="RDMA latency", on="stand-in"),
]

BYTES, REQUESTS = "rdma_send_bytes_total", "rdma_send_work_requests_total"
LATENCY, ACK = "rdma_work_request_latency_seconds", "rdma_ack_latency_seconds"
MAPS = ("qp_controls", "queues", "posted", "completions", "times", "contexts", "post_flights", "poll_flights")
SEND, READ = 2, 4
FLUSHED, RETRIES_EXCEEDED = 5, 12


observed = once(observe)


def unread(observed: Observed, what: str) -> int:
    return int(observed.value("rdma_calls_unread_total", what=what))


def latencies(observed: Observed, job: Job, opcode: str) -> Distribution:
    found = observed.value(LATENCY, job.pid, opcode=opcode)
    return found if isinstance(found, Distribution) else Distribution((), (), 0.0)


def test_23_requests_are_23(observed: Observed) -> None:
    """A chain of 23 writes of 3 segments is 1 call, 23 requests and its bytes; other queue pairs have their own."""
    with attached(observed, Job()) as job:
        assert 0 == job.post(0, 23, segments=3, size=1001)
        assert 0 == job.post(1, 7, opcode=SEND, size=1 << 20)
        assert 0 == job.post(1, 1, opcode=READ, segments=32, size=4096)
        assert 1 == observed.value("rdma_post_send_calls_total", job.pid, qp="100")
        assert 2 == observed.value("rdma_post_send_calls_total", job.pid, qp="101")
        assert 23 == observed.value(REQUESTS, job.pid, qp="100", opcode="RDMA_WRITE")
        assert 23 * 3 * 1001 == observed.value(BYTES, job.pid, qp="100", opcode="RDMA_WRITE")
        assert 7 << 20 == observed.value(BYTES, job.pid, qp="101", opcode="SEND")
        assert 32 * 4096 == observed.value(BYTES, job.pid, qp="101", opcode="RDMA_READ")
        assert 3 == sum(observed.value("rdma_post_send_seconds", job.pid, device="standin0").counts)


def test_packets_are_absent_without_an_mtu(observed: Observed) -> None:
    """Nobody saw the path's MTU set, so packets and acknowledgements are absent."""
    with attached(observed, Job()) as job:
        job.post(0, 3)
        assert {} == observed.values("rdma_send_packets_estimated_total", job.pid)
        assert {} == observed.values(ACK, job.pid)


def test_a_failed_call_counts_what_it_posted(observed: Observed) -> None:
    """Of a chain of 9 of which the provider takes 4, 4 are counted, with their latencies."""
    with attached(observed, Job()) as job:
        job.step("refuse", 4)
        assert 0 != job.post(0, 9, size=100)
        assert 4 == observed.value(REQUESTS, job.pid, qp="100")
        assert 400 == observed.value(BYTES, job.pid, qp="100")
        job.step("refuse", -1)
        assert 0 == job.post(0, 2, size=100)
        assert 6 == observed.value(REQUESTS, job.pid, qp="100")
        job.step("complete", 100, 0)
        assert 6 == job.step("poll", 16)
        assert 6 == sum(latencies(observed, job, "RDMA_WRITE").counts)


def test_latency_is_that_of_the_request_in_order(observed: Observed) -> None:
    """Unsignaled requests have no latency; those with one wr_id are matched in order once one is certain."""
    with attached(observed, Job()) as job:
        begun = time.monotonic()
        job.post(0, 10, every=5)
        job.step("sleep", 30_000)
        job.step("complete", 10, 0)
        assert 2 == job.step("poll", 16)
        took = time.monotonic() - begun
        found = latencies(observed, job, "RDMA_WRITE")
        assert 2 == sum(found.counts)
        assert 0.06 <= found.sum < 2 * took
        begun = time.monotonic()
        job.post(0, 1, opcode=SEND)
        job.step("complete", 1, 0)
        assert 1 == job.step("poll", 16)
        took = time.monotonic() - begun
        assert 1 == sum(latencies(observed, job, "SEND").counts)
        assert latencies(observed, job, "SEND").sum < took


def test_no_latency_where_the_request_is_not_certain(observed: Observed) -> None:
    """Requests with the same wr_id on a queue pair that was there before: completions are counted, latencies not."""
    with attached(observed, Job()) as job:
        before = observed.value("rdma_completions_unmatched_total")
        job.post(0, 5, same=1)
        job.step("complete", 5, 0)
        assert 5 == job.step("poll", 16)
        assert 5 == observed.value("rdma_completions_total", job.pid, status="SUCCESS")
        assert {} == observed.values(LATENCY, job.pid)
        assert before + 5 == observed.value("rdma_completions_unmatched_total")


def test_failures_by_status(observed: Observed) -> None:
    """Exceeded retries and flushes are counted by name and have no latency."""
    with attached(observed, Job()) as job:
        job.post(0, 9)
        job.step("complete", 1, RETRIES_EXCEEDED)
        job.step("complete", 8, FLUSHED)
        assert 9 == job.step("poll", 16)
        assert 1 == observed.value("rdma_completions_total", job.pid, status="RETRY_EXC_ERR")
        assert 8 == observed.value("rdma_completions_total", job.pid, status="WR_FLUSH_ERR")
        assert {} == observed.values(LATENCY, job.pid)
        assert 6 == observed.value("rdma_qp_state", job.pid, qp="100")


@pytest.mark.parametrize(("kind", "what"), [(0, "bytes"), (1, "requests"), (2, "bytes"), (3, "requests")])
def test_hostile_structures(observed: Observed, kind: int, what: str) -> None:
    """Segments and requests that are not there, a circle of requests and 2^31 segments are read to a bound."""
    with attached(observed, Job()) as job:
        before = unread(observed, what)
        job.step("hostile", kind)
        assert before + 1 == unread(observed, what)
        assert 1 == observed.value("rdma_post_send_calls_total", job.pid, qp="100")
        assert kind == 0 or 0 == sum(observed.values(REQUESTS, job.pid).values())


def test_nothing_stays_of_a_killed_process(observed: Observed) -> None:
    """The kernel keeps nothing of a process that was killed, and its counters stand still."""
    with attached(observed, Job()) as job:
        job.post(0, 5)
        job.process.kill()
        job.process.wait()
        until(lambda: job.pid not in observed.collector.ledger, "the end noticed")
        for name in MAPS:
            if name != "posted":
                assert [] == observed.kernel(name, job.pid)
        assert 5 == observed.value(REQUESTS, job.pid, qp="100")


def test_ended_processes_that_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three that ended two are folded where one is kept: sums over all series are those of three."""
    monkeypatch.setattr("exporter.ledger.MOST_ENDED", 1)
    with observe() as observed:
        for _ in range(3):
            with attached(observed, Job()) as job:
                job.post(0, 7, size=1001)
                job.create()
                job.connect()
            until(lambda job=job: job.pid not in observed.collector.ledger, "its end")  # type: ignore[misc]
        changes = "rdma_qp_state_changes_total"
        found = observed.sums(REQUESTS, BYTES, "rdma_post_send_seconds", changes)
        assert found.pop(changes)[True] == 2 * 3
        assert found == {REQUESTS: {False: 7, True: 14}, BYTES: {False: 7007, True: 14014}} | {
            "rdma_post_send_seconds": {False: 1, True: 2}
        }


def test_a_full_table_is_counted() -> None:
    """With room for one queue pair the others' bytes are counted all the same, and the loss is."""
    build_standins()
    with observe(queue_pairs=1) as observed, attached(observed, Job()) as job:
        for qp in range(4):
            job.post(qp, 2, size=5)
        assert [10] * 4 == [observed.value(BYTES, job.pid, qp=str(100 + qp)) for qp in range(4)]
        assert 3 <= observed.value("accel_exporter_map_full_total", map="verbs_queues")
