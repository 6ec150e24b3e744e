"""The file system in which bcc finds the kernel's tracepoints. The worker imports it: standard library only."""

from __future__ import annotations

import os

PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
MOUNT = "mount -t tracefs nodev /sys/kernel/tracing"


def missing() -> str:
    """Return why no tracepoint can be found; empty where tracefs is mounted and may be read."""
    for place in PLACES:
        try:
            os.stat(f"{place}/events")  # noqa: PTH116  # as in the rest of the worker
        except PermissionError:
            return f"{place} may not be read, and bcc finds tracepoints only there"
        except OSError:
            continue
        return ""
    return "tracefs is not mounted, and bcc finds tracepoints only there"
