"""Calls in groups: a rank arrives when the group ends; what was simulated or failed makes no rank late."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial

import pytest

from tests.bpf.fixtures import once
from tests.bpf.nccl_node import NcclNode, Rank, observe
from tests.bpf.test_nccl_meetings import BEHIND, LAG, lags, ranks
from tests.support import until

pytestmark = pytest.mark.needs_bpf

START, END = "lib.ncclGroupStart(); ", "; lib.ncclGroupEnd()"
SIMULATED = "; lib.ncclGroupSimulateEnd(byref(c_int()))"
CALL = "reduce_all(c, 1)"
CALLS = "nccl_collective_calls_total"
ALL_TO_ALL = "lib.ncclAlltoAll(None, None, size(1), 7, c, None)"
LATE_S = 0.3


observed = once(partial(observe, message_spans=True, spans_per_second=100_000))


def late(observed: NcclNode, pid: int) -> float:
    """Return the sum of a rank's arrival lags over all its calls, in seconds."""
    lag = observed.value(LAG, pid)
    return lag.sum if lag else 0


def test_a_rank_arrives_when_its_group_ends(observed: NcclNode) -> None:
    """Calls of nested groups are compared when the outermost one ends, each of them."""
    with ranks(observed, 2, "ends") as (first, second):
        begun = first.run(
            START
            + START
            + CALL
            + END
            + f"; {ALL_TO_ALL}; {ALL_TO_ALL}; time.sleep({LATE_S}); out = time.monotonic()"
            + END
        )
        second.run(START + f"{CALL}; {ALL_TO_ALL}; {ALL_TO_ALL}" + END)
        since = time.monotonic() - begun  # without the pause in the group
        assert [3, 3] == lags(observed, [first, second])
        assert late(observed, first.pid) < 0.1 and late(observed, second.pid) <= 3 * since
        second.run(START + CALL + f"; time.sleep({LATE_S})")
        first.run(CALL)
        assert late(observed, first.pid) < 0.1
        second.run("lib.ncclGroupEnd()")
        assert late(observed, second.pid) >= 0  # however late the other one was to observe
        assert [4, 4] == lags(observed, [first, second])


def test_more_calls_in_a_group_than_are_remembered(observed: NcclNode) -> None:
    """The newest 128 are compared."""
    with ranks(observed, 2, "many") as job:
        for rank in job:
            rank.run(START + f"[{CALL} for i in range(300)]" + END)
        assert [128, 128] == lags(observed, list(job))
        assert 0 == observed.value(BEHIND, job[0].pid)


@pytest.mark.parametrize("nested", [False, True])
def test_a_simulated_group_makes_nobody_late(observed: NcclNode, nested: bool) -> None:
    """Calls of it have no arrival and no number: a rank that simulates is compared with one that does not, rightly."""
    inner = START + CALL + (END if nested else SIMULATED) + "; " if nested else ""
    with ranks(observed, 2, f"simulated{nested}") as (simulating, other):
        for rank in (simulating, other):
            rank.run(CALL)
        before = late(observed, other.pid)
        simulating.run(START + inner + f"{CALL}; {CALL}; {ALL_TO_ALL}; lib.ncclSend(None, size(1), 7, 1, c, None)")
        time.sleep(LATE_S)
        other.run(f"{CALL}; {ALL_TO_ALL}")
        assert late(observed, other.pid) - before < 0.1
        assert [0] == list({*observed.values(BEHIND, other.pid).values()})
        simulating.run(SIMULATED.removeprefix("; "))
        assert [1, 3] == lags(observed, [simulating, other])
        assert 0 == observed.value(BEHIND, other.pid) == observed.value(BEHIND, simulating.pid) - 1
        time.sleep(LATE_S)
        begun = simulating.run(f"{CALL}; {ALL_TO_ALL}; out = time.monotonic(); {CALL}")
        other.run(CALL)
        since = time.monotonic() - begun
        assert [4, 4] == lags(observed, [simulating, other])
        assert late(observed, simulating.pid) >= 2 * LATE_S and late(observed, other.pid) - before <= since
        assert 0 == observed.value(BEHIND, other.pid) == observed.value(BEHIND, simulating.pid)


@pytest.mark.parametrize(
    "end",
    [
        "lib.ncclGroupSimulateEnd(None)",
        "lib.standin_fail(b'ncclGroupSimulateEnd', 7); lib.ncclGroupSimulateEnd(byref(c_int()))",
    ],
)
def test_a_simulation_that_is_none(observed: NcclNode, end: str) -> None:
    """NCCL starts the calls where it is given no estimate to fill in, and on communicators that are non-blocking."""
    with ranks(observed, 2, "none" + end[4:7]) as job:
        for rank in job:
            rank.run(START + f"{CALL}; {CALL}; {end}; {CALL}")
        assert [3, 3] == lags(observed, list(job))
        assert [0, 0] == [observed.value(BEHIND, rank.pid) for rank in job]


