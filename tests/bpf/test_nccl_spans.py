"""Spans of single NCCL calls, with the numbers by which all ranks agree on which call each is."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exporter.model import Span
from exporter.nccl.functions import FUNCTIONS
from tests.bpf.fixtures import each, once
from tests.bpf.nccl_node import BUILD, NcclNode, Rank, build_standins, observe, started
from tests.support import until

pytestmark = pytest.mark.needs_bpf


observed = once(partial(observe, spans_per_second=100_000, message_spans=True))
rank = each(Rank)


def spans(observed: NcclNode, pid: int, count: int) -> list[Span]:
    """The spans of a process, once there are so many."""
    until(lambda: len(observed.spans_of(pid)) >= count, f"{count} spans")
    time.sleep(0.1)  # more than that would have come by now
    assert count == len(observed.spans_of(pid))
    return observed.spans_of(pid)


def of(found: list[Span], name: str, *attributes: str) -> list[Any]:
    values = [tuple(span.attributes.get(f"nccl.{it}") for it in attributes) for span in found if span.name == name]
    return [it[0] if len(it) == 1 else it for it in values]


def test_what_a_span_has(observed: NcclNode, rank: Rank) -> None:
    """A span has the communicator, rank, sequence, bytes, type and stream, and lies inside the call."""
    begin = time.time_ns()
    rank.run("c = init(3, 8, b'a'); reduce_all(c, 1000); lib.ncclBroadcast(None, None, size(5), 9, 2, c, None)")
    end = time.time_ns()
    made, reduced, sent = spans(observed, rank.pid, 3)
    assert ("Init", "AllReduce", "Broadcast") == (made.name, reduced.name, sent.name)
    expected = {"api": "ncclAllReduce", "rank": 3, "nranks": 8, "sequence": 0, "bytes": 4000, "type": "float32"}
    expected |= {"stream": "0x51", "collective": "AllReduce", "captured": False, "group.depth": 0}
    expected |= {"sequence.origin": "creation", "trace_shared": True}
    found = {key.removeprefix("nccl."): value for key, value in reduced.attributes.items() if key.startswith("nccl.")}
    assert expected == {key: value for key, value in found.items() if key != "comm"}
    assert made.attributes["nccl.comm"] == reduced.attributes["nccl.comm"]
    assert (2, "bfloat16", 10) == tuple(sent.attributes[f"nccl.{it}"] for it in ("peer", "type", "bytes"))
    assert begin - 1_000_000 <= reduced.start_ns <= reduced.end_ns <= end + 1_000_000


def test_spans_wake_their_reader_seldom(observed: NcclNode, rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """To wake the reader takes an interrupt, which a job that calls from time to time would pay for at each call."""
    events, woken = observed.collector._events, list[int]()
    poll = events.poll
    monkeypatch.setattr(events, "poll", lambda timeout: (woken.append(timeout), poll(timeout))[1])
    begun = time.monotonic()
    rank.run("import time\nc = init(0, 2, b'a')\nfor _ in range(200): reduce_all(c, 1); time.sleep(0.0025)")
    assert 0 < len(woken) < 2 * (time.monotonic() - begun) / observed.collector.look
    spans(observed, rank.pid, 201)


def test_sequences(observed: NcclNode, rank: Rank) -> None:
    """Each collective of each communicator is numbered from 0, and Send and Recv by the other rank."""
    rank.run(
        "a, b = init(0, 4, b'a'), init(0, 4, b'b')\n"
        "for i in range(3): reduce_all(a, 1); reduce_all(b, 2)\n"
        "lib.ncclAllGather(None, None, size(1), 7, a, None); lib.ncclAlltoAll(None, None, size(1), 7, a, None)\n"
        "for peer in (1, 2, 1, 1): lib.ncclSend(None, size(1), 7, peer, a, None)\n"
        "lib.ncclRecv(None, size(1), 7, 1, a, None)"
    )
    found = spans(observed, rank.pid, 15)
    assert [0, 0, 1, 1, 2, 2] == of(found, "AllReduce", "sequence")
    assert [0, 0] == of(found, "AllGather", "sequence") + of(found, "AlltoAll", "sequence")
    assert [(1, 0), (2, 0), (1, 1), (1, 2)] == of(found, "Send", "peer", "sequence")
    assert [(1, 0)] == of(found, "Recv", "peer", "sequence")
    assert 3 == len(observed.kernel("peers", rank.pid))
    rank.run("lib.ncclCommDestroy(a)")
    assert [] == observed.kernel("peers", rank.pid)


def test_groups(observed: NcclNode, rank: Rank) -> None:
    """Calls in a group have their depth, and the outermost end is one span."""
    rank.run(
        "c = init(0, 2, b'a'); lib.ncclGroupStart(); reduce_all(c, 1); lib.ncclGroupStart(); reduce_all(c, 1)\n"
        "lib.ncclGroupEnd(); lib.ncclGroupEnd(); reduce_all(c, 1)"
    )
    found = spans(observed, rank.pid, 5)
    assert ["Init", "AllReduce", "AllReduce", "GroupEnd", "AllReduce"] == [it.name for it in found]
    assert [(1, 0), (2, 1), (0, 2)] == of(found, "AllReduce", "group.depth", "sequence")


BEGINNINGS = [f"cuStreamBeginCapture{it}{of}" for it in ("", "_v2", "ToGraph") for of in ("", "_ptsz")]
ENDS = ["cuStreamEndCapture", "cuStreamEndCapture_ptsz"]
CAPTURE = "\n".join(
    [f"int {it}(void *stream, int result) {{ return result; }}" for it in BEGINNINGS]
    + [f"int {it}(void *stream, int *result) {{ return *result; }}" for it in ENDS]
)


@pytest.fixture(scope="module")
def driver(compile_library: Callable[[str, str], Path]) -> Path:
    """A driver of which captures begin and end, with any result."""
    return compile_library("libcuda.so.1", CAPTURE)


@pytest.fixture
def capturing(observed: NcclNode, rank: Rank, driver: Path) -> Rank:
    """A rank with that driver."""
    rank.run(
        f"driver = ctypes.CDLL({str(driver)!r})\n"
        "def begin(result=0): driver.cuStreamBeginCapture_v2(None, result)\n"
        "def end(result=0): driver.cuStreamEndCapture(None, byref(c_int(result)))"
    )
    rank.libraries.add(str(driver))
    return started(observed, rank)


def captured(observed: NcclNode, rank: Rank, lines: str, count: int) -> list[tuple[bool, int]]:
    """Return whether each of `count` calls on a new communicator was captured, and its number."""
    rank.run("c = init(0, 2, b'a')\n" + lines)
    return of(spans(observed, rank.pid, count + 1), "AllReduce", "captured", "sequence")


def test_captured_calls(observed: NcclNode, capturing: Rank) -> None:
    """A call made while its thread captures a graph is marked, and numbered apart: NCCL does not count it."""
    lines = "reduce_all(c, 1); begin(); reduce_all(c, 1); end(); reduce_all(c, 1)"
    assert [(False, 0), (True, 0), (False, 1)] == captured(observed, capturing, lines, 3)
    assert {} == observed.values("nccl_errors_total", capturing.pid)


def test_every_function_of_captures(observed: NcclNode, capturing: Rank) -> None:
    """All functions that begin and end captures do so, also those of the per-thread stream."""
    assert {it.name for it in FUNCTIONS if it.effect.startswith("capture")} == {*BEGINNINGS, *ENDS}
    pairs = [(begin, end) for begin in BEGINNINGS for end in ENDS]
    lines = "".join(
        f"driver.{begin}(None, 0); reduce_all(c, 1); driver.{end}(None, byref(c_int())); reduce_all(c, 1)\n"
        for begin, end in pairs
    )
    marks = [mark for mark, _ in captured(observed, capturing, lines, 2 * len(pairs))]
    assert [True, False] * len(pairs) == marks


def test_a_capture_that_does_not_begin(observed: NcclNode, capturing: Rank) -> None:
    """Calls are not captured after a capture that the driver refused, which is no error of NCCL."""
    lines = "begin(900); reduce_all(c, 1); begin(); begin(900); end(); reduce_all(c, 1)"
    assert [(False, 0), (False, 1)] == captured(observed, capturing, lines, 2)
    assert {} == observed.values("nccl_errors_total", capturing.pid)


def test_two_captures_of_a_thread(observed: NcclNode, capturing: Rank) -> None:
    """The end of one is not that of the other; an end on the wrong thread is none, and one of a broken capture is."""
    lines = "begin(); begin(); end(); reduce_all(c, 1); end(908); reduce_all(c, 1); end(901); reduce_all(c, 1)"
    assert [(True, 0), (True, 1), (False, 0)] == captured(observed, capturing, lines, 3)


def test_failed_and_ended(observed: NcclNode, rank: Rank) -> None:
    """A failed call has its error, one in progress none, and who was aborted is known."""
    rank.run(
        "c = init(1, 2, b'a'); lib.standin_fail(b'ncclAllReduce', 3); reduce_all(c, 1); lib.standin_fail(None, 0)\n"
        "lib.ncclCommAbort(c); k = Config(24, 0, 0, 0); lib.ncclCommInitRankConfig(byref(c), 4, Id(b'n'), 1, byref(k))"
    )
    found = spans(observed, rank.pid, 4)
    assert ["", "ncclInternalError", "", ""] == [it.error for it in found]
    assert ("Abort", 1, 2) == (found[2].name, *(found[2].attributes[f"nccl.{it}"] for it in ("rank", "nranks")))
    assert 7 == found[3].attributes["nccl.code"]


DROPPED, UNSAMPLED = "accel_exporter_spans_dropped_total", "nccl_spans_unsampled_total"


def settled(observed: NcclNode, calls: int, *of: Rank) -> None:
    """Waits until each of so many calls has its span or is accounted for."""

    def seen() -> int:
        left_out = observed.value(DROPPED, reason="nccl_rate_limit") + observed.value(UNSAMPLED)
        return int(left_out) + sum(len(observed.spans_of(rank.pid)) for rank in of)

    until(lambda: seen() == calls, f"{calls} calls accounted for")


def test_spans_are_limited() -> None:
    """More than so many spans a second are not sent, and counted; the calls count all the same."""
    build_standins()
    with observe(spans_per_second=10) as observed, started(observed, Rank()) as rank:
        begun = time.monotonic()
        rank.run("c = init(0, 2, b'a')\nfor i in range(500): reduce_all(c, 1)")
        seconds = int(time.monotonic() - begun) + 2  # at most, into which the calls may fall

        settled(observed, 501, rank)
        assert len(observed.spans_of(rank.pid)) <= 10 * seconds + 1
        assert 500 == observed.value("nccl_collective_calls_total", rank.pid, collective="AllReduce")


def test_ranks_sample_the_same_calls() -> None:
    """Ranks that make more calls than there may be spans keep the same ones, though at other times of a second."""
    build_standins()
    limit, rounds, each = 100, 5, 120
    with observe(spans_per_second=limit) as observed, started(observed, Rank()) as a, started(observed, Rank()) as b:
        for number, rank in enumerate((a, b)):
            rank.run(f"c = init({number}, 2, b'sampled')")
        made = whole = 0
        while whole < rounds:  # one rank after the other, in one second; those without calls change nothing
            time.sleep(1 - time.monotonic() % 1)
            second = int(time.monotonic())
            for rank in (a, b):
                rank.run(f"for i in range({each}): reduce_all(c, 1)")
            made += 1
            # On a busy machine the ranks may have had different seconds, which changes what is sampled in the next one.
            whole = whole + 1 if second == int(time.monotonic()) else 0
        settled(observed, 2 + 2 * made * each, a, b)
        least = (made - rounds + 2) * each
        kept = [
            {it.trace_id for it in observed.spans_of(rank.pid) if it.attributes.get("nccl.sequence", 0) >= least}
            for rank in (a, b)
        ]
        assert len(kept[0] & kept[1]) > 0.9 * len(kept[0] | kept[1]) > 10
        assert sum(map(len, kept)) <= limit * (rounds - 1)
        assert observed.value(UNSAMPLED) > 2 * each


def test_slow_and_failed_calls_are_kept() -> None:
    """Of what is not sampled those that failed or were slow have a span, which shows that it is alone."""
    build_standins()
    with observe(spans_per_second=60, slow_call_seconds=0.005) as observed, started(observed, Rank()) as rank:
        rank.run("c = init(0, 2, b'a')")
        for _ in range(2):
            time.sleep(1 - time.clock_gettime(time.CLOCK_MONOTONIC) % 1)
            rank.run("for i in range(40000): reduce_all(c, 1)")
        before = len(observed.spans_of(rank.pid))
        time.sleep(1 - time.clock_gettime(time.CLOCK_MONOTONIC) % 1)  # the second before may have had its spans
        rank.run(
            "for i in range(5): lib.standin_stall(c_uint64(6 * 10**6)); reduce_all(c, 1)\n"
            "lib.standin_fail(b'ncclAllReduce', 3)\nfor i in range(5): reduce_all(c, 1)"
        )

        def found() -> list[Span]:
            return [it for it in observed.spans_of(rank.pid)[before:] if it.slow or it.error]

        until(lambda: len(found()) >= 10, "slow and failed calls")
        assert any(it.attributes.get("accel_exporter.trace.partial") for it in found())


def test_nobody_takes_spans() -> None:
    """Without anybody who takes spans none are made, and none are counted as dropped."""
    build_standins()
    with observe(wants_spans=False, spans_per_second=10) as observed, started(observed, Rank()) as rank:
        rank.run("c = init(0, 2, b'a')\nfor i in range(500): reduce_all(c, 1)")
        assert 500 == sum(observed.value("nccl_enqueue_seconds", rank.pid, collective="AllReduce").counts)
        assert {} == observed.values(DROPPED) | observed.values(UNSAMPLED)
        assert 0 == observed.collector.object.globals()["spans_limited"]
        assert [] == observed.spans


def test_a_delayed_rank(observed: NcclNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks that agree on communicator and sequence, the delayed one's call is the longer."""
    monkeypatch.setenv("NCCL_STANDIN_DELAY", "1:50")
    with started(observed, Rank()) as first, started(observed, Rank()) as second:
        for number, rank in enumerate((first, second)):
            rank.run(f"c = init({number}, 2, b'job'); reduce_all(c, 1); reduce_all(c, 1)")
        a, b = spans(observed, first.pid, 3), spans(observed, second.pid, 3)
        assert of(a, "AllReduce", "comm", "sequence") == of(b, "AllReduce", "comm", "sequence")
        assert [0, 1] == of(a, "AllReduce", "rank")[:1] + of(b, "AllReduce", "rank")[:1]
        assert all(it.end_ns - it.start_ns >= 50_000_000 for it in b if it.name == "AllReduce")


