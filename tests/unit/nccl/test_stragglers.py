"""Ranks of one node are compared with each other, and with none if they are alone."""

from __future__ import annotations

from typing import Any

from exporter.ledger import Process
from exporter.nccl.activity import Activity, Durations, Membership
from exporter.nccl.stragglers import stragglers
from exporter.views.prometheus import name

SLOTS = (3, *[0] * 15, 1)


def process(
    pid: int, *ranks: int, comm_hash: int = 0xABC, nranks: int = 8, number: int = 0, domain: int = 1
) -> Process[Activity]:
    members = [Membership(comm_hash, nranks, rank, domain) for rank in ranks]
    activity = Activity(
        lags={it: Durations(2_500_000_000, SLOTS) for it in members},
        numbers=dict.fromkeys(members, number),
    )
    return Process(pid, {"pid": str(pid)}, activity, 5.0)


def compared(*processes: Process[Activity]) -> dict[tuple[str, str, str], Any]:
    return {
        (name(it.metric), it.labels["pid"], f"{it.labels['comm_hash']} {it.labels['rank']}"): it.value
        for it in stragglers(processes)
    }


def test_two_ranks() -> None:
    """Each has its lag, in seconds, and the one that called less is behind by the difference."""
    found = compared(process(1, 3, number=10), process(2, 5, number=7))
    assert 4 == len(found)
    lag = found["nccl_rank_arrival_lag_seconds", "2", "0000000000000abc 5"]
    assert (2.5, SLOTS) == (lag.sum, lag.counts)
    assert (2.0**-14, 2.0**-12, 2.0**16) == (*lag.bounds[:2], lag.bounds[-1])
    behind = {key[1]: value for key, value in found.items() if key[0] == "nccl_rank_calls_behind"}
    assert {"1": 0, "2": 3} == behind


def test_two_ranks_of_one_process() -> None:
    """Ranks of one process are compared, too."""
    assert 4 == len(compared(process(1, 0, 1)))


def test_a_rank_alone_is_not_compared() -> None:
    """Not with itself, with other communicators, or with one of the same hash and another size."""
    assert {} == compared(process(1, 0), process(2, 1, comm_hash=0xABD), process(3, 1, nranks=4))


def test_strangers_are_not_compared() -> None:
    """A rank of the same communicator that belongs to somebody else makes nobody late, nor behind."""
    assert {} == compared(process(1, 0), process(2, 1, number=9, domain=2))
    behind = compared(process(1, 0), process(2, 1), process(3, 2, number=9, domain=2))
    assert [0, 0] == [value for key, value in behind.items() if key[0] == "nccl_rank_calls_behind"]


def test_who_ended_has_a_lag_and_is_not_behind() -> None:
    """The lag of an ended rank stays, and its distance behind the others does not."""
    ended = process(1, 0, number=5)
    ended.activity.ended()
    assert {"nccl_rank_arrival_lag_seconds"} == {key[0] for key in compared(ended, process(2, 1, number=9))}
    late = process(3, 0).activity
    ended.activity.absorb(late)
    assert {Durations(5_000_000_000, tuple(2 * it for it in SLOTS))} == set(ended.activity.lags.values())