def test_a_group_that_failed(observed: NcclNode) -> None:
    """The number of started calls is unknown after a failed group: the rank is no longer compared with others."""
    with ranks(observed, 3, "group failed") as (failed, *others):
        begun = time.monotonic()
        for rank in (failed, *others):
            rank.run(CALL)
        took = time.monotonic() - begun
        failed.run(f"lib.standin_fail(b'ncclGroupEnd', 3); {START}{CALL}{END}; lib.standin_fail(None, 0)")
        time.sleep(LATE_S)
        begun = time.monotonic()
        for rank in others:
            rank.run(f"{CALL}; {CALL}")
        failed.run(f"{CALL}; {CALL}")
        took += time.monotonic() - begun
        assert [2, 2, 2] == lags(observed, [failed, *others])
        assert all(late(observed, rank.pid) <= took for rank in (failed, *others))
        assert {} == observed.values(BEHIND, failed.pid)


def test_a_simulation_without_return_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without return probes the start of a simulated group's calls is unknown: no rank is compared by call numbers."""
    monkeypatch.setattr("exporter.bpf.trial.Trial.returns_allowed", lambda *_: (False, "this is a test"))
    with ExitStack() as stack:
        job = [stack.enter_context(Rank()) for _ in range(2)]  # before the probes: calls are numbered from the group on
        observed = stack.enter_context(observe())
        until(lambda: observed.value("accel_exporter_probe_attached", symbol="ncclGroupStart"), "attached")
        until(lambda: all(rank.pid in observed.collector.ledger for rank in job), "known")
        for number, rank in enumerate(job):
            rank.run(f"c = init({number}, 2, b'no returns'); {CALL}; {START}{CALL}{END}")
        assert [1, 1] == lags(observed, job)
        job[0].run(START + CALL + SIMULATED)
        for rank in reversed(job):
            rank.run(f"{CALL}; {CALL}")
        assert [1, 2] == lags(observed, job)  # not that of the number which the simulated call would have
        assert {} == observed.values(BEHIND, job[0].pid)


def test_a_call_that_is_refused_in_a_simulated_group(observed: NcclNode) -> None:
    """A refused call has no number to take back once more."""
    with ranks(observed, 2, "refused in group") as job:
        job[0].run(
            f"{START}{CALL}; lib.standin_fail(b'ncclAllReduce', 4); {CALL}; lib.standin_fail(None, 0){SIMULATED}"
        )
        for rank in job:
            rank.run(CALL)
        assert [1, 1] == lags(observed, list(job))
        assert [0, 0] == [observed.value(BEHIND, rank.pid) for rank in job]


def test_communicators_that_change_in_a_group(observed: NcclNode) -> None:
    """Communicators of a split in a group are compared; one that is destroyed or aborted in it takes no other along."""
    with ranks(observed, 2, "changing") as job:
        for number, rank in enumerate(job):
            rank.run(
                f"d, e = init({number}, 2, b'd'), init({number}, 2, b'e'); s = c_void_p(); {START}"
                f"reduce_all(d, 1); {CALL}; reduce_all(e, 1); lib.ncclCommDestroy(d); lib.ncclCommAbort(e)\n"
                f"lib.ncclCommSplit(c, 0, {number}, byref(s), None); reduce_all(s, 1); {CALL}{END}; {CALL}"
            )
            assert 6 == observed.value(CALLS, rank.pid, collective="AllReduce")
        made = {dict(labels)["comm_hash"]: sum(it.counts) for labels, it in observed.values(LAG, job[0].pid).items()}
        assert [3] == list(made.values())  # the split's ranks are of half of the ranks on this stand-in
        assert [0, 0] == [observed.value(BEHIND, rank.pid) for rank in job]


@pytest.mark.parametrize(("end", "times"), [(END, 2), (SIMULATED, 1)])
def test_a_communicator_made_where_another_was(observed: NcclNode, end: str, times: int) -> None:
    """A group has an address twice where one communicator is destroyed and the next one made: calls count once."""
    with ranks(observed, 2, f"again{times}") as job:
        for number, rank in enumerate(job):
            rank.run("for i in range(3): lib.ncclCommDestroy(init(0, 1, b'so that malloc uses addresses again'))")
            assert rank.run(
                f"d = init({number}, 2, b'd'); old = d.value; {START}reduce_all(d, 1); lib.ncclCommDestroy(d)\n"
                f"d = init({number}, 2, b'new{times}'); reduce_all(d, 1){end}; reduce_all(d, 1); out = d.value == old"
            )
        assert [times, times] == lags(observed, list(job))
        assert {0} == {behind for rank in job for behind in observed.values(BEHIND, rank.pid).values()}


def test_one_thread_with_all_gpus(observed: NcclNode) -> None:
    """All ranks of a process and a thread are compared, groups with calls of too many communicators not."""
    with ranks(observed, 1, "one") as (rank,):
        rank.run("cs = [init(i, 8, b'gpus') for i in range(8)]; ds = [init(i, 20, b'crowd') for i in range(20)]")
        for _ in range(3):
            rank.run(START + "[reduce_all(it, 1) for it in cs]" + END)
            rank.run(START + "[reduce_all(it, 1) for it in ds]" + END)
        assert 3 * 28 == observed.value(CALLS, rank.pid, collective="AllReduce")
        counted = sorted(sum(it.counts) for it in observed.values(LAG, rank.pid).values())
        assert [3] * 24 == counted
