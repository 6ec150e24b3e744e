"""Queue pairs that were seen made: what completes is known by order, and their rows go with them."""

from __future__ import annotations

import time

import pytest

from exporter.model import Distribution
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.bpf.verbs_node import UD, Job, attached, build_standins, observe
from tests.support import until

pytestmark = pytest.mark.needs_bpf

BYTES, REQUESTS = "rdma_send_bytes_total", "rdma_send_work_requests_total"
PACKETS = "rdma_send_packets_estimated_total"
LATENCY, ACK = "rdma_work_request_latency_seconds", "rdma_ack_latency_seconds"
UNMATCHED = "rdma_completions_unmatched_total"
WRITE, SEND, READ = 0, 2, 4
ROWS = ("queues", "receives", "calls", "posted", "qp_controls")


observed = once(observe)


def counted(observed: Observed, metric: str, job: Job, **labels: str) -> int:
    """Return the number of observations of a histogram, all of its series together."""
    found = observed.values(metric, job.pid, **labels).values()
    return sum(sum(it.counts) for it in found if isinstance(it, Distribution))


def rows(observed: Observed, job: Job) -> dict[str, int]:
    """Return the number of the kernel's rows of queue pairs of a process, by map."""

    def tgid(key: object) -> object:
        key = getattr(key, "life", key)
        return getattr(key, "qp", key).tgid  # type: ignore[attr-defined]

    maps = observed.collector.object.maps
    return {name: sum(tgid(key) == job.pid for key, _ in maps[name].items()) for name in ROWS}


def finish(job: Job, count: int) -> None:
    job.step("complete", count, 0)
    assert count == job.step("poll", count)


def test_acknowledgements(observed: Observed) -> None:
    """Single SENDs and WRITEs on an idle RC queue pair, no larger than its MTU, measure acknowledgements."""
    with attached(observed, Job()) as job:
        assert job.create() >= 200 and 0 == job.connect()
        begun = time.monotonic()
        for opcode, size in ((SEND, 1024), (WRITE, 1), (SEND, 0)):
            job.post(8, 1, opcode=opcode, size=size)
            job.step("sleep", 2_000)
            finish(job, 1)
        took = time.monotonic() - begun
        assert 3 == counted(observed, ACK, job)
        assert 0.006 <= sum(it.sum for it in observed.values(ACK, job.pid).values()) < took
        job.post(8, 1, opcode=READ, size=8)  # an answer, not an acknowledgement
        finish(job, 1)
        job.post(8, 1, opcode=SEND, size=1025)  # two packets
        finish(job, 1)
        job.post(8, 2, opcode=SEND)  # a chain: one acknowledgement may do for both
        finish(job, 2)
        job.post(8, 1)
        job.post(8, 1)  # the first of these was alone
        finish(job, 2)
        assert 4 == counted(observed, ACK, job)
        assert 9 == counted(observed, LATENCY, job)


def test_datagrams_are_not_acknowledged(observed: Observed) -> None:
    """A UD queue pair's requests complete when they are sent."""
    with attached(observed, Job()) as job:
        job.create(kind=UD)
        job.connect()
        job.post(8, 1, opcode=SEND)
        finish(job, 1)
        assert (1, 0) == (counted(observed, LATENCY, job), counted(observed, ACK, job))


@pytest.mark.parametrize(
    ("size", "opcode", "packets"),
    [(1, SEND, 1), (1024, WRITE, 1), (1025, WRITE, 2), (0, SEND, 1), (9999, READ, 1), (10240, SEND, 10)],
)
def test_packets(observed: Observed, size: int, opcode: int, packets: int) -> None:
    """Bytes over the MTU of 1024, rounded up for each request; a READ is requested with one."""
    with attached(observed, Job()) as job:
        number = job.create()
        job.connect(peer=77)
        job.post(8, 3, opcode=opcode, size=size)
        gid = ":".join(["fe80", *["0000"] * 6, "0002"])
        assert 3 * packets == observed.value(PACKETS, job.pid, qp=str(number), peer_qp="77", peer_gid=gid)


def test_all_are_signaled(observed: Observed) -> None:
    """Requests without the signaled flag complete too on a queue pair with sq_sig_all, each with its own latency."""
    with attached(observed, Job()) as job:
        job.create(8, all_signaled=True)
        job.create(9)
        job.connect(8)
        job.connect(9)
        job.post(8, 10, opcode=SEND, every=10)
        job.post(9, 10, opcode=WRITE, every=10)
        job.step("complete", 20, 0)
        assert 11 == job.step("poll", 64)
        assert 10 == counted(observed, LATENCY, job, opcode="SEND")
        assert 1 == counted(observed, LATENCY, job, opcode="RDMA_WRITE")


