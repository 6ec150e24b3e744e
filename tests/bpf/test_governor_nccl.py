"""Collectives without pause: what their probes take is bounded, and nothing that is shown is wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exporter.bpf import process_links
from exporter.governor import files
from exporter.governor.governor import Governor
from tests.bpf.nccl_node import NcclNode, Rank, observe
from tests.bpf.working_job import Api, Job, background
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="cost of probes", on="stand-in"),
]

BOUND, COUNT = 0.01, 1000
BYTES = 4 * COUNT
CREATION, LIBRARY = 2, 1
REDUCE = f"ncclAllReduce(0, 0, {COUNT}, 7, 0, comm, 0);"
RCCL = "rccl/librccl.so.1"
GROUP = f"ncclGroupStart(); {REDUCE} ncclGroupEnd();"


def api(call: str, library: str) -> Api:
    """A rank of two, by the variable RANK."""
    return Api(
        library,
        "struct id { char bytes[128]; };"
        "char *getenv(const char *); int atoi(const char *);"
        "int ncclCommInitRank(void **, int, struct id, int), ncclGroupStart(void), ncclGroupEnd(void);"
        "int ncclAllReduce(const void *, void *, unsigned long, int, int, void *, void *);"
        "int ncclAllToAll(const void *, void *, unsigned long, int, void *, void *);",
        'void *comm; struct id id = {"governor"}; ncclCommInitRank(&comm, 2, id, atoi(getenv("RANK")));',
        call,
        f"ncclAllToAll(0, 0, {COUNT}, 7, comm, 0);" if library == RCCL else "",
        at_once=10,
    )


@contextmanager
def governed(
    call: str, folder: Path, monkeypatch: pytest.MonkeyPatch, library: str = "libnccl.so.2"
) -> Iterator[tuple[NcclNode, Job, Job]]:
    """The collector under the bound, with prices, and the ranks of a communicator that begin to use one file then."""

    def started(rank: int) -> Job:
        monkeypatch.setenv("RANK", str(rank))
        return Job(api(call, library), folder)

    def attached(running: Job) -> Job:
        until(lambda: observed.attached(running.process.pid, {str(running.library)}), "attached")
        return running

    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with started(1) as first, observe(governor=Governor(BOUND)) as observed:
        attached(first)
        until(lambda: observed.value("accel_exporter_overhead_seconds_total") is not None, "prices")
        first.end()
        time.sleep(1 / os.sysconf("SC_CLK_TCK"))  # a process that starts from now on has a later tick of the clock
        with started(0) as busy, started(1) as polite:
            yield observed, attached(busy), attached(polite)


def level(observed: NcclNode, running: Job) -> Any:
    name = "accel_exporter_probe_throttle_level"
    return observed.value(name, symbol="ncclAllReduce", library=str(running.library))


def throttle(observed: NcclNode, running: Job) -> None:
    """Call until calls are left out for some cycles."""
    for _ in range(60):
        if level(observed, running) == 1:
            break
        running.work(0.5)
    else:  # not asserted after the loop: without work it falls again
        pytest.fail("calls are not left out")
    running.work(3)


def calm(observed: NcclNode, running: Job) -> None:
    until(lambda: level(observed, running) == 0, "all calls are probed again")


def counted(observed: NcclNode, running: Job) -> tuple[Any, ...]:
    """Calls, bytes, calls that returned, groups and ends of groups that returned; None for what is absent."""
    pid = running.process.pid
    enqueued = [observed.value("nccl_enqueue_seconds", pid, collective=it) for it in ("AllReduce", "GroupEnd")]
    return (
        observed.value("nccl_collective_calls_total", pid, collective="AllReduce"),
        observed.value("nccl_collective_bytes_total", pid, collective="AllReduce"),
        enqueued[0] and sum(enqueued[0].counts),
        observed.value("nccl_groups_total", pid),
        enqueued[1] and sum(enqueued[1].counts),
    )


def known(observed: NcclNode, running: Job) -> tuple[Any, ...]:
    """nccl_seen_from_start of a process, its calls in flight, and the calls that it is behind."""
    names = ("nccl_seen_from_start", "nccl_calls_in_flight", "nccl_rank_calls_behind")
    return tuple(observed.value(name, running.process.pid) for name in names)


def compared(observed: NcclNode, running: Job) -> int:
    """The number of calls that were compared with those of other ranks."""
    lag = observed.value("nccl_rank_arrival_lag_seconds", running.process.pid)
    return sum(lag.counts) if lag else 0


def away(observed: NcclNode, *job: Job) -> list[int]:
    """For each meeting of these ranks the number of those of which calls are missing."""
    hashes = {it.who.hash for rank in job for it in observed.kernel("communicators", rank.process.pid)}
    return [value.away for key, value in observed.collector.object.maps["meetings"].items() if key.hash in hashes]


@pytest.mark.parametrize("call", [REDUCE, GROUP], ids=["collectives", "groups"])
def test_a_job_that_only_communicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Most of its calls are not probed: times, errors, calls in flight and numbers are absent. Another rank of its
    communicator, which uses the same file and calls little, has each call counted and timed, and is not compared.
    When the first one calms down all its calls are probed again, and their numbers are those of the library."""
    if not process_links.supported():
        pytest.skip("this kernel cannot attach to one process")
    grouped = call == GROUP
    with governed(call, tmp_path, monkeypatch) as (observed, busy, polite):
        pid = busy.process.pid
        first = [busy.work(0.05, pause_us=20_000).total, polite.work(0.05, pause_us=20_000).total]
        most = max(first)
        assert [(1, 0, most - it) for it in first] == [known(observed, it) for it in (busy, polite)]
        assert [0] == away(observed, busy, polite)
        with background(lambda: polite.work(0.2, pause_us=100_000)) as its:
            throttle(observed, busy)
            seen, stretch = observed.value("accel_exporter_probe_hits_total", symbol="ncclAllReduce"), busy.work(4)
            hits = observed.value("accel_exporter_probe_hits_total", symbol="ncclAllReduce") - seen
            assert hits < 0.1 * stretch.calls
            assert (None, None) == counted(observed, busy)[2::2]
            assert (0, None, None) == known(observed, busy)
            assert [1] == away(observed, busy, polite)
            alone, spans = compared(observed, polite), len(observed.spans_of(pid))
            with background(lambda: busy.work(0.2)), Rank(libraries=tmp_path) as late:
                until(lambda: observed.attached(late.pid, {str(busy.library)}), "attached")
                sight = observed.collector._sight
                until(
                    lambda: sight.files.has_links(late.pid) and not sight.is_partial(late.pid), "it has its own links"
                )
                late.run("c = init(0, 1, b'late')\nfor i in range(12): reduce_all(c, 3)")
                assert level(observed, busy) == 1
                assert 12 == observed.value("nccl_collective_calls_total", late.pid, collective="AllReduce")
                assert 1 == observed.value("nccl_seen_from_start", late.pid)
                assert [CREATION] == [it.origin for it in observed.kernel("communicators", late.pid)]
            assert (alone, spans) == (compared(observed, polite), len(observed.spans_of(pid)))
            calm(observed, busy)
        made = its[-1].total
        assert (made, made * BYTES, made) == counted(observed, polite)[:3]
        assert ((made, made) if grouped else (None, None)) == counted(observed, polite)[3:]
        assert (1, 0) == known(observed, polite)[:2]
        before, little = counted(observed, busy), busy.work(1, pause_us=20_000)
        after = counted(observed, busy)
        groups = [little.calls if grouped else 0] * 2
        assert [little.calls, little.calls * BYTES, little.calls, *groups] == [
            (b or 0) - (a or 0) for a, b in zip(before, after, strict=True)
        ]
        assert [(0, 0, 0), (1, 0, little.total - made)] == [known(observed, it) for it in (busy, polite)]
        assert [LIBRARY, CREATION] == [
            it.origin for job in (busy, polite) for it in observed.kernel("communicators", job.process.pid)
        ]
        assert [0] == away(observed, busy, polite)


