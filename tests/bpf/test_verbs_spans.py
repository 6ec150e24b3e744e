"""Work requests that took long or failed are spans."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from exporter.model import Span
from exporter.verbs.spans import trace_id
from tests.bpf.observed import Observed
from tests.bpf.verbs_node import RC, UD, Job, attached, build_standins, observe, returned
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="RDMA spans", on="stand-in")]

WRITE, WRITE_WITH_IMM, SEND = 0, 1, 2
FLUSHED, RETRIES_EXCEEDED = 5, 12
GIDS = {number: ":".join(["fe80", *["0000"] * 6, f"{number:04x}"]) for number in (1, 2)}
PAUSE = 20_000
"""Microseconds, above the threshold of `two_ends`."""


@contextmanager
def two_ends(span_seconds: float = 0.01, **settings: float) -> Iterator[tuple[Observed, Job, Job]]:
    """A sender with GID fe80::1 and a receiver with fe80::2, as two hosts see them: each by its own queue pair."""
    build_standins()
    with observe(span_seconds=span_seconds, **settings) as observed, Job() as sender, Job() as receiver:
        observed.collector.peers.gid = lambda device, port, index: GIDS.get(index, "")  # type: ignore[method-assign]
        attached(observed, sender).step("number", 1000)
        attached(observed, receiver).step("number", 2000)
        yield observed, sender, receiver


def join(sender: Job, receiver: Job, kind: int = RC, extended: int = 0) -> None:
    """Makes and connects both queue pairs, 1000 and 2000."""
    assert (1000, 2000) == (sender.create(kind=kind, extended=extended), receiver.create(kind=kind))
    assert 0 == sender.connect(peer=2000, gid=2, own=1, sends_from=7, receives_from=8)
    assert 0 == receiver.connect(peer=1000, gid=1, own=2, sends_from=8, receives_from=7)


def transfer(sender: Job, receiver: Job, opcodes: Sequence[int], same: int = 1) -> None:
    """Sends one request of each opcode, slowly; what the receiver gets a message of arrives there."""
    for opcode in opcodes:
        assert 0 == sender.post(8, 1, opcode=opcode, same=same)
        sender.step("sleep", PAUSE)
        sender.step("complete", 1, 0)
        assert 1 == sender.step("poll", 1)
        if opcode != WRITE:
            receiver.step("arrive", 8, 1)
            assert 1 == receiver.step("poll", 1)


def spans(observed: Observed, *jobs: Job) -> list[Span]:
    """The spans of these jobs, by when they ended: others on this machine have spans, too."""
    pids = {str(job.pid) for job in jobs}
    return sorted((it for it in observed.spans if it.process["pid"] in pids), key=lambda span: span.end_ns)


def exactly(observed: Observed, job: Job, count: int) -> list[Span]:
    """Return the spans of a job: so many, and no more."""
    until(lambda: len(spans(observed, job)) >= count, f"{count} spans")
    found = spans(observed, job)
    assert count == len(found)
    return found


def test_one_trace_at_both_ends() -> None:
    """The n-th message sent and the n-th received are of one trace, with both ends; a WRITE is none."""
    with two_ends() as (observed, sender, receiver):
        join(sender, receiver)
        assert 0 == receiver.step("receive", 8, 5, -1)
        transfer(sender, receiver, (SEND, WRITE, WRITE_WITH_IMM, SEND))
        sent, got = exactly(observed, sender, 4), exactly(observed, receiver, 3)
    messages = [it for it in sent if it.name != "rdma RDMA_WRITE"]
    here, there = (GIDS[1], 1000), (GIDS[2], 2000)
    assert [trace_id(here, there, 7, number) for number in range(3)] == [it.trace_id for it in got]
    assert [it.trace_id for it in messages] == [it.trace_id for it in got]
    assert [True, False, True, True] == [it.attributes["rdma.trace_shared"] for it in sent]
    assert ["rdma RECV"] * 3 == [it.name for it in got]
    assert [(n, 2000, 1000, GIDS[2], GIDS[1], 4096) for n in range(3)] == [
        tuple(it.attributes[f"rdma.{name}"] for name in ("message", "qp", "peer_qp", "gid", "peer_gid", "bytes"))
        for it in got
    ]


def test_extended_calls_share_the_trace() -> None:
    """Messages posted by ibv_wr_start count as others do, if its functions were known when the queue pair was made."""
    with two_ends() as (observed, sender, receiver):
        sender.create(9, extended=2)
        sender.connect(9)
        until(lambda: observed.collector.object.maps["extended_since"].get(0), "the calls known")
        sender.step("number", 1000)
        join(sender, receiver, extended=2)
        assert 0 == receiver.step("receive", 8, 3, -1)
        for _ in range(3):
            assert 0 == sender.build(8, 1, opcode=SEND)
            sender.step("sleep", PAUSE)
            sender.step("complete", 1, 0)
            receiver.step("arrive", 8, 1)
            assert (1, 1) == (sender.step("poll", 1), receiver.step("poll", 1))
        sent, got = exactly(observed, sender, 3), exactly(observed, receiver, 3)
    expected = [trace_id((GIDS[1], 1000), (GIDS[2], 2000), 7, number) for number in range(3)]
    assert expected == [it.trace_id for it in sent]
    assert expected == [it.trace_id for it in got]


def test_before_they_are_known_messages_have_no_number() -> None:
    """Messages of a queue pair made earlier may have been missed: their spans have traces of their own."""
    with two_ends() as (observed, sender, receiver):
        join(sender, receiver, extended=2)
        until(lambda: observed.collector.object.maps["extended_since"].get(0), "the calls known")
        assert 0 == sender.build(8, 1, opcode=SEND)
        sender.step("sleep", PAUSE)
        sender.step("complete", 1, 0)
        assert 1 == sender.step("poll", 1)
        [span] = exactly(observed, sender, 1)
    assert ("rdma SEND", False) == (span.name, span.attributes["rdma.trace_shared"])


def test_a_refused_receive_takes_no_number() -> None:
    """Of a chain of 4 receives of which 2 are taken, the next one to be posted is the third message's."""
    with two_ends() as (observed, sender, receiver):
        join(sender, receiver)
        receiver.step("refuse", 2)
        assert 0 != receiver.step("receive", 8, 4, -1)
        receiver.step("refuse", -1)
        receiver.step("receive", 8, 1, -1)
        transfer(sender, receiver, (SEND, SEND, SEND))
        traces = [[it.trace_id for it in exactly(observed, job, 3)] for job in (sender, receiver)]
    assert traces[0] == traces[1]