def test_without_return_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If return probes could kill the process, calls and communicators are counted, and nothing else is measured."""
    build_standins()
    monkeypatch.setattr("exporter.bpf.trial.Trial.returns_allowed", lambda *_: (False, "this is a test"))
    with observe() as observed:
        rank = Rank()
        with rank:
            until(lambda: rank.pid in observed.collector.ledger, "known")
            rank.run(
                "c = init(0, 2, b'a')\nfor i in range(23): reduce_all(c, 1)\n"
                "lib.ncclBcast(None, size(1), 7, 0, c, None)"
            )
            calls = observed.values("nccl_collective_calls_total", rank.pid)
            assert {"AllReduce": 23, "Broadcast": 1} == {dict(labels)["collective"]: it for labels, it in calls.items()}
            assert 1 == len(observed.values("nccl_communicator_info", rank.pid))
            for metric in ("nccl_enqueue_seconds", "nccl_calls_in_flight", "nccl_errors_total"):
                assert {} == observed.values(metric, rank.pid)
            attached = observed.values("accel_exporter_probe_attached", library=str(BUILD / "libnccl.so.2"))
            assert {0} == set(observed.values("accel_exporter_probe_attached", symbol="ncclAllReduce").values())
            assert any("this is a test" in problem for problem in observed.collector.problems())
            assert attached and [] == observed.spans