def test_a_kernel_without_links_for_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of all processes that use the file are left out, until the costly one calms down."""
    monkeypatch.setattr(process_links, "supported", lambda: False)
    with governed(REDUCE, tmp_path, monkeypatch) as (observed, busy, polite):
        polite.work(0.05, pause_us=20_000)
        throttle(observed, busy)
        polite.work(0.05, pause_us=20_000)
        assert (0, None, None) == known(observed, polite) and counted(observed, polite)[2] is None
        calm(observed, busy)
        before, little = counted(observed, polite), polite.work(0.5, pause_us=20_000)
        after, last = counted(observed, polite), busy.work(0.05, pause_us=20_000)
        assert (little.calls, little.calls * BYTES) == (after[0] - before[0], after[1] - before[1])
        assert [(0, 0, 0), (0, 0, last.total - little.total)] == [known(observed, it) for it in (busy, polite)]


def test_collectives_that_are_made_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ncclAllToAll of RCCL, a group of ncclSend and ncclRecv, is seen in windows, too, and counts as one call."""
    (tmp_path / RCCL).parent.mkdir()
    (tmp_path / Path(RCCL).name).symlink_to(RCCL)
    with governed(REDUCE, tmp_path, monkeypatch, RCCL) as (observed, busy, _):
        pid, name = busy.process.pid, "nccl_collective_calls_total"
        throttle(observed, busy)
        made = busy.work(2, waits=True).calls // 10
        assert level(observed, busy) == 1 and counted(observed, busy)[2:] == (None, None, None)
        found = {it: observed.value(name, pid, collective=it) for it in ("AlltoAll", "Send", "Recv")}
        assert {"Send": None, "Recv": None} == {it: found[it] for it in ("Send", "Recv")}
        calm(observed, busy)
        assert made == observed.value(name, pid, collective="AlltoAll")


@pytest.mark.parametrize("call", [REDUCE, GROUP], ids=["collectives", "groups"])
def test_calls_of_a_job_that_works_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """By its CPU time, with their bytes, within what its calls take longer in gaps: other probes on this machine slow
    them down there, too, and windows by less than their price."""
    symbols = ["ncclAllReduce", *(["ncclGroupStart", "ncclGroupEnd"] if call == GROUP else [])]
    with governed(call, tmp_path, monkeypatch) as (observed, busy, _):
        work = 8 * sum(observed.collector.probes.price(it) for it in symbols)
        turns = round(work * 10_000 / min(busy.work(0.2, own=10_000).each for _ in range(3)))
        for _ in range(60):
            if level(observed, busy) == 1:
                break
            busy.work(0.5, own=turns)
        last = busy.work(8, own=turns)
        assert level(observed, busy) == 1
        name = "accel_exporter_probe_sampled_ratio"
        assert observed.value(name, symbol="ncclAllReduce", library=str(busy.library)) < 1
        called, moved, timed, groups, ended = counted(observed, busy)
        assert ended is None and (groups == pytest.approx(called, rel=0.05) if call == GROUP else groups is None)
        assert timed is None and moved == pytest.approx(called * BYTES, rel=1e-3)
        assert called == pytest.approx(last.total, rel=0.2 + abs(last.each - work) / work)
