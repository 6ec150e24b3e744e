"""CPU times of other processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from exporter.governor import processes
from exporter.governor.processes import cpu_seconds, wait_for_tick
from tests.support import until


@pytest.fixture
def busy() -> Iterator[int]:
    """A process that uses CPU time all the time."""
    with subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE) as it:
        assert it.stdout
        it.stdout.readline()
        yield it.pid
        it.kill()


def test_cpu_time_at_a_tick(busy: int) -> None:
    """Each tick brings the time of a process that runs up to date; on a busy machine it may have to wait."""
    grown: list[float] = []

    def grows() -> bool:
        before = cpu_seconds(busy)
        wait_for_tick()
        grown.append(cpu_seconds(busy) - before)
        return sum(it > 0 for it in grown) > 10

    until(grows, lambda: f"10 of {len(grown)} ticks")


def test_a_clock_without_ticks_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(clock_gettime=lambda _: 7.0, monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(processes, "time", clock)
    wait_for_tick()
    assert sum(slept[:-1]) < processes.LONGEST_TICK <= sum(slept)


def test_no_such_process() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_seconds(1 << 22)
