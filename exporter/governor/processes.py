"""CPU time of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress

_CPU_CLOCK = 2
"""CPUCLOCK_SCHED: the kernel's number of a process's CPU clock is made of it and of the pid."""
_COARSE_CLOCK = 6
"""CLOCK_MONOTONIC_COARSE, which goes on with each tick of the scheduler."""
LONGEST_TICK, _PAUSE = 0.02, 0.0002


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all its threads. Raises OSError without such a process.

    Of threads that run now the time since the last tick, 1 to 10 ms, is not in it.
    """
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


def cpu_times(pids: Collection[int], cpu: Callable[[int], float] = cpu_seconds) -> dict[int, float]:
    """Return the CPU times of these processes, without those that have ended."""
    found: dict[int, float] = {}
    for pid in pids:
        with suppress(OSError):
            found[pid] = cpu(pid)
    return found


def wait_for_tick() -> None:
    """Return just after a tick, when the CPU times of all processes have been brought up to date."""
    before, end = time.clock_gettime(_COARSE_CLOCK), time.monotonic() + LONGEST_TICK
    while time.clock_gettime(_COARSE_CLOCK) == before and time.monotonic() < end:
        time.sleep(_PAUSE)
