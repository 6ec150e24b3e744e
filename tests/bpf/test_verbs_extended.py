"""Posts by ibv_wr_start and the other extended calls, and polls by ibv_start_poll, count as by the plain calls."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from exporter.model import Distribution
from exporter.verbs.functions import CQ_CALLS, QP_CALLS
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.bpf.verbs_node import BUILD, PROVIDER, Job, attached, build_standins, observe
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="RDMA extended calls", on="stand-in")]

BYTES, REQUESTS, CALLS = "rdma_send_bytes_total", "rdma_send_work_requests_total", "rdma_post_send_calls_total"
COMPLETIONS, LATENCY, ACK = (
    "rdma_completions_total",
    "rdma_work_request_latency_seconds",
    "rdma_ack_latency_seconds",
)
WRITE, SEND, SEND_WITH_IMM, READ, FETCH_AND_ADD, LOCAL_INV, ATOMIC_WRITE = 0, 2, 3, 4, 6, 7, 15
OPCODE, NUMBER, LENGTH = 1, 2, 4
RETRIES_EXCEEDED = 12
PLACE = 8


observed = once(observe)


def probed(observed: Observed, call: str, path: Path = PROVIDER) -> bool:
    found = observed.values("accel_exporter_probe_attached", symbol=call, library=str(path))
    return bool(found) and all(found.values())


def polls_probed(observed: Observed, path: Path = PROVIDER) -> bool:
    files = [it for it in observed.collector.windows.files.values() if it.library.path == str(path)]
    parts = [it for it in files if "start_poll" in it.library.functions]
    return bool(parts) and all(it.opened for it in parts)


def made(observed: Observed, job: Job, path: Path = PROVIDER) -> int:
    """A queue pair for the extended calls, ready to post, once these are probed."""
    number = job.create(PLACE, extended=2)
    assert 0 == job.connect(PLACE)
    until(lambda: probed(observed, "wr_complete", path), "the calls probed")
    return number


def latencies(observed: Observed, job: Job, metric: str = LATENCY, **labels: str) -> int:
    found = observed.values(metric, job.pid, **labels).values()
    return sum(sum(it.counts) for it in found if isinstance(it, Distribution))


def test_23_built_requests_are_23(observed: Observed) -> None:
    """Requests and bytes by opcode, whichever way segments are set; one call for all, with its packets."""
    with attached(observed, Job()) as job:
        qp = str(made(observed, job))
        for segments in (1, 3, -1, -5, 0):
            assert 0 == job.build(PLACE, 23, segments=segments, size=1001)
        assert 0 == job.build(PLACE, 1, opcode=READ, size=1 << 20)
        assert 0 == job.build(PLACE, 2, opcode=FETCH_AND_ADD, size=8)
        assert 0 == job.build(PLACE, 3, opcode=LOCAL_INV, segments=0)
        assert 0 == job.build(PLACE, 4, opcode=ATOMIC_WRITE, segments=0)
        assert 9 == observed.value(CALLS, job.pid, qp=qp)
        assert 5 * 23 == observed.value(REQUESTS, job.pid, qp=qp, opcode="RDMA_WRITE")
        assert 23 * 1001 * (1 + 3 + 1 + 5) == observed.value(BYTES, job.pid, qp=qp, opcode="RDMA_WRITE")
        packets = observed.value("rdma_send_packets_estimated_total", job.pid, qp=qp, opcode="RDMA_WRITE")
        assert 23 * (1 + 3 + 1 + 5 + 1) == packets
        assert 1 << 20 == observed.value(BYTES, job.pid, qp=qp, opcode="RDMA_READ")
        assert 16 == observed.value(BYTES, job.pid, qp=qp, opcode="ATOMIC_FETCH_AND_ADD")
        assert 0 == observed.value(BYTES, job.pid, qp=qp, opcode="LOCAL_INV")
        assert 3 == observed.value(REQUESTS, job.pid, qp=qp, opcode="LOCAL_INV")
        assert 32 == observed.value(BYTES, job.pid, qp=qp, opcode="ATOMIC_WRITE")


def test_what_is_not_posted_does_not_count(observed: Observed) -> None:
    """Of what is aborted, or refused by ibv_wr_complete, nothing is posted; the next ones have their own latency."""
    with attached(observed, Job()) as job:
        qp = str(made(observed, job))
        assert 0 == job.build(PLACE, 5, opcode=SEND, size=10, abort=1)
        job.step("refuse", 3)
        assert 0 != job.build(PLACE, 5, opcode=SEND, size=10)
        job.step("refuse", -1)
        assert 0 == job.build(PLACE, 2, opcode=WRITE, size=100)
        assert 0 == observed.value(REQUESTS, job.pid, qp=qp, opcode="SEND")
        assert 0 == observed.value(BYTES, job.pid, qp=qp, opcode="SEND")
        assert 200 == observed.value(BYTES, job.pid, qp=qp, opcode="RDMA_WRITE")
        job.step("complete", 2, 0)
        assert 2 == job.step("poll", 64)
        assert 2 == latencies(observed, job, opcode="RDMA_WRITE")
        assert 0 == latencies(observed, job, opcode="SEND")


def test_nothing_is_kept_of_what_has_ended(observed: Observed) -> None:
    """A queue pair that is destroyed, a poll that has ended and a process that ends give their rows back."""

    def rows() -> list[int]:
        maps = observed.collector.object.maps
        return [
            sum(key.tgid == job.pid for key, _ in maps[name].items())
            for name in ("extended_posts", "extended_polls", "extended_calls")
        ]

    with attached(observed, Job()) as job:
        assert 0 == job.step("extend")
        made(observed, job)
        until(lambda: polls_probed(observed), "polls probed")
        assert 0 == job.build(PLACE, 2)
        job.step("complete", 2, 0)
        assert 2 == job.step("pollex", 64, OPCODE | NUMBER)
        assert [1, 0, 2] == rows()
        assert 0 == job.step("destroy", PLACE)
        assert [0, 0, 2] == rows()
    until(lambda: [0, 0, 0] == rows(), "all rows removed")


def test_both_ways_to_post_are_one_order(observed: Observed) -> None:
    """Requests of a queue pair complete in order, whichever calls posted them; unsignaled ones with the next."""
    with attached(observed, Job()) as job:
        made(observed, job)
        assert 0 == job.build(PLACE, 6, opcode=SEND, every=3)
        assert 0 == job.post(PLACE, 3, opcode=READ, same=1)
        assert 0 == job.build(PLACE, 4, opcode=WRITE, every=4)
        job.step("complete", 13, 0)
        assert 6 == job.step("poll", 64)
        assert 2 == latencies(observed, job, opcode="SEND")
        assert 3 == latencies(observed, job, opcode="RDMA_READ")
        assert 1 == latencies(observed, job, opcode="RDMA_WRITE")


def test_a_lone_request_measures_the_acknowledgement(observed: Observed) -> None:
    """One small request on an idle queue pair does, two at once do not."""
    with attached(observed, Job()) as job:
        made(observed, job)
        for count in (1, 2, 1):
            assert 0 == job.build(PLACE, count, opcode=SEND, size=100)
            job.step("complete", count, 0)
            assert count == job.step("poll", 64)
        assert 2 == latencies(observed, job, ACK)


@pytest.mark.parametrize("fields", [OPCODE | NUMBER, OPCODE | NUMBER | LENGTH])
def test_extended_polls(observed: Observed, fields: int) -> None:
    """Completions by status, and latencies where the program reads the queue pair and the opcode."""
    with attached(observed, Job()) as job:
        assert 0 == job.step("extend")
        qp = made(observed, job)
        until(lambda: polls_probed(observed), "polls probed")
        assert 0 == job.build(PLACE, 5, opcode=SEND)
        job.step("receive", PLACE, 3, 0)
        job.step("complete", 5, 0)
        job.step("arrive", PLACE, 3)
        assert 8 == job.step("pollex", 64, fields)
        assert 0 == job.build(PLACE, 1, opcode=SEND)
        job.step("complete", 1, RETRIES_EXCEEDED)
        assert 1 == job.step("pollex", 64, fields)
        assert 0 == job.step("pollex", 64, fields)
        assert 8 == observed.value(COMPLETIONS, job.pid, status="SUCCESS")
        assert 1 == observed.value(COMPLETIONS, job.pid, status="RETRY_EXC_ERR")
        assert 5 == latencies(observed, job, opcode="SEND")
        assert 2 == latencies(observed, job, "rdma_poll_cq_seconds")
        assert 6 == observed.value("rdma_qp_state", job.pid, qp=str(qp))


@pytest.mark.parametrize(("fields", "unmatched"), [(0, 4), (OPCODE, 4), (NUMBER, 4)])
def test_polls_that_read_less(observed: Observed, fields: int, unmatched: int) -> None:
    """Without the queue pair or the opcode a completion counts, and what request it was is not guessed."""
    with attached(observed, Job()) as job:
        assert 0 == job.step("extend")
        made(observed, job)
        until(lambda: polls_probed(observed), "polls probed")
        before = observed.value("rdma_completions_unmatched_total")
        assert 0 == job.build(PLACE, 4, opcode=SEND)
        job.step("complete", 4, 0)
        assert 4 == job.step("pollex", 64, fields)
        assert 4 == observed.value(COMPLETIONS, job.pid, status="SUCCESS")
        assert 0 == latencies(observed, job)
        assert before + unmatched == observed.value("rdma_completions_unmatched_total")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="landing pads of indirect branches are x86-64's")
def test_functions_with_landing_pads(observed: Observed) -> None:
    """A function that is probed behind its beginning, as with endbr64, is still identified by its beginning."""
    path = BUILD / "cet" / PROVIDER.name
    with Job(provider=path) as job:
        until(lambda: job.pid in observed.collector.ledger, "the process known")
        assert 0 == job.step("extend")
        qp = str(made(observed, job, path))
        present = observed.collector.probes.present()
        places = [it.hooked.places.found for it in present if it.hooked.library.path == str(path)]
        assert any(placement.moved for found in places for call, placement in found.items() if call in QP_CALLS)
        until(lambda: polls_probed(observed, path), "polls probed")
        assert 0 == job.build(PLACE, 23, opcode=SEND, segments=2, size=50)
        job.step("complete", 23, 0)
        assert 23 == job.step("pollex", 64, OPCODE | NUMBER)
        assert 2300 == observed.value(BYTES, job.pid, qp=qp)
        assert 23 == latencies(observed, job)


def test_jobs_from_before_the_exporter() -> None:
    """Functions are learnt from a queue pair when something is posted to it by a plain call, as receives are."""
    build_standins()
    with Job() as job:
        qp = str(job.create(PLACE, extended=2))
        assert 0 == job.connect(PLACE)
        with observe() as observed:
            attached(observed, job)
            assert 0 == job.build(PLACE, 5, opcode=SEND, size=10)
            assert {} == observed.values(BYTES, job.pid)
            job.step("receive", PLACE, 1, 0)
            until(lambda: probed(observed, "wr_complete"), "the calls probed")
            assert 0 == job.build(PLACE, 5, opcode=SEND, size=10)
            assert 50 == observed.value(BYTES, job.pid, qp=qp)


@pytest.mark.parametrize("program", ["live/verbs_job", "live/verbs_job_fixed"])
def test_programs_that_contain_rdma_core(observed: Observed, program: str) -> None:
    """The functions of such a program are learnt in the same way."""
    path = BUILD / program
    with Job(path, None) as job:
        until(lambda: job.pid in observed.collector.ledger, "the process known")
        qp = str(made(observed, job, path))
        assert 0 == job.build(PLACE, 23, opcode=SEND, segments=2, size=50)
        assert 2300 == observed.value(BYTES, job.pid, qp=qp)


def test_a_process_that_lies(observed: Observed) -> None:
    """With a false pointer for a call: what others post counts once, and its own posts count as that pointer's call."""
    with attached(observed, Job()) as honest, attached(observed, Job()) as liar:
        qp = str(made(observed, honest))
        liar.create(PLACE, extended=2)
        liar.step("mislead", PLACE, QP_CALLS.index("wr_send"), QP_CALLS.index("wr_rdma_write"))
        liar.step("mislead", PLACE, QP_CALLS.index("wr_rdma_write"), QP_CALLS.index("wr_rdma_read"))
        liar.step("mislead", PLACE, QP_CALLS.index("wr_rdma_read"), QP_CALLS.index("wr_local_inv"))
        liar.connect(PLACE)
        until(lambda: probed(observed, "wr_send#2"), "probed as two calls")
        assert 0 == honest.build(PLACE, 7, opcode=WRITE, size=10)
        assert 0 == liar.build(PLACE, 5, opcode=SEND, size=10)
        assert 70 == observed.value(BYTES, honest.pid, qp=qp, opcode="RDMA_WRITE")
        assert {} == observed.values(BYTES, honest.pid, opcode="SEND")
        assert 50 == observed.value(BYTES, liar.pid, opcode="SEND")


