"""The host's PID namespace: the kernel reports its pids to probes, and in any other these mean other processes."""

from __future__ import annotations

from pathlib import Path

HOST = 0xEFFFFFFC
"""The inode of the first PID namespace on every machine (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""
REFUSAL = "not in the host's PID namespace"
REMEDY = (
    "use hostPID: true (Kubernetes) or --pid=host (docker, podman); without a container, start the exporter outside of "
    "`unshare --pid`"
)
_OWN = Path("/proc/self/ns/pid")


def is_host(namespace: Path = _OWN) -> bool:
    """Return whether this link, that of the exporter by default, leads to the host's namespace. Raises OSError."""
    return namespace.stat().st_ino == HOST
