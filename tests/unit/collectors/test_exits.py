"""Ends of GPU processes: what many of them can push out."""

from __future__ import annotations

from types import SimpleNamespace

from exporter.collectors.exits import EXITS, MOST_SERIES, Exits
from tests.nodes import make_node


def end(exits: Exits, pid: int, status: int = 11, **who: str) -> None:
    exits._users[pid] = tuple(who.items())
    exits._ended(SimpleNamespace(tgid=pid, status=status, ended=1))


def test_workload_has_a_share() -> None:
    """A pod with processes that crash under ever new names pushes out its own counters, not those of others."""
    exits = Exits(make_node({}, None, None, None))
    for number in range(100):
        end(exits, number, status=number << 8, comm="train", pod="victim")
    for number in range(3 * MOST_SERIES):
        end(exits, 1000 + number, comm=f"spam{number}", pod="noisy")
    with exits._lock:
        kept = [dict(labels) for labels in exits._counts]

    assert MOST_SERIES == len(kept)
    assert 100 == sum(it["pod"] == "victim" for it in kept)
    assert f"spam{3 * MOST_SERIES - 1}" in [it["comm"] for it in kept]
    assert {name for it in kept for name in it} <= set(EXITS.labels)
