"""Checks of what can be observed on this node: one function each, which returns a status, a sentence and a remedy."""

from __future__ import annotations

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
    "rdma": node.rdma,
    "rdma providers": node.providers,
    "cgroups": site.cgroups,
    "kubernetes": site.kubernetes,
    "allocations": site.allocations,
    "custom probes": site.custom,
    "tracefs": site.tracepoints,
}


def examine(settings: Settings) -> Iterator[Finding]:
    """Run all checks, from the general to the special; a check that raises an exception is a failed one."""
    for name, check in CHECKS.items():
        try:
            yield Finding(name, *(mounts.unknown(name, settings) or check(settings)))
        except Unavailable as error:
            yield Finding(name, Status.FAIL, str(error).partition("\n")[0], error.remedy)
        except BpfError as error:
            yield Finding(name, Status.FAIL, str(error).partition("\n")[0], kernel.remedy(error))
        except Exception as error:
            yield Finding(name, Status.FAIL, f"cannot be examined: {type(error).__name__}: {error}", "report this")
