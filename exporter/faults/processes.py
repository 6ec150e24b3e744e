"""Processes that jobs depend on: the services of NVIDIA's driver, and GPU processes that are stuck in the kernel."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from exporter import pid_namespace
from exporter.faults import metrics
from exporter.model import Sample

SERVICES: Mapping[str, str] = {
    "nv-fabricmanage": "fabricmanager",
    "nvidia-imex": "imex",
    "nvidia-persiste": "persistenced",
}
"""Services by the kernel's name of their process, of which it keeps 15 bytes."""
INTERVAL = 60.0
"""Seconds between two looks, and those for which a thread has to wait to count."""
MOST_PROCESSES, MOST_THREADS = 256, 1024
_USER = 1000
"""First uid of people: a process of theirs is no service, whatever its name."""
_CAP_SYS_ADMIN = 1 << 21
_STATE = re.compile(rb"\) ([A-Za-z]) ")
_ENDED = re.compile(rb"^State:\t[ZX]", re.MULTILINE)
_PIDS = re.compile(rb"^NSpid:((?:\t[0-9]+)+)$", re.MULTILINE)
_CAPABILITIES = re.compile(rb"^CapEff:\t([0-9a-f]{1,16})$", re.MULTILINE)
_SWITCHES = re.compile(rb"^(?:non)?voluntary_ctxt_switches:\t([0-9]{1,20})$", re.MULTILINE)


class _Waiting(NamedTuple):
    """A thread in state D: how often it was switched, and the monotonic time at which that was first seen."""

    switches: tuple[bytes, ...]
    since: float


class ProcessScan:
    """Looks at processes once a minute.

    `gpu_processes` returns the pids that NVML lists. One that is no longer listed is followed until it ends, for NVML
    may hang with it.
    """

    def __init__(
        self,
        proc: Path,
        gpu_processes: Callable[[], Iterable[int]],
        is_host: Callable[[], bool] = pid_namespace.is_host,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc, self._gpu_processes, self._is_host, self._clock = proc, gpu_processes, is_host, clock
        self._followed: dict[int, int] = {}
        self._waiting: dict[Path, _Waiting] = {}
        self._looked_at: float | None = None
        self._last: list[Sample] = []

    def samples(self) -> list[Sample]:
        """Return the samples of the last look. Raises OSError without NVIDIA's driver or the host's PID namespace."""
        (self._proc / "driver/nvidia/version").stat()
        if not self._is_host():
            raise OSError(errno.EPERM, pid_namespace.REFUSAL, str(self._proc))
        now = self._clock()
        if self._looked_at is None or now - self._looked_at >= INTERVAL:
            self._looked_at = now
            self._last = [*self._services(), metrics.BLOCKED.sample(self._blocked(now))]
        return self._last

    def _services(self) -> Iterator[Sample]:
        running = {name for path in self._proc.iterdir() if (name := _service(path))}
        for name in SERVICES.values():
            yield metrics.SERVICE.sample(int(name in running), {"service": name})

    def _blocked(self, now: float) -> int:
        """Return how many GPU processes have a thread that has not run since an earlier look, a minute ago or more."""
        for pid in self._gpu_processes():
            if pid not in self._followed and len(self._followed) < MOST_PROCESSES and (inode := self._inode(pid)):
                self._followed[pid] = inode
        self._followed = {pid: inode for pid, inode in self._followed.items() if self._inode(pid) == inode}
        before, self._waiting = self._waiting, {}
        return sum(self._is_blocked(pid, before, now) for pid in self._followed)

    def _inode(self, pid: int) -> int:
        """Return the inode of the process' folder, which another process with its pid does not have; 0 without one."""
        try:
            return (self._proc / str(pid)).stat().st_ino
        except OSError:
            return 0

    def _is_blocked(self, pid: int, before: Mapping[Path, _Waiting], now: float) -> bool:
        found = False
        try:
            for number, thread in enumerate((self._proc / str(pid) / "task").iterdir()):
                if number >= MOST_THREADS:
                    break
                if (switches := uninterruptible(thread)) is None:
                    continue
                known = before.get(thread)
                since = known.since if known and known.switches == switches else now
                self._waiting[thread] = _Waiting(switches, since)
                found = found or now - since >= INTERVAL
        except OSError:
            return False  # it has ended
        return found


def _service(path: Path) -> str:
    """Return the service that a folder of /proc is the process of, or nothing."""
    if not path.name.isdecimal():
        return ""
    try:
        name = SERVICES.get((path / "comm").read_text(errors="replace").rstrip("\n"), "")
        return name if name and path.stat().st_uid < _USER and _may_serve((path / "status").read_bytes()) else ""
    except OSError:
        return ""


def _may_serve(status: bytes) -> bool:
    """Return whether a process of a system user can be a service of the driver, by its /proc/PID/status.

    One in a container (a PID namespace of its own) can if it has CAP_SYS_ADMIN: root of any other container is as free
    to choose its name as any user. One that has ended, and that nobody has waited for, is none.
    """
    pids, capabilities = _PIDS.search(status), _CAPABILITIES.search(status)
    privileged = capabilities is not None and int(capabilities[1], 16) & _CAP_SYS_ADMIN
    return not _ENDED.search(status) and bool(privileged or pids is None or len(pids[1].split()) == 1)


def uninterruptible(thread: Path) -> tuple[bytes, ...] | None:
    """Return how often a thread in state D was switched, None in any other state. Raises OSError when it has ended."""
    found = _STATE.search((thread / "stat").read_bytes().rpartition(b"(")[2])
    if found is None or found[1] != b"D":
        return None
    return tuple(_SWITCHES.findall((thread / "status").read_bytes()))
