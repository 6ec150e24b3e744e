"""Consequences of probed processes for the node: lock contention at hits, and checkpoints by CRIU."""

from __future__ import annotations

import platform
import re
import shutil

from exporter.checks.finding import Answer, Status
from exporter.settings import Settings

WITHOUT_LOCK = (6, 12)


def contention(_: Settings) -> Answer:
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    if found and (int(found[1]), int(found[2])) < WITHOUT_LOCK:
        ceiling = "every hit takes a lock of the whole kernel: 2 to 4 million hits a second on all processors together"
        return Status.INFO, f"Linux {platform.release()}: {ceiling}", "jobs near that need Linux 6.12 or newer"
    return Status.OK, f"Linux {platform.release()}: probes on different processors do not wait for each other"


def checkpoints(_: Settings) -> Answer:
    if not shutil.which("criu"):
        return Status.OK, "CRIU is not installed: nothing checkpoints probed processes"
    found = "CRIU is installed, and a probed process cannot be checkpointed and restored elsewhere"
    return Status.INFO, found, "stop the exporter before such a job starts (docs/faq.md)"
