"""CPU time of processes."""

from __future__ import annotations

import time

_CPU_CLOCK = 2
"""CPUCLOCK_SCHED: the kernel's number of a process's CPU clock is made of it and of the pid."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all its threads, to the nanosecond. Raises OSError without such a process."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
