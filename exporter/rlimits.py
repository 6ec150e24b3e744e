"""Resource limits of this process, and of child processes that lower their own."""

from __future__ import annotations

import resource


def lower(which: int, most: int) -> None:
    """Lower a limit of this process (resource.RLIMIT_*) to `most`; one that is lower already stays."""
    least = min(it for it in (most, *resource.getrlimit(which)) if it != resource.RLIM_INFINITY)
    resource.setrlimit(which, (least, least))


def raise_to(which: int, least: int) -> None:
    """Raise a limit of this process (resource.RLIMIT_*) to `least`, or as far as permitted. A higher limit stays."""
    unlimited = resource.RLIM_INFINITY
    soft, hard = resource.getrlimit(which)
    if soft == unlimited or soft >= least:
        return
    more = hard if hard == unlimited else max(hard, least)
    try:
        resource.setrlimit(which, (least, more))
    except (OSError, ValueError):  # without CAP_SYS_RESOURCE
        resource.setrlimit(which, (hard, hard))
