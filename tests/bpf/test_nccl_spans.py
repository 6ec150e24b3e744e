"""Single NCCL calls are told one by one, with the numbers by which all ranks agree on which call it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.model import Span
from tests.bpf.nccl_node import BUILD, NcclNode, Rank, build_standins, eventually, observe, started

pytestmark = pytest.mark.needs_bpf


@pytest.fixture(scope="module")
def observed() -> Iterator[NcclNode]:
    build_standins()
    with observe(spans_per_second=100_000) as observed:
        yield observed


@pytest.fixture
def rank(observed: NcclNode) -> Iterator[Rank]:
    with started(observed, Rank()) as rank:
        yield rank


def spans(observed: NcclNode, pid: int, count: int) -> list[Span]:
    """The spans of a process, once there are so many."""
    eventually(lambda: len(observed.spans_of(pid)) >= count, f"{count} spans")
    time.sleep(0.1)  # more than that would have come by now
    assert count == len(observed.spans_of(pid))
    return observed.spans_of(pid)


def of(found: list[Span], name: str, *attributes: str) -> list[Any]:
    values = [tuple(span.attributes.get(f"nccl.{it}") for it in attributes) for span in found if span.name == name]
    return [it[0] if len(it) == 1 else it for it in values]


def test_what_a_span_says(observed: NcclNode, rank: Rank) -> None:
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
    """Calls in a group say how deep they are, and the outermost end is one span."""
    rank.run(
        "c = init(0, 2, b'a'); lib.ncclGroupStart(); reduce_all(c, 1); lib.ncclGroupStart(); reduce_all(c, 1)\n"
        "lib.ncclGroupEnd(); lib.ncclGroupEnd(); reduce_all(c, 1)"
    )
    found = spans(observed, rank.pid, 5)
    assert ["Init", "AllReduce", "AllReduce", "GroupEnd", "AllReduce"] == [it.name for it in found]
    assert [(1, 0), (2, 1), (0, 2)] == of(found, "AllReduce", "group.depth", "sequence")


CAPTURE = """
int cuStreamBeginCapture_v2(void *stream, int mode) { return mode; }
int cuStreamEndCapture(void *stream, void **graph) { *graph = stream; return 0; }
"""


def test_captured_calls(observed: NcclNode, rank: Rank, compile_library: Callable[[str, str], Path]) -> None:
    """A call made while its thread captures a graph says so, and is numbered apart: NCCL does not count it."""
    driver = compile_library("libcuda.so.1", CAPTURE)
    rank.run(f"driver = ctypes.CDLL({str(driver)!r})")
    rank.libraries.add(str(driver))
    started(observed, rank)
    rank.run(
        "c = init(0, 2, b'a'); reduce_all(c, 1); driver.cuStreamBeginCapture_v2(None, 0); reduce_all(c, 1)\n"
        "g = c_void_p(); driver.cuStreamEndCapture(None, byref(g)); reduce_all(c, 1)"
    )
    found = of(spans(observed, rank.pid, 4), "AllReduce", "captured", "sequence")
    assert [(False, 0), (True, 0), (False, 1)] == found


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


def test_spans_are_limited() -> None:
    """More than so many spans a second are not sent, and counted; the calls count all the same."""
    build_standins()
    with observe(spans_per_second=10) as observed, started(observed, Rank()) as rank:
        rank.run("c = init(0, 2, b'a')\nfor i in range(500): reduce_all(c, 1)")
        dropped = "accel_exporter_spans_dropped_total"
        eventually(lambda: observed.value(dropped, reason="nccl_rate_limit") >= 480, "spans dropped")
        time.sleep(0.1)
        assert len(observed.spans_of(rank.pid)) <= 21  # the calls may fall into two seconds
        assert 500 == observed.value("nccl_collective_calls_total", rank.pid, collective="AllReduce")


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
    """Where return probes could kill the process calls and communicators are counted, and no more is said."""
    build_standins()
    monkeypatch.setattr("exporter.bpf.trial.Trial.returns_allowed", lambda *_: (False, "this is a test"))
    with observe() as observed:
        rank = Rank()
        with rank:
            eventually(lambda: rank.pid in observed.nccl._ledger, "known")
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
            assert any("this is a test" in problem for problem in observed.nccl.problems())
            assert attached and [] == observed.spans
