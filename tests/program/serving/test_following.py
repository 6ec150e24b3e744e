"""Followed processes as users of GPUs start and end."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from exporter.serving import following
from exporter.serving.following import Following
from tests.support import PATIENCE, until


class Rows(dict[int, int]):
    """A table of the kernel's, in memory."""

    max_entries = 64

    def value(self) -> int:
        return 0

    def fill(self, keys: Collection[int], value: int) -> None:
        self.update(dict.fromkeys(keys, value))

    def delete(self, key: int) -> bool:
        return self.pop(key, None) is not None


@pytest.fixture
def processes() -> Iterator[list[int]]:
    """Three processes that run."""
    running = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    yield [it.pid for it in running]
    for it in running:
        it.kill()
        it.wait()


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The users of each walk through /proc; each is a family of its own."""
    made: list[list[int]] = []

    def families(proc: Path, users: Collection[int]) -> set[int]:
        made.append(sorted(users))
        return set(users)

    monkeypatch.setattr(following, "families", families)
    return made


def test_many_starts(processes: list[int], walks: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """All users are followed at once; /proc is walked for the first, and a second later for the others together."""
    rows, candidates, timers = Rows(), Rows(), list[tuple[float, Callable[[], None]]]()
    timer = SimpleNamespace(start=lambda: None, cancel=lambda: None, join=lambda: None)
    monkeypatch.setattr(following.threading, "Timer", lambda *given: timers.append(given) or timer)
    monkeypatch.setattr(following.time, "monotonic", lambda: 100.0)
    followed = Following(Path("/proc"), rows, candidates)
    for pid in processes:
        followed.started(pid)
    assert set(processes) == set(rows) and {pid % 64 for pid in processes} == set(candidates)
    assert [processes[:1]] == walks
    [(seconds, walk)] = timers
    walk()
    followed.close()
    assert [processes[:1], sorted(processes)] == walks
    assert following.PAUSE_SECONDS == seconds


def test_what_has_ended(processes: list[int], walks: list[list[int]]) -> None:
    """A process that ended before it had a row, reaped or not, keeps none: a later one of its pid is another."""
    rows = Rows()
    followed = Following(Path("/proc"), rows, Rows())
    with subprocess.Popen(["true"]) as zombie:
        until(lambda: "Z" == (Path("/proc") / str(zombie.pid) / "stat").read_text().split()[2], "ended")
        followed.started(zombie.pid)
        followed.started(processes[0])
        followed.started(1 << 22)
    assert {processes[0]} == set(rows)
    followed.close()


def test_after_close(processes: list[int], walks: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk that is due is not made any more."""
    monkeypatch.setattr(following, "PAUSE_SECONDS", PATIENCE)
    followed = Following(Path("/proc"), Rows(), Rows())
    for pid in processes:
        followed.started(pid)
    followed.close()
    followed.started(processes[0])
    assert 1 == len(walks)


def test_refresh(processes: list[int], walks: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapes look again after a while, for the users that there still are."""
    followed = Following(Path("/proc"), Rows(), Rows())
    followed.started(processes[0])
    followed.refresh()
    assert 1 == len(walks)
    monkeypatch.setattr(following, "AGAIN_SECONDS", 0.0)
    followed.ended(processes[:1])
    followed.refresh()
    assert [processes[:1], []] == walks
    followed.close()