def test_windows_find_the_number() -> None:
    """A message in a later window has its number too, where only one request that may be outstanding has its wr_id."""
    with two_ends(poll_window_seconds=0.2, poll_interval_seconds=0.4) as (observed, sender, receiver):
        join(sender, receiver)

        def shared() -> set[object]:
            names: dict[str, set[str]] = {}
            for it in spans(observed, sender, receiver):
                if it.attributes.get("rdma.message", 0) >= 400:
                    names.setdefault(it.trace_id, set()).add(it.name)
            return {trace for trace, both in names.items() if both == {"rdma SEND", "rdma RECV"}}

        for first in range(0, 4000, 40):
            assert 0 == receiver.step("receive", 8, 40, first)
            transfer(sender, receiver, (SEND, SEND), same=0)
            sender.post(8, 38, opcode=SEND)
            sender.step("complete", 38, 0)
            receiver.step("arrive", 8, 38)
            assert (38, 38) == (sender.step("poll", 40), receiver.step("poll", 40))
            if shared():
                break
        assert shared()
        assert {True} == {it.attributes["rdma.trace_shared"] for it in spans(observed, sender, receiver)}


def test_a_chain_that_is_too_long_ends_the_numbers() -> None:
    """Of 257 receives in one call 256 are looked at: those that follow have no number."""
    with two_ends(span_seconds=0.5) as (observed, sender, receiver):
        join(sender, receiver)
        assert 0 == receiver.step("receive", 8, 257, 0)
        receiver.step("arrive", 8, 257)
        assert 257 == receiver.step("poll", 256) + receiver.step("poll", 256)
        time.sleep(0.05)
        begun = time.time_ns() - 25_000_000  # one of those before may have been slow, too, on a busy machine
        receiver.step("receive", 8, 1, 1000)
        receiver.step("sleep", 600_000)
        receiver.step("arrive", 8, 1)
        assert 1 == receiver.step("poll", 1)
        [span] = until(lambda: [it for it in spans(observed, receiver) if it.start_ns > begun], "its span")
        assert 1 == observed.value("rdma_calls_unread_total", what="requests")
    assert ("rdma RECV", False) == (span.name, span.attributes["rdma.trace_shared"])


