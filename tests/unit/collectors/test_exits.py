"""Ends of GPU processes: what many of them can push out."""

from __future__ import annotations

import errno
from collections.abc import Collection
from types import SimpleNamespace

import pytest

from exporter.bpf.native import BpfError
from exporter.collectors.exits import EXITS, MOST_SERIES, Exits
from exporter.resolve.process import ProcessTable
from tests.nodes import make_node


class Watched(dict[int, int]):
    """The kernel's table, which has no row of a process after the report of its end."""

    def set(self, key: int, value: int) -> None:
        if len(self) >= 2:
            raise BpfError(errno.E2BIG, "write map watched")
        self[key] = value

    def take(self, pids: Collection[int]) -> list[tuple[int, int]]:
        return [(pid, self.pop(pid)) for pid in pids if pid in self]


@pytest.fixture
def table() -> Watched:
    return Watched()


@pytest.fixture
def exits(table: Watched) -> Exits:
    made = Exits(make_node({}, ProcessTable(), None, None))
    made.object = SimpleNamespace(maps={"watched": table})  # type: ignore[assignment]
    return made


def test_ended_before_it_was_watched(exits: Exits, table: Watched) -> None:
    """Of a process that ended a moment too early nothing is kept, nor counted when another one gets its pid."""
    for pid in (1 << 22) + 1, (1 << 22) + 2:
        exits.process_started(pid, None, True)  # type: ignore[arg-type]
    del table[(1 << 22) + 2]
    exits.processes_ended([(1 << 22) + 1, (1 << 22) + 2])

    assert {} == table
    assert [(1 << 22) + 2] == [*exits.users]  # the record of its end is on its way


def test_no_room(exits: Exits) -> None:
    """Of a process that cannot be watched nothing is kept."""
    for pid in range(1 << 22, (1 << 22) + 3):
        exits.process_started(pid, None, True)  # type: ignore[arg-type]

    assert (2, 1) == (len(exits.users), exits.unwatched)


def end(exits: Exits, pid: int, status: int = 11, **who: str) -> None:
    exits.users[pid] = tuple(who.items())
    exits.ended(SimpleNamespace(tgid=pid, status=status, ended=1))


def test_workload_has_a_share() -> None:
    """A pod with processes that crash under ever new names pushes out its own counters, not those of others."""
    exits = Exits(make_node({}, None, None, None))
    for number in range(100):
        end(exits, number, status=number << 8, comm="train", pod="victim")
    for number in range(3 * MOST_SERIES):
        end(exits, 1000 + number, comm=f"spam{number}", pod="noisy")
    with exits._lock:
        kept = [dict(labels) for labels in exits.counts]

    assert MOST_SERIES == len(kept)
    assert 100 == sum(it["pod"] == "victim" for it in kept)
    assert f"spam{3 * MOST_SERIES - 1}" in [it["comm"] for it in kept]
    assert {name for it in kept for name in it} <= set(EXITS.labels)
