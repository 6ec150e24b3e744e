"""Ranks in processes of their own share traces, and the late ones are distinguished from the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from exporter.model import Span
from exporter.nvml.gpus import Gpus
from exporter.nvml.snapshot import GpuProcess
from tests.bpf.fixtures import once
from tests.bpf.nccl_node import NcclNode, Rank, build_standins, observe, started
from tests.support import until
from tests.unit.resolve.gpus import WHOLE, gpu, snapshot

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="NCCL stragglers", on="stand-in")]

LAG, BEHIND = "nccl_rank_arrival_lag_seconds", "nccl_rank_calls_behind"


observed = once(partial(observe, spans_per_second=100_000))


@contextmanager
def ranks(observed: NcclNode, count: int, init: str = "c = init({0}, {1}, b'job')") -> Iterator[list[Rank]]:
    with ExitStack() as stack:
        made = [stack.enter_context(Rank()) for _ in range(count)]
        for number, rank in enumerate(made):
            started(observed, rank)
            rank.run(init.format(number, count))
        yield made


def calls(observed: NcclNode, rank: Rank, count: int, name: str = "AllReduce") -> list[Span]:
    def found() -> list[Span]:
        return [it for it in observed.spans_of(rank.pid) if it.name == name]

    until(lambda: len(found()) >= count, f"{count} {name}")
    return found()


def test_all_ranks_share_the_traces(observed: NcclNode) -> None:
    """Each of 50 collectives is one trace of all ranks with rank 0's span for a root."""
    with ranks(observed, 3, "c = init({0}, {1}, b'shared')") as job:
        for rank in job:
            rank.run("for i in range(50): reduce_all(c, 1); lib.ncclAlltoAll(None, None, size(1), 7, c, None)")
        for name in ("AllReduce", "AlltoAll", "Init"):
            by_rank = [calls(observed, rank, 1 if name == "Init" else 50, name) for rank in job]
            for same in zip(*by_rank, strict=True):
                assert (1, 3) == (len({it.trace_id for it in same}), len({it.span_id for it in same}))
                assert ["", same[0].span_id, same[0].span_id] == [it.parent_id for it in same]
        assert 50 == len({it.trace_id for it in by_rank[0] + calls(observed, job[0], 50)}) - 1


def test_the_gpu_of_a_rank() -> None:
    """Series and spans of a process name its GPU once NVML lists it, and the series stay when it has ended."""
    build_standins()
    gpus, listed = Gpus(), list[GpuProcess]()
    gpus.serve(lambda: snapshot(gpu(0), gpu(1, processes=tuple(listed))), lambda seconds: True)
    with observe(gpus) as observed:
        with ranks(observed, 1) as (rank,):
            rank.run("reduce_all(c, 1)")
            assert 1 == observed.value("nccl_collective_calls_total", rank.pid)
            calls(observed, rank, 1)
            listed.append(GpuProcess(rank.pid, "compute", 100))
            observed.samples()
            rank.run("reduce_all(c, 1)")
            assert 2 == observed.value("nccl_collective_calls_total", rank.pid, gpu="1", gpu_uuid=WHOLE.format(1))
            before, after = calls(observed, rank, 2)
            assert (None, "1") == (before.process.get("gpu"), after.process.get("gpu"))
        until(lambda: rank.pid not in observed.collector.ledger, "ended")
        assert 2 == observed.value("nccl_collective_calls_total", rank.pid, gpu="1")


def test_a_late_rank(observed: NcclNode) -> None:
    """Of each call the lag of every rank counts once; that of the rank which comes late is how late it came."""
    with ranks(observed, 2, "c = init({0}, {1}, b'late')") as (first, second):
        took = 0.0
        for _ in range(3):
            began = time.monotonic()
            first.run("reduce_all(c, 1)")
            time.sleep(0.2)
            second.run("reduce_all(c, 1)")
            took += time.monotonic() - began
        early, late = observed.value(LAG, first.pid), observed.value(LAG, second.pid)
        assert (3, 3) == (sum(early.counts), sum(late.counts))
        assert early.sum == 0 and 0.6 <= late.sum < took
        second.run("reduce_all(c, 1); reduce_all(c, 1)")
        assert (2, 0) == (observed.value(BEHIND, first.pid), observed.value(BEHIND, second.pid))


def test_a_rank_too_far_behind(observed: NcclNode) -> None:
    """The lag of a call that the first rank made more than 128 calls ago is not known, and not counted."""
    with ranks(observed, 2, "c = init({0}, {1}, b'lapped')") as job:
        for rank in job:
            rank.run("for i in range(300): reduce_all(c, 1); lib.ncclAllGather(None, None, size(1), 7, c, None)")
        lags = [observed.value(LAG, rank.pid) for rank in job]
        assert [600, 128] == [sum(lag.counts) for lag in lags]
        assert lags[0].sum == 0 < lags[1].sum


def test_kinds_that_nccl_does_not_count(observed: NcclNode) -> None:
    """Kinds of calls that NCCL does not number are compared by numbers of their own."""
    with ranks(observed, 2, "c = init({0}, {1}, b'others')") as job:
        job[0].run("reduce_all(c, 1)")
        for rank in job:
            rank.run("lib.ncclAlltoAll(None, None, size(1), 7, c, None)")
        assert [2, 1] == [sum(observed.value(LAG, rank.pid).counts) for rank in job]


