"""Checks of what can be observed on this node: one function each, which returns a status, a sentence and a remedy."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from exporter.bpf.native import BpfError
from exporter.checks import kernel, mounts, node, probed, site
from exporter.checks.finding import Answer, Finding, Status
from exporter.model import Unavailable
from exporter.settings import Settings

__all__ = ["Answer", "Finding", "Status", "examine"]

CHECKS: dict[str, Callable[[Settings], Answer]] = {
    "procfs": mounts.procfs,
    "sysfs": mounts.sysfs,
    "capabilities": kernel.capabilities,
    "libbpf": kernel.libbpf,
    "lockdown": kernel.lockdown,
    "probes": kernel.objects,
    "uprobes": kernel.uprobes,
    "btf": kernel.btf,
    "return probes": kernel.returns,
    "new processes": kernel.watch,
    "contention": probed.contention,
    "checkpoints": probed.checkpoints,
    "pid namespace": node.host_pids,
    "mapped files": node.map_files,
    "addresses": node.addresses,
    "memory": node.memory,
    "open files": node.open_files,
    "processes": node.processes,
    "nvidia": node.nvidia,
    "kernel log": node.kernel_log,
    "ipmi": node.controller,
    "stacks": node.stacks,
    "rdma": node.rdma,
    "rdma providers": node.providers,
    "cgroups": site.cgroups,
    "kubernetes": site.kubernetes,
    "allocations": site.allocations,
    "custom probes": site.custom,
    "tracefs": site.tracepoints,
}


SECONDS = 60.0
"""Time limit of one check for waits other than for a processor, in seconds."""
MOST_SECONDS = 900.0
"""Time limit of one check with its computations, in seconds: an emulated machine verifies all probes in minutes."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Run all checks, from the general to the special; a check that raises an exception is a failed one.

    One that waits longer than SECONDS is left alone: reading of a process that keeps its memory map locked, or of a
    file system that does not answer, may take for ever.
    """
    for name, check in CHECKS.items():
        answer: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        thread = threading.Thread(target=_examine, args=(answer, name, check, settings), name=name, daemon=True)
        thread.start()
        yield _awaited(answer, thread) or _unfinished(name)


def _awaited(answer: queue.SimpleQueue[Finding], thread: threading.Thread) -> Finding | None:
    """Return what the thread answers, or None when it has waited for too long."""
    began = time.monotonic()
    waited = 0.0
    while waited < SECONDS and time.monotonic() - began < MOST_SECONDS:
        try:
            return answer.get(timeout=min(SECONDS - waited, 1.0))
        except queue.Empty:
            waited = time.monotonic() - began - on_processor(thread)
    return None


def on_processor(thread: threading.Thread) -> float:
    """Return the seconds that a thread ran or was ready to run; those that this process ran where unknown.

    Source: Documentation/scheduler/sched-stats.rst, /proc/PID/task/TID/schedstat.
    """
    try:
        run, ready, _ = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()
        return (int(run) + int(ready)) / 1e9
    except (OSError, ValueError):
        return time.process_time()


def _examine(
    answer: queue.SimpleQueue[Finding], name: str, check: Callable[[Settings], Answer], settings: Settings
) -> None:
    answer.put(_find(name, check, settings))


def _find(name: str, check: Callable[[Settings], Answer], settings: Settings) -> Finding:
    try:
        return Finding(name, *(mounts.unknown(name, settings) or check(settings)))
    except Unavailable as error:
        return Finding(name, Status.FAIL, str(error).partition("\n")[0], error.remedy)
    except BpfError as error:
        return Finding(name, Status.FAIL, str(error).partition("\n")[0], kernel.remedy(error))
    except Exception as error:
        return Finding(name, Status.FAIL, f"cannot be examined: {type(error).__name__}: {error}", "report this")


def _unfinished(name: str) -> Finding:
    summary = f"not examined within {SECONDS:g} s: a process, file system or device does not answer"
    remedy = "look for hung mounts and for processes in state D (ps -eo state,pid,wchan:32,comm)"
    return Finding(name, Status.FAIL, summary, remedy)
