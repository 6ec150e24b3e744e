"""Capabilities of this process: what observing needs, and giving the rest up for good.

Which kernel check wants which capability was found by trying each set on Linux 6.18 (tests/bpf/test_privileges.py).
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Collection
from pathlib import Path

CAPABILITIES = {
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYSLOG": 34,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}
"""The capabilities that this exporter may use; numbers as in linux/capability.h."""

OBSERVING = {
    "CAP_BPF": "make maps and load programs",
    "CAP_PERFMON": "load and attach tracing programs",
    "CAP_SYS_PTRACE": "look into other users' processes",
    "CAP_DAC_READ_SEARCH": "read other users' files: libraries, and /proc/PID/map_files",
    "CAP_CHECKPOINT_RESTORE": "open mapped files through /proc/PID/map_files",
}
"""Capabilities that probes need during the whole run, as probes are attached to a library when first mapped."""

OPENING = ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_CHECKPOINT_RESTORE", "CAP_SYS_ADMIN")
"""Capabilities to open files that other processes map; the last one before Linux 5.9, where held."""

READING_THE_LOG = "CAP_SYSLOG"
"""Opens /dev/kmsg where kernel.dmesg_restrict is 1, the default of most distributions; again at each reload."""

WITHOUT_MULTI_UPROBES = "CAP_SYS_ADMIN"
"""Needed besides where uprobes are perf events (before Linux 6.6), and for bpf.stats."""

ENTERING_NAMESPACES = "CAP_SYS_ADMIN"
"""Enters the network namespace of a container to query its NCCL; only with --collector.ras.namespaces."""

READING_DRIVES = "CAP_SYS_ADMIN"
"""Sends admin commands to NVMe drives (nvme_cmd_allowed() of the kernel); only with --collector.faults.nvme-smart."""

COUNTING_QUEUE_PAIRS = "CAP_NET_ADMIN"
"""Switches counters of RDMA queue pairs on and off again; only with --collector.infiniband.qp-counters."""

PROFILING = "CAP_PERFMON"
"""Reads the profiling counters that NVIDIA's driver keeps from others (NVreg_RestrictProfilingToAdminUsers)."""

GRANT = "run as root, or grant them (systemd AmbientCapabilities=, --cap-add, securityContext)"
PERMIT = "run under a seccomp profile and a kernel lockdown that permit bpf() and perf_event_open()"
LEAVE_USER_NAMESPACE = (
    "run in the host's user namespace, because only its capabilities count: as root without unshare --user, not in a "
    "rootless container or one with remapped users, in Kubernetes without hostUsers: false"
)
_OWN_USER_NAMESPACE, _HOST_USER_NAMESPACE = Path("/proc/self/ns/user"), 0xEFFFFFFD
"""The number of the host's is the same on every Linux (PROC_USER_INIT_INO)."""

_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 38, 23, 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_VERSION_3 = 0x20080522


def effective(status: Path = Path("/proc/self/status")) -> frozenset[str]:
    """Return the effective capabilities of a process among CAPABILITIES. Raise OSError after the end of the process."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(errors="replace"), re.MULTILINE)
    mask = int(found[1], 16) if found else 0
    return frozenset(name for name, number in CAPABILITIES.items() if mask >> number & 1)


def missing() -> list[str]:
    """Return the capabilities of OBSERVING that this process lacks; CAP_SYS_ADMIN includes its former parts."""
    held = effective()
    covered = ("CAP_BPF", "CAP_PERFMON", "CAP_CHECKPOINT_RESTORE") if "CAP_SYS_ADMIN" in held else ()
    return [name for name in OBSERVING if name not in held and name not in covered]


def in_user_namespace() -> bool:
    """Return whether this process has capabilities in a user namespace only; False where that is not known."""
    try:
        return _OWN_USER_NAMESPACE.stat().st_ino != _HOST_USER_NAMESPACE
    except OSError:
        return False


def remedy() -> str:
    """Return what to do where the kernel does not permit BPF or perf events."""
    if in_user_namespace():
        return LEAVE_USER_NAMESPACE
    return GRANT if missing() else PERMIT


def drop(keep: Collection[str]) -> frozenset[str]:
    """Gives up, for good and for every program started from here, all capabilities but those in `keep`.

    Returns what is left. Capabilities belong to threads and new threads inherit them: call this before starting any
    (RuntimeError otherwise). OSError when the kernel refuses.
    """
    if sum(1 for _ in Path("/proc/self/task").iterdir()) > 1:
        raise RuntimeError("capabilities have to be dropped before the first thread starts")
    libc = ctypes.CDLL(None, use_errno=True)
    left = effective() & frozenset(keep)
    mask = sum(1 << CAPABILITIES[name] for name in left)
    number = 0
    while libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
        if not mask >> number & 1:
            # Without CAP_SETPCAP this is refused; no_new_privs and the sets below bind us then.
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
        number += 1
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs")
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header, sets = struct.pack("Ii", _VERSION_3, 0), struct.pack("6I", low, low, 0, high, high, 0)
    _check(libc.capset(header, sets), "drop capabilities")
    return left


def pass_on() -> None:
    """Has programs that this thread starts keep its capabilities also where it is not root's (ambient, Linux 4.3).

    Does nothing where the kernel refuses: what is started has fewer rights then, and reports that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    held = [CAPABILITIES[name] for name in effective(Path("/proc/thread-self/status"))]
    mask = sum(1 << number for number in held)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header, sets = struct.pack("Ii", _VERSION_3, 0), struct.pack("6I", low, low, low, high, high, high)
    if os.geteuid() and not libc.capset(header, sets):
        for number in held:
            libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0)


def _check(result: int, doing: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot {doing}: {os.strerror(code)}")
