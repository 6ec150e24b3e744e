"""The machine itself: when it started, whether it is about to stop, when its GPUs were last tested."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from exporter.faults import metrics
from exporter.model import Sample

SCHEDULED = Path("/run/systemd/shutdown/scheduled")
"""Written by systemd-logind (shutdown(8)): USEC= and MODE= of a shutdown to come."""
_BOOT_ID = re.compile(r"[0-9a-f-]{36}", re.ASCII)
_BOOT_TIME = re.compile(r"^btime ([0-9]{1,20})$", re.MULTILINE | re.ASCII)
_USEC = re.compile(r"^USEC=([0-9]{1,20})$", re.MULTILINE | re.ASCII)
_MODE = re.compile(r"^MODE=([a-z-]{1,20})$", re.MULTILINE | re.ASCII)


def boot(proc: Path) -> Iterator[Sample]:
    """When the kernel started, and as which boot. Raises OSError when /proc does not tell."""
    identity = (proc / "sys/kernel/random/boot_id").read_text(errors="replace").strip()
    if (found := _BOOT_TIME.search((proc / "stat").read_text(errors="replace"))) and _BOOT_ID.fullmatch(identity):
        yield metrics.BOOT.sample(int(found[1]), {"boot_id": identity})


def shutdown(scheduled: Path) -> Iterator[Sample]:
    """The shutdown to come; nothing when none is scheduled. Raises OSError when that cannot be read."""
    try:
        with scheduled.open("rb") as file:
            text = file.read(4096).decode("utf-8", "replace")
    except FileNotFoundError:
        return
    if (at := _USEC.search(text)) and (mode := _MODE.search(text)):
        yield metrics.SHUTDOWN.sample(int(at[1]) / 1e6, {"mode": mode[1]})


def active_test(stamp: Path) -> Iterator[Sample]:
    """When an active test of the GPUs last passed. Raises OSError when there is no such file: it never did."""
    yield metrics.ACTIVE_TEST.sample(stamp.stat().st_mtime)