@pytest.mark.parametrize("extended", [False, True])
def test_order_alone_decides_from_creation_on(observed: Observed, extended: bool) -> None:
    """Requests with one wr_id are distinguished by order, on a queue pair that was seen made, whoever made it."""
    with attached(observed, Job()) as job:
        before = observed.value(UNMATCHED)
        assert job.create(extended=extended) >= 200
        job.connect()
        job.post(8, 5, opcode=SEND, same=1)
        job.step("sleep", 20_000)
        begun = time.monotonic()
        job.post(8, 5, opcode=WRITE, same=1)
        finish(job, 10)
        took = time.monotonic() - begun
        assert 5 == counted(observed, LATENCY, job, opcode="SEND")
        [sends] = observed.values(LATENCY, job.pid, opcode="SEND").values()
        [writes] = observed.values(LATENCY, job.pid, opcode="RDMA_WRITE").values()
        assert 5 == sum(writes.counts)
        assert sends.sum >= 0.1
        assert writes.sum < 5 * took
        assert before == observed.value(UNMATCHED)


def test_a_reset_drops_what_is_outstanding(observed: Observed) -> None:
    """After a reset the next completion is that of the next request, not of one from before."""
    with attached(observed, Job()) as job:
        job.create()
        job.connect()
        job.post(8, 5, opcode=READ, same=1)
        job.step("reset", 8)
        job.step("complete", 5, 0)
        assert 0 == job.step("poll", 8)
        job.connect()
        job.post(8, 2, opcode=SEND, same=1)
        finish(job, 2)
        assert (0, 2) == tuple(counted(observed, LATENCY, job, opcode=it) for it in ("RDMA_READ", "SEND"))


def test_a_number_that_comes_again(observed: Observed) -> None:
    """Queue pairs with one number and different peers are different series; neither has requests of the other."""
    with attached(observed, Job()) as job:
        for peer, opcode, count in ((11, READ, 3), (12, SEND, 5), (11, READ, 7)):
            job.step("number", 300)
            assert 300 == job.create()
            job.connect(peer=peer)
            job.post(8, count, opcode=opcode, size=100, same=1)
            if opcode == SEND:
                finish(job, count)
            assert 0 == job.step("destroy", 8)
            job.step("complete", count, 0)
            assert 0 == job.step("poll", 8)

        def kept() -> bool:
            return 1000 == observed.value(BYTES, job.pid, qp="300", peer_qp="11", opcode="RDMA_READ")

        until(kept, "what the destroyed ones posted")
        assert 500 == observed.value(BYTES, job.pid, qp="300", peer_qp="12", opcode="SEND")
        until(lambda: observed.value("rdma_post_send_calls_total", job.pid, qp="300") == 3, "their calls")
        assert (5, 0) == tuple(counted(observed, LATENCY, job, opcode=it) for it in ("SEND", "RDMA_READ"))


def test_a_failed_destruction_changes_nothing(observed: Observed) -> None:
    """A queue pair that could not be destroyed is still followed."""
    with attached(observed, Job()) as job:
        job.create()
        job.connect()
        job.post(8, 2, same=1)
        job.step("refuse", 0)
        assert 0 != job.step("destroy", 8)
        job.step("refuse", -1)
        finish(job, 2)
        assert 2 == counted(observed, LATENCY, job)
        assert {"queues": 1, "receives": 0, "calls": 1, "posted": 1, "qp_controls": 1} == rows(observed, job)


def test_more_queue_pairs_than_there_is_room_for() -> None:
    """Made and destroyed one after the other: no row stays, none is missed, and all that was posted is there."""
    build_standins()
    with observe(queue_pairs=64) as observed, attached(observed, Job()) as job:
        assert 0 == job.step("churn", 300, 3)
        until(lambda: 300 == len(observed.values(BYTES, job.pid)), "all there")
        until(lambda: not any(rows(observed, job).values()), lambda: rows(observed, job))
        assert 300 * 30 == sum(observed.values(BYTES, job.pid).values())
        assert 300 * 3 == sum(observed.values(REQUESTS, job.pid).values())
        assert 300 == sum(observed.values("rdma_post_send_calls_total", job.pid).values())
        assert 900 == counted(observed, LATENCY, job)
        assert {0} == {
            int(observed.value("accel_exporter_map_full_total", map=f"verbs_{name}"))
            for name in ("queues", "receives", "calls", "posted")
        }
        assert 0 == observed.value("accel_exporter_events_lost_total", stream="qp_ends")
        job.process.kill()
        job.process.wait()
        until(lambda: job.pid not in observed.collector.ledger, "the end noticed")
        assert 300 * 30 == sum(observed.values(BYTES, job.pid).values())


@pytest.mark.parametrize("same", [0, 1])
def test_threads_that_poll_one_queue(observed: Observed, same: int) -> None:
    """Every completion is counted once whoever polls it, and no latency is longer than the job has run.

    After a race the next request of its own wr_id is certain again; with one wr_id for all of them no further one is.
    """
    with attached(observed, Job()) as job:
        before = observed.value(UNMATCHED)
        job.create()
        job.connect()
        begun = time.monotonic()
        assert 500 == job.step("compete", 4, 500, same)
        took = time.monotonic() - begun
        assert 500 == observed.value("rdma_completions_total", job.pid, status="SUCCESS")
        latencies = observed.values(LATENCY, job.pid, opcode="RDMA_WRITE").values()
        matched = sum(sum(it.counts) for it in latencies)
        assert 500 == matched + observed.value(UNMATCHED) - before
        assert same or matched >= 400
        assert sum(it.sum for it in latencies) < 500 * took
