"""Counts of posted requests never fall, and have what a provider accepted, however much of a chain it refuses."""

from __future__ import annotations

import signal

import pytest

from exporter.collectors.verbs import Verbs
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.bpf.verbs_node import PROVIDER, Job, attached, build_standins, observe, returned
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="RDMA work and completions", on="stand-in")]

BYTES, REQUESTS = "rdma_send_bytes_total", "rdma_send_work_requests_total"
OPCODES = {0: "RDMA_WRITE", 1: "RDMA_WRITE_WITH_IMM", 2: "SEND", 3: "SEND_WITH_IMM", 4: "RDMA_READ"}
WRITE, SEND = 0, 2
MOST = 64
"""Requests that are looked at in one call."""
PLACE = 8
EACH = 6


observed = once(observe)


def counted(observed: Observed, job: Job, metric: str = REQUESTS) -> dict[str, int]:
    """The counts of a job by opcode."""
    return {dict(labels)["opcode"]: value for labels, value in observed.values(metric, job.pid).items()}


def mix(job: Job, each: int, *opcodes: int) -> int:
    """Post a chain of so many requests of 1000 bytes of each opcode."""
    return job.step("mix", 0, each, *opcodes, *[-1] * (5 - len(opcodes)))


def posted_in_turn(each: int, accepted: int, *opcodes: int) -> dict[str, int]:
    """Return the number of each opcode among the first `accepted` requests of a chain with `each` of every opcode."""
    return {OPCODES[it]: min(each, max(0, accepted - each * place)) for place, it in enumerate(opcodes)}


@pytest.mark.parametrize("length", [64, 65, 128])
@pytest.mark.parametrize("accepted", [0, 1, 63, 64, 96, 100])
def test_long_chains(observed: Observed, length: int, accepted: int) -> None:
    """Of what is looked at, that counts which was accepted; requests beyond are no part of any count."""
    expected = min(length, accepted, MOST)
    with attached(observed, Job()) as job:
        job.step("refuse", accepted)
        for _ in range(2):
            job.step("refuse", accepted)
            assert (length > accepted) == bool(job.post(0, length, opcode=SEND, size=1000))
        assert {"SEND": 2 * expected} == counted(observed, job)
        assert {"SEND": 2000 * expected} == counted(observed, job, BYTES)


@pytest.mark.parametrize("accepted", [64, 96])
def test_a_debt_of_another_opcode(observed: Observed, accepted: int) -> None:
    """WRITEs refused behind what is looked at are taken from no later WRITEs."""
    with attached(observed, Job()) as job:
        for _ in range(3):
            job.step("refuse", accepted)
            assert 0 != mix(job, 64, SEND, WRITE)
        job.step("refuse", -1)
        for _ in range(100):
            assert 0 == job.post(0, 1, size=1000)
        assert {"SEND": 3 * 64, "RDMA_WRITE": 100} == counted(observed, job)
        assert {"SEND": 3 * 64_000, "RDMA_WRITE": 100_000} == counted(observed, job, BYTES)