def test_a_rank_alone_has_no_lag(observed: NcclNode) -> None:
    """One rank of a communicator on this node is compared with nobody."""
    with ranks(observed, 1, "c = init(3, 8, b'alone')") as (rank,):
        rank.run("reduce_all(c, 1)")
        assert 1 == observed.value("nccl_collective_calls_total", rank.pid)
        assert {} == observed.values(LAG, rank.pid) | observed.values(BEHIND, rank.pid)


def test_a_call_that_failed_does_not_count(observed: NcclNode) -> None:
    """A rank that calls again after a refused call goes on in step with the others."""
    with ranks(observed, 2, "c = init({0}, {1}, b'failed')") as (first, second):
        first.run("reduce_all(c, 1); lib.standin_fail(b'ncclAllReduce', 4); reduce_all(c, 1)")
        first.run("lib.standin_fail(None, 0); reduce_all(c, 1)")
        second.run("reduce_all(c, 1); reduce_all(c, 1)")
        a, b = calls(observed, first, 3), calls(observed, second, 2)
        assert [a[0].trace_id, a[2].trace_id] == [it.trace_id for it in b]
        assert a[1].trace_id == a[2].trace_id and a[1].span_id != a[2].span_id


def test_a_split(observed: NcclNode) -> None:
    """The communicators of a split have traces of their own, which their ranks share."""
    split = "s = c_void_p(); lib.ncclCommSplit(c, {0} % 2, {0} // 2, byref(s), None)"
    with ranks(observed, 4, "c = init({0}, {1}, b'split'); " + split) as job:
        for rank in job:
            rank.run("reduce_all(s, 1)")
        a, b, c, d = (calls(observed, rank, 1)[0] for rank in job)
        assert a.trace_id == c.trace_id != b.trace_id == d.trace_id
        assert len({it.trace_id for rank in job for it in calls(observed, rank, 1, "Split")}) == 2


def test_late_attach_goes_on_from_the_librarys_number() -> None:
    """One exporter sees a rank from its start and another a rank that was under way: the traces are the same."""
    build_standins()
    init = "c = init(1, 2, b'both'); reduce_all(c, 1)"
    with observe() as observed, ranks(observed, 1, init) as (rank,), observe() as late:
        started(late, rank)
        rank.run("reduce_all(c, 1); lib.ncclAlltoAll(None, None, size(1), 7, c, None)")
        (_, span), [again] = calls(observed, rank, 2), calls(late, rank, 1)
        assert (span.trace_id, span.span_id) == (again.trace_id, again.span_id)
        assert ["creation", "library"] == [it.attributes["nccl.sequence.origin"] for it in (span, again)]
        [unknown] = calls(late, rank, 1, "AlltoAll")
        assert "unknown_sequence" == unknown.attributes["nccl.trace_alone"]


def test_attached_in_an_open_group() -> None:
    """Calls of a group that began unseen have traces of their own; calls after the group are numbered rightly."""
    build_standins()
    with Rank() as rank:
        rank.run("c = init(0, 1, b'open'); reduce_all(c, 1); lib.ncclGroupStart(); reduce_all(c, 1)")
        with observe() as observed:
            started(observed, rank)
            rank.run("reduce_all(c, 1); lib.ncclGroupEnd(); reduce_all(c, 1)")
            rank.run("lib.ncclGroupStart(); reduce_all(c, 1); reduce_all(c, 1); lib.ncclGroupEnd()")
            found = calls(observed, rank, 4)
            assert [None, 3, 4, 5] == [numbered(it) for it in found]
            _, end = calls(observed, rank, 2, "GroupEnd")
            assert {((end.trace_id, end.span_id),)} == {it.links for it in found[2:]}


def test_attached_before_a_group() -> None:
    """The first call that is seen is in a group: so it is numbered rightly from there on."""
    build_standins()
    with Rank() as rank:
        rank.run("c = init(0, 1, b'grouped'); reduce_all(c, 1)")
        with observe() as observed:
            started(observed, rank)
            rank.run("lib.ncclGroupStart(); reduce_all(c, 1); reduce_all(c, 1); lib.ncclGroupEnd(); reduce_all(c, 1)")
            assert [1, 2, 3] == [numbered(it) for it in calls(observed, rank, 3)]


def test_calls_of_nothing() -> None:
    """NCCL discards calls without elements and does not count them: nor are they here, and what follows is in step."""
    build_standins()
    nothing = "reduce_all(c, 0); reduce_all(c, 1)"
    with observe() as observed, ranks(observed, 1, "c = init(0, 2, b'nothing'); " + nothing) as (rank,):
        with observe() as late:
            started(late, rank)
            rank.run(nothing)
            assert [None, 0, None, 1] == [numbered(it) for it in calls(observed, rank, 4)]
            assert [None, 1] == [numbered(it) for it in calls(late, rank, 2)]
        assert 4 == observed.value("nccl_collective_calls_total", rank.pid)


def numbered(span: Span) -> Any:
    """The sequence of a call, None if it is not believed."""
    return span.attributes["nccl.sequence"] if span.attributes["nccl.trace_shared"] else None
