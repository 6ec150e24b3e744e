"""Container, pod and Slurm job of a process, parsed from its cgroup path. Pure functions of text.

The forms come from the kubelet's systemd and cgroupfs drivers, containerd, CRI-O, docker, podman and Slurm, on cgroup
v1, v2 and both at once. A process can make a path that imitates any of them: only hex ids and digits are returned.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_POD = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})(?=\.slice|[/:]|$)"
)
_CONTAINER = re.compile(r"(?:^|[/:])(?:[a-z][a-z0-9-]*[-:])?([0-9a-f]{64})(?:\.scope)?(?=/|$)")
_MONITOR = re.compile(r"conmon-[0-9a-f]{64}(?:\.scope)?(?=/|$)")
_SLURM = re.compile(
    r"(?:/slurm(?:_[^/]+)?/uid_[0-9]+|/system\.slice/(?:[^/]+_)?slurmstepd\.scope)/job_([0-9]{1,10})(?=/|$)"
)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Identifiers in a process's cgroup path; empty where the path has none.

    `container_id` is 64 hex digits (OpenTelemetry container.id). `pod_uid` is a UUID with dashes, or for a static pod
    the 32 hex digits of its configuration's hash. `slurm_job_id` is decimal.
    """

    container_id: str = ""
    pod_uid: str = ""
    slurm_job_id: str = ""


def parse(text: str) -> Cgroup:
    """Parse the text of /proc/PID/cgroup (`hierarchy:controllers:path` lines).

    The innermost container and pod of a path win: within a container that acts as a node, the pod inside counts.
    """
    container = pod = job = ""
    for line in text.split("\n"):
        path = line.split(":", 2)[-1].removesuffix(" (deleted)")
        if path in ("", "/"):
            continue
        container = container or _container(path)
        pod = pod or _pod(path)
        job = job or _first(_SLURM, path)
    return Cgroup(container, pod, job)


def _container(path: str) -> str:
    """Return the container id, or nothing for the container's monitor (conmon), which runs outside the container."""
    return "" if _MONITOR.search(path) else _last(_CONTAINER, path)


def _pod(path: str) -> str:
    return _last(_POD, path).replace("_", "-")


def _first(pattern: re.Pattern[str], path: str) -> str:
    found = pattern.search(path)
    return found[1] if found else ""


def _last(pattern: re.Pattern[str], path: str) -> str:
    found = ""
    for match in pattern.finditer(path):
        found = match[1]
    return found
