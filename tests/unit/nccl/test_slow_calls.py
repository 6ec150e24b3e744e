"""Slow calls, and the collectives that RDMA work may belong to."""

from __future__ import annotations

import random

import pytest

from exporter.nccl import recent_collectives, slow_calls
from exporter.nccl.recent_collectives import RecentCollectives
from exporter.nccl.slow_calls import SlowCalls
from tests.unit.nccl.records import record

MS = 1_000_000


def took(ns: int, kind: str = "AllReduce") -> object:
    return record(kind, start_ns=1000, end_ns=1000 + ns)


def test_a_threshold() -> None:
    """A call that takes as long as the threshold is slow at once, a shorter one is not."""
    assert [False, True] == [SlowCalls(0.5).slow(took(ns)) for ns in (499 * MS, 500 * MS)]


def test_slow_for_its_kind() -> None:
    """After some calls one of ten times the median is slow; one as long is not where calls are that long."""
    judge, chance = SlowCalls(60), random.Random(1)
    usual = [judge.slow(took(int(chance.gauss(3 * MS, MS / 2)))) for _ in range(500)]
    assert not any(usual)
    assert not judge.slow(took(20 * MS)) and judge.slow(took(45 * MS))
    assert not judge.slow(took(45 * MS, "AlltoAll"))


def test_short_calls_are_never_slow() -> None:
    """A call of a few milliseconds is not slow however short the others are."""
    judge = SlowCalls(60)
    assert not any([judge.slow(took(1000)) for _ in range(100)] + [judge.slow(took(9 * MS))])
    assert judge.slow(took(11 * MS))


def test_few_calls_have_no_median() -> None:
    """The first calls, which set things up, are not held against each other."""
    judge = SlowCalls(60)
    assert not any([judge.slow(took(1000)) for _ in range(20)] + [judge.slow(took(900 * MS))])


def test_what_is_remembered_of_pace_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more medians than so many."""
    monkeypatch.setattr(slow_calls, "MOST_REMEMBERED", 3)
    judge = SlowCalls(1)
    for rank in range(10):
        judge.slow(record(rank=rank))
    assert 3 == len(judge.medians)


def test_links() -> None:
    """Work is linked to the last four calls of its process that began within the second before it, newest first."""
    calls = RecentCollectives()
    for i in range(6):
        calls.add(7, i * 100, (f"t{i}", "s"))
    calls.add(8, 250, ("other", "s"))
    assert ("t2", "t1", "t0") == tuple(trace for trace, _ in calls.links(7, 250))
    assert ("t5", "t4", "t3", "t2") == tuple(trace for trace, _ in calls.links(7, 1000))
    assert ("t5", "t4") == tuple(trace for trace, _ in calls.links(7, recent_collectives.WINDOW_NS + 350))
    assert () == calls.links(7, recent_collectives.WINDOW_NS + 501) == calls.links(9, 250)
    calls.forget(7)
    assert () == calls.links(7, 250)


def test_what_is_remembered_of_calls_is_bounded() -> None:
    """So many calls of so many processes."""
    calls = RecentCollectives()
    for pid in range(recent_collectives.PROCESSES + 10):
        for i in range(recent_collectives.CALLS + 10):
            calls.add(pid, i, ("t", "s"))
    assert recent_collectives.PROCESSES == len(calls._of)
    assert {recent_collectives.CALLS} == {len(it) for it in calls._of.values()}