@pytest.mark.parametrize("what", ["reset", "before", "datagrams"])
def test_no_shared_trace_without_a_number(what: str) -> None:
    """After a reset, on a queue pair from before, and of UD, a trace is the span's own."""
    with two_ends() as (observed, sender, receiver):
        slot = 0 if what == "before" else 8
        join(sender, receiver, UD if what == "datagrams" else RC)
        if what == "reset":
            assert 0 == receiver.step("reset", 8) == receiver.connect(peer=1000, gid=1, own=2, receives_from=7)
        assert 0 == receiver.step("receive", slot, 2, 0)
        receiver.step("sleep", PAUSE)
        receiver.step("arrive", slot, 1)
        assert 1 == receiver.step("poll", 1)
        [span] = exactly(observed, receiver, 1)
    assert ("rdma RECV", False) == (span.name, span.attributes["rdma.trace_shared"])


def test_threads_that_post_at_once_end_the_numbers() -> None:
    """The order of two concurrent posts is unknown: neither has a number, nor do later ones on the queue pair."""
    with two_ends() as (observed, sender, receiver):
        join(sender, receiver)
        receiver.step("receive", 8, 2, -1)
        transfer(sender, receiver, (SEND,))
        sender.begin("together")
        until(lambda: len(observed.in_flight(sender.pid, "post_flights")) == 2, "both in flight")
        time.sleep(PAUSE / 1e6)
        until(lambda: returned(observed, sender), "both returned")
        assert 0 == sender.result()
        sender.step("complete", 2, 0)
        assert 2 == sender.step("poll", 2)
        transfer(sender, receiver, (SEND,))
        sent = exactly(observed, sender, 4)
    assert [True, False, False, False] == [it.attributes["rdma.trace_shared"] for it in sent]


def test_slow_and_failed_requests() -> None:
    """A request above the threshold is a span with bytes and time, a failed one with its status; others are none."""
    build_standins()
    with observe(span_seconds=0.5) as observed, attached(observed, Job()) as job:
        begun = time.monotonic()
        job.post(0, 1, opcode=SEND, size=700)
        job.step("complete", 1, 0)
        assert 1 == job.step("poll", 1)
        quick = time.monotonic() - begun < 0.5  # else, on a busy machine, it may be one
        job.post(0, 1, opcode=SEND, size=4096)
        job.step("sleep", 600_000)
        job.step("complete", 1, 0)
        assert 1 == job.step("poll", 1)
        job.post(1, 2)
        job.step("complete", 1, RETRIES_EXCEEDED)
        job.step("complete", 1, FLUSHED)
        assert 2 == job.step("poll", 2)

        def found() -> list[Span]:
            return [it for it in spans(observed, job) if quick or it.attributes.get("rdma.bytes") != 700]

        until(lambda: len(found()) >= 2, "2 spans")
        slow, failed = found()
    assert ("rdma SEND", "", 4096, 100) == (
        slow.name,
        slow.error,
        slow.attributes["rdma.bytes"],
        slow.attributes["rdma.qp"],
    )
    assert 600_000_000 < slow.end_ns - slow.start_ns < 60_000_000_000
    assert ("RETRY_EXC_ERR", 101, str(job.pid)) == (failed.error, failed.attributes["rdma.qp"], failed.process["pid"])
    assert [False, False] == [it.attributes["rdma.trace_shared"] for it in (slow, failed)]
