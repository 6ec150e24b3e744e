"""Labels of the pids that NVML reports, which are of the host's pid namespace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from exporter import pid_namespace
from exporter.model import Labels

if TYPE_CHECKING:
    from exporter.node import Processes


def labels_of(processes: Processes, proc: Path) -> Callable[[int], Labels]:
    """Returns a function from pid to labels.

    The function returns the pid alone where `proc` shows a container's pid namespace: there the number belongs to
    another process.
    """
    return processes.labels if _shows_host(proc) else _pid_only


def _pid_only(pid: int) -> Labels:
    return {"pid": str(pid)}


def _shows_host(proc: Path) -> bool:
    for namespace in (Path("/proc/self/ns/pid") if proc == Path("/proc") else None, proc / "1/ns/pid"):
        try:
            if namespace is not None and pid_namespace.is_host(namespace):
                return True
        except OSError:
            continue
    return False