def test_pointers_to_no_function_are_refused(tmp_path: Path) -> None:
    """A pointer that does not lead to the beginning of a function is not probed but reported; certain ones count."""
    build_standins()
    with observe() as observed, attached(observed, Job()) as job:
        qp = str(job.create(PLACE, extended=2))
        job.step("mislead", PLACE, QP_CALLS.index("wr_send"), -1)
        assert 0 == job.connect(PLACE)
        until(lambda: probed(observed, "wr_complete"), "the others probed")
        assert not probed(observed, "wr_send")
        until(lambda: any("wr_send" in it for it in observed.collector.attaching.problems()), "the refusal known")
        [problem] = [it for it in observed.collector.problems() if it.startswith(f"{PROVIDER}:")]
        assert "not wr_send: a process calls offset" in problem
        assert 0 == job.build(PLACE, 7, opcode=WRITE, size=10)
        assert 70 == observed.value(BYTES, job.pid, qp=qp)


def test_a_process_that_has_ended_is_no_refusal(observed: Observed) -> None:
    """A process that ends before its calls are examined refuses nothing of the provider."""
    with attached(observed, Job()) as job:
        made(observed, job)
        attaching = observed.collector.attaching
        [addresses, *_] = attaching.pointers.objects(job.pid)
        [provider] = [it for it in attaching.providers.values() if it.library.path == str(PROVIDER)]
        before = [*attaching.problems()]
        ended = subprocess.Popen(["true"])
        ended.wait()
        provider.users[ended.pid] = None
        attaching.learn_extended(ended.pid, addresses)
        del provider.users[ended.pid]
        assert before == [*attaching.problems()]


def test_plain_queue_pairs_teach_nothing() -> None:
    """Most have anything where the pointers would be: no calls are probed, and nothing is reported."""
    build_standins()
    with observe() as observed, attached(observed, Job()) as job:
        for extended in (0, 1):
            job.create(PLACE + extended, extended=extended)
            assert 0 == job.connect(PLACE + extended)
        assert 0 == job.post(PLACE, 1)
        assert 1 == observed.value(CALLS, job.pid)
        assert not any(state.symbol in (*QP_CALLS, *CQ_CALLS) for state in observed.collector.probes.states())
        assert [] == [it for it in observed.collector.problems() if it.startswith(f"{PROVIDER}:")]
