"""Checks of the sources of pod and job names and allocations, and of this site's own probes."""

from __future__ import annotations

import os
from pathlib import Path

from exporter.checks.finding import Answer, Status, readable
from exporter.collectors import allocation
from exporter.custom import doctor, tracefs
from exporter.custom.folder import FolderError
from exporter.model import Unavailable
from exporter.settings import Settings


def cgroups(settings: Settings) -> Answer:
    if (settings.sysfs / "fs/cgroup/cgroup.controllers").exists():
        return Status.OK, "cgroup v2: container, pod and Slurm job ids come from /proc/PID/cgroup"
    return Status.OK, "cgroup v1 or hybrid: container, pod and Slurm job ids come from /proc/PID/cgroup"


def kubernetes(settings: Settings) -> Answer:
    if readable(settings.logs / "pods"):
        return Status.OK, f"pod and container names come from {settings.logs}"
    if in_kubernetes():
        remedy = f"mount the host's /var/log read-only, or give --path.logs (now {settings.logs})"
        return Status.WARN, "Kubernetes, but the kubelet's log folders are missing: pods have ids but no names", remedy
    return Status.INFO, "no kubelet on this node: there are no pod names"


def allocations(settings: Settings) -> Answer:
    mine = settings.collectors.get("allocation")
    if mine is None:
        return Status.INFO, "allocations of GPUs are not read: the collector allocation is off"
    kubelet, slurm, pods = found = allocation.sources(mine)
    for source in found:
        source.read(may_be_absent=source is kubelet)
    failures = [source.failure for source in found if source.exists and source.failure]
    if failures:
        return Status.WARN, "; ".join(failures), "until then GPU series have no pod or job by allocation"
    if not kubelet.exists and kubelet.location and in_kubernetes():
        remedy = f"mount the host's folder of that socket read-only, or give --{allocation.SOCKET}"
        return Status.WARN, f"Kubernetes, but no {kubelet.location}: allocations of GPUs are unknown", remedy
    things = {kubelet: "GPUs allocated to containers", slurm: "jobs on GPUs", pods: "pods with the configured labels"}
    read = [f"{source.location} lists {len(source.items())} {things[source]}" for source in found if source.exists]
    if read:
        return Status.OK, "; ".join(read)
    return Status.INFO, "no kubelet and no Slurm mapping folder: allocations of GPUs are unknown"


def custom(settings: Settings) -> Answer:
    mine = settings.collectors.get("custom")
    if mine is None:
        return Status.INFO, "no custom probes: --custom.dir names no folder"
    try:
        refused, summary = doctor.examine(mine)
    except (FolderError, Unavailable) as error:
        return Status.WARN, f"no custom probe can run: {error}", getattr(error, "remedy", "")
    if refused:
        return Status.WARN, "; ".join(refused), f"accel-exporter check-custom {mine['custom.dir']} tries the others"
    return Status.OK, summary


def tracepoints(settings: Settings) -> Answer:
    reason = tracefs.missing()
    if not reason:
        return Status.OK, "tracefs is mounted: custom probes may be on tracepoints"
    mine = settings.collectors.get("custom")
    names = doctor.on_tracepoints(mine) if mine else ()
    if not names:
        return Status.INFO, f"{reason}; no custom probe uses a tracepoint", tracefs.MOUNT
    return Status.WARN, f"{reason}: {', '.join(names)} cannot work as they should", tracefs.MOUNT


def in_kubernetes() -> bool:
    return Path("/var/lib/kubelet").exists() or "KUBERNETES_SERVICE_HOST" in os.environ
