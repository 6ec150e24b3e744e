"""Non-blocking communicators: a communicator that a process polls is in flight, like a call that does not return."""

from __future__ import annotations

from functools import partial

import pytest

from exporter.nccl import activity
from tests.bpf.fixtures import each, once
from tests.bpf.nccl_node import NcclNode, Rank, build_standins, observe, started
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="NCCL hang of non-blocking calls", on="stand-in")]

IN_PROGRESS, REMOTE_ERROR = 7, 6
INIT = (
    "c, e, k = c_void_p(), c_int(), Config(24, 0, 0, 0)\n"
    "assert 7 == lib.ncclCommInitRankConfig(byref(c), 4, Id(b'n'), 1, byref(k))\n"
    "def report(code, comm=None): lib.standin_async_error(comm or c, code)\n"
    "def poll(comm=None): assert 0 == lib.ncclCommGetAsyncError(comm or c, byref(e)); return e.value\n"
    f"report({IN_PROGRESS})"
)
POLL = f"assert {IN_PROGRESS} == poll()"


observed = once(partial(observe, spans_per_second=0))
rank = each(Rank)


def in_flight(observed: NcclNode, rank: Rank) -> int | None:
    value: int | None = observed.value("nccl_calls_in_flight", rank.pid)
    return value


def standing(observed: NcclNode, rank: Rank) -> list[str]:
    return [it.what for it in observed.collector.standing() if it.pid == rank.pid]


def rows(observed: NcclNode, rank: Rank) -> int:
    """Return the number of pending communicators of a process, which equals its count of held rows."""
    [held] = observed.kernel("held", rank.pid)
    assert held.pending == len(observed.kernel("pending", rank.pid))
    return int(held.pending)


@pytest.mark.parametrize(("state", "errors"), [(0, 0), (REMOTE_ERROR, 1)])
def test_until_it_is_ready(observed: NcclNode, rank: Rank, state: int, errors: int) -> None:
    """While the library reports that a polled communicator is not ready, its creation is in flight since its call."""
    rank.run(INIT)
    assert (0, []) == (in_flight(observed, rank), standing(observed, rank))  # nothing waits for it yet
    rank.run(f"for i in range(23): {POLL}")
    assert (1, ["ncclCommInitRankConfig"]) == (in_flight(observed, rank), standing(observed, rank))
    assert {("1", "4")} == {
        (dict(it)["rank"], dict(it)["nranks"]) for it in observed.values("nccl_communicator_info", rank.pid)
    }
    assert None is observed.value("nccl_last_call_timestamp_seconds", rank.pid)
    rank.run(f"report({state}); poll()")
    assert (0, [], 0) == (in_flight(observed, rank), standing(observed, rank), rows(observed, rank))
    assert errors == len(observed.values("nccl_errors_total", rank.pid))


@pytest.mark.parametrize("end", ["ncclCommAbort", "ncclCommDestroy"])
def test_until_it_ends(observed: NcclNode, rank: Rank, end: str) -> None:
    """A communicator that is aborted while it is being created is no longer in flight."""
    rank.run(f"{INIT}\n{POLL}")
    assert (1, 1) == (in_flight(observed, rank), rows(observed, rank))
    rank.run(f"lib.{end}(c)")
    assert (0, 0) == (in_flight(observed, rank), rows(observed, rank))


def test_until_nobody_polls(observed: NcclNode, rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A communicator that has not been polled for a while is not in flight: the process does something else."""
    rank.run(f"{INIT}\n{POLL}")
    assert 1 == in_flight(observed, rank)
    monkeypatch.setattr(activity, "POLLED_NS", 0)
    assert (0, []) == (in_flight(observed, rank), standing(observed, rank))


def test_a_split(observed: NcclNode, rank: Rank) -> None:
    """A split is polled on the parent communicator; the address of the new one is unknown until it is ready."""
    rank.run("c, s, e = init(1, 4, b'p'), c_void_p(), c_int(); n = b'ncclCommSplit'; lib.standin_fail(n, 7)")
    rank.run(f"assert 7 == lib.ncclCommSplit(c, 0, 0, byref(s), None); lib.standin_async_error(c, {IN_PROGRESS})")
    rank.run("assert 0 == lib.ncclCommGetAsyncError(c, byref(e))")
    assert (1, ["ncclCommSplit"]) == (in_flight(observed, rank), standing(observed, rank))
    rank.run("lib.standin_async_error(c, 0); assert 0 == lib.ncclCommGetAsyncError(c, byref(e))")
    assert (0, 0) == (in_flight(observed, rank), rows(observed, rank))


def test_an_exporter_that_came_later() -> None:
    """A communicator that was not ready when the exporter started is in flight from the first poll on."""
    build_standins()
    with Rank() as rank:
        rank.run(f"{INIT}\n{POLL}")
        with observe() as observed:
            started(observed, rank)
            assert 0 == (in_flight(observed, rank) or 0)
            rank.run(POLL)
            assert (1, ["ncclCommGetAsyncError"]) == (in_flight(observed, rank), standing(observed, rank))


def test_communicators_that_are_ready(observed: NcclNode, rank: Rank) -> None:
    """Polls of communicators that are ready, as PyTorch's watchdog makes, take no row."""
    rank.run(INIT.replace(f"report({IN_PROGRESS})", "cs = [init(i, 8, b't') for i in range(8)]"))
    rank.run("for i in range(23):\n    for it in (c, *cs): assert 0 == poll(it)")
    assert (0, 0) == (in_flight(observed, rank), rows(observed, rank))


def test_more_than_a_process_may_hold(observed: NcclNode, rank: Rank) -> None:
    """One process cannot fill the table: its share is an eighth."""
    share = observed.collector.object.maps["pending"].max_entries // 8
    lost = observed.collector.object.globals()["pending_lost"]
    rank.run(INIT)
    rank.run(f"for i in range({share + 22}): lib.ncclCommInitRankConfig(byref(c), 4, Id(b'n'), 1, byref(k))")
    assert share == rows(observed, rank)
    assert 23 == observed.collector.object.globals()["pending_lost"] - lost


def test_the_end_of_a_process(observed: NcclNode) -> None:
    """A process that is killed while it waits leaves nothing behind."""
    with started(observed, Rank()) as rank:
        rank.run(f"{INIT}\n{POLL}")
        assert 1 == in_flight(observed, rank)
        rank.process.kill()
        rank.process.wait()
        until(lambda: not observed.kernel("pending", rank.pid), "the end noticed")
        assert 0 == (in_flight(observed, rank) or 0)