@pytest.mark.parametrize("opcodes", [(SEND,), (WRITE, 1), (SEND, WRITE, 1, 3, 4)])
def test_mixed_chains(observed: Observed, opcodes: tuple[int, ...]) -> None:
    """Of any number of opcodes, refused at any request, each has what was accepted of it."""
    length = EACH * len(opcodes)
    expected = dict.fromkeys((OPCODES[it] for it in opcodes), 0)
    with attached(observed, Job()) as job:
        for accepted in (0, 1, EACH, length // 2 + 1, length - 1, length):
            job.step("refuse", accepted if accepted < length else -1)
            assert (accepted < length) == bool(mix(job, EACH, *opcodes))
            for opcode, more in posted_in_turn(EACH, accepted, *opcodes).items():
                expected[opcode] += more
            assert expected == counted(observed, job)
        assert {opcode: 1000 * count for opcode, count in expected.items()} == counted(observed, job, BYTES)


@pytest.mark.parametrize("step", ["post", "build"])
@pytest.mark.parametrize("refused", [True, False], ids=["refused", "accepted"])
def test_no_scrape_sees_what_may_be_refused(observed: Observed, step: str, refused: bool) -> None:
    """While a call lasts its requests are not among the counts; then they are, if they were accepted."""
    with attached(observed, Job()) as job:
        job.create(PLACE, extended=2)
        assert 0 == job.connect(PLACE)
        if step == "build":
            probed = {"symbol": "wr_complete", "library": str(PROVIDER)}
            until(lambda: observed.value("accel_exporter_probe_attached", **probed), "the calls probed")
        post = step, PLACE, 20, SEND, 1, 100, 1, 0
        assert 0 == job.step(*post)
        assert {"SEND": 20} == counted(observed, job)
        job.step("delay", 100_000_000)
        job.step("refuse", 0 if refused else -1)
        for turn in range(1, 3):
            before = counted(observed, job)
            job.begin(*post)
            until(lambda: observed.in_flight(job.pid, "post_flights"), "a call in flight")
            assert before == counted(observed, job)
            until(lambda: returned(observed, job), "the call returned")
            assert refused == bool(job.result())
            assert {"SEND": 20 if refused else 20 + 20 * turn} == counted(observed, job)
            assert {"SEND": 2000 if refused else 2000 + 2000 * turn} == counted(observed, job, BYTES)
        assert [] == observed.in_flight(job.pid, "post_flights")


def test_a_call_that_never_returns(observed: Observed) -> None:
    """Left by a jump, its requests count with the next call of its thread: they may have been posted."""
    with attached(observed, Job()) as job:
        job.begin("abandon", 0, 5)
        until(lambda: observed.in_flight(job.pid, "post_flights"), "a call in flight")
        job.process.send_signal(signal.SIGALRM)
        assert 0 == job.result()
        assert 0 == job.post(0, 2)
        assert {"RDMA_WRITE": 7} == counted(observed, job)


def test_threads_that_stay_in_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of one process take at most half of the table of calls in flight, and give it back when they end."""
    constants = Verbs.constants
    monkeypatch.setattr(Verbs, "constants", lambda self: constants(self) | {"post_flights_most": 16})
    build_standins()
    with observe() as observed, Job() as job:
        with attached(observed, Job()) as hostile:
            assert 0 == hostile.step("crowd", 0, 12)
            until(lambda: {"post_flights_lost": 4} == observed.lost, "twelve calls, eight of them in flight")
            assert 8 == len(observed.in_flight(hostile.pid, "post_flights"))
            until(lambda: not job.post(0, 1) and counted(observed, job), "counted")
            before, lost = counted(observed, job)["RDMA_WRITE"], observed.lost
            job.step("refuse", 3)
            assert 0 != job.post(0, 23)
            assert {"RDMA_WRITE": before + 3} == counted(observed, job), "its returns are seen"
            assert lost == observed.lost
        until(lambda: not observed.kernel("post_flights", hostile.pid), "the ends of the threads noticed")


@pytest.mark.parametrize(("length", "accepted"), [(100, 70), (300, 0), (300, 200), (300, 256), (300, 270)])
def test_receives(observed: Observed, length: int, accepted: int) -> None:
    """Receives that were refused do not wait in the queue, and those that were accepted do."""
    with attached(observed, Job()) as job:
        job.step("refuse", accepted)
        assert 0 != job.step("receive", 0, length, 0)
        [queue] = observed.kernel("receives", job.pid)
        assert min(accepted, 256) == queue.tail


def test_without_return_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a call count when the call begins, by opcode, including refused ones."""
    monkeypatch.setattr("exporter.bpf.trial.Trial.returns_allowed", lambda *_: (False, "this is a test"))
    build_standins()
    with observe() as observed, Job() as job:
        until(lambda: not job.post(0, 1) and counted(observed, job), "counted")
        before = counted(observed, job)["RDMA_WRITE"]
        job.step("refuse", 3)
        assert 0 != mix(job, EACH, SEND, WRITE, 1, 3, 4)
        expected = dict.fromkeys(OPCODES.values(), EACH) | {"RDMA_WRITE": before + EACH}
        assert expected == counted(observed, job)
        assert [] == observed.in_flight(job.pid, "post_flights")
