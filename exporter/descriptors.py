"""The limit of open files, and what it leaves for probes.

A reserve is kept free of probes, so that connections are accepted, files read and child processes started whatever
processes of others do.
"""

from __future__ import annotations

import errno
import resource
from pathlib import Path

MOST_RESERVED, LEAST_RESERVED = 320, 64
"""Descriptors: 256 connections and 64 for files, sources and children; where the limit is low, the latter."""
PROGRAMS = 256
"""Descriptors of the programs and maps of all collectors: a bit more than they take."""
RAISE = "raise the limit of open files (LimitNOFILE, ulimit -n)"
FOLDER = Path("/proc/self/fd")


def raise_limit() -> None:
    """Raise the soft limit to the hard one: nothing here uses select(), which the customary 1,024 is for."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def limit() -> int:
    """Return how many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def reserve(most: int) -> int:
    """Return how many of `most` descriptors probes leave free: a quarter, within bounds."""
    return min(MOST_RESERVED, max(LEAST_RESERVED, most // 4))


def ceiling() -> int:
    """Return the lowest descriptor of the reserve. One at or above it is given out only when all below are in use."""
    most = limit()
    return most - reserve(most)


def room() -> int:
    """Return how many descriptors probes may still take; negative where the reserve is in use."""
    return ceiling() - _used()


def uncountable() -> str:
    """Return why the open files are unknown, for which probes get none; empty where they can be counted."""
    try:
        FOLDER.stat()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return f"the open files cannot be counted in {FOLDER} ({error.strerror}): mount procfs at /proc"
    return ""


def _used() -> int:
    try:
        # Linux 6.2 has the number as the folder's size, which was 0 before
        return FOLDER.stat().st_size or sum(1 for _ in FOLDER.iterdir())
    except OSError:
        return limit()
