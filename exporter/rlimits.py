"""Limits that child processes set for themselves."""

from __future__ import annotations

import resource


def lower(which: int, most: int) -> None:
    """Lower a limit of this process (resource.RLIMIT_*) to `most`; one that is lower already stays."""
    least = min(it for it in (most, *resource.getrlimit(which)) if it != resource.RLIM_INFINITY)
    resource.setrlimit(which, (least, least))
