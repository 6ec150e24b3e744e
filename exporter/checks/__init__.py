"""Checks of what can be observed on this node: one function each, which returns a status, a sentence and a remedy."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

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
"""How long one check may take."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Run all checks, from the general to the special; a check that raises an exception is a failed one.

    One that takes longer than SECONDS is left alone: reading of a process that keeps its memory map locked, or of a
    file system that does not answer, may take for ever.
    """
    for name, check in CHECKS.items():
        answer: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        threading.Thread(target=_examine, args=(answer, name, check, settings), name=name, daemon=True).start()
        try:
            yield answer.get(timeout=SECONDS)
        except queue.Empty:
            yield _unfinished(name)


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
