"""The labels of processes by pid, read once from /proc and kept."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path

from exporter import process_memory
from exporter.background.patience import Unanswered
from exporter.model import Labels, Sample
from exporter.resolve import cgroup, service, slurm, workload
from exporter.resolve.podlogs import ContainerNames, PodLogs

_CGROUP_BYTES = 65_536
_ENVIRON_BYTES = 1_048_576
_COMM_BYTES = 64
"""The kernel keeps 15 bytes of a process's name and 63 of a kernel worker's."""
_AT_ONCE = 1 << 16
_STAT = re.compile(rb"\) (?:\S+ ){19}([0-9]+) ", re.DOTALL)


OfPod = Callable[[str, str], Labels]
"""Function that returns the labels of a pod's workload by namespace and name."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The labels of a process; `start_time` in clock ticks after boot (None: it had ended), `pod_uid` from its cgroup.

    `resource` are OpenTelemetry resource attributes that are not labels, `workload` the labels of the process's job.
    """

    labels: Labels
    start_time: int | None
    pod_uid: str = ""
    resource: Labels = field(default_factory=dict)
    workload: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Entry:
    identity: Identity
    checked: float
    seen: float
    answered: bool
    """True if the kernel showed the environment, or that the process has none."""


class ProcessTable:
    """An exporter.node.Processes from /proc. Safe from any thread.

    A process is identified by pid and start time: the start time of an entry older than `recheck` seconds is compared
    with that of the pid's present process, which detects a reused pid even without a report of the first process's
    end. The `limit` most recently used entries are kept. Names of Kubernetes are read again during the first minute,
    because the kubelet writes them after the container has started. While a process keeps its memory map locked,
    what its environment has is missing, and is read again.
    """

    SETTLED = 60.0

    def __init__(
        self,
        proc: Path = Path("/proc"),
        logs: Path = Path("/var/log"),
        limit: int = 16_384,
        recheck: float = 5.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc, self._names, self._limit, self._recheck, self._now = proc, PodLogs(logs), limit, recheck, now
        self._lock = threading.Lock()
        self._known: OrderedDict[int, _Entry] = OrderedDict()

    def labels(self, pid: int) -> Labels:
        """Return the known process labels of a pid, at least `pid`. Never raises."""
        return self.identity(pid).labels

    def named(self, pid: int, of_pod: OfPod) -> Labels:
        """Return the known process labels of a pid, with its workload. Never raises."""
        identity = self.identity(pid)
        name = _job(identity, of_pod).get("workload")
        return {**identity.labels, "workload": name} if name else identity.labels

    def identity(self, pid: int) -> Identity:
        """Return labels, start time and resource of a pid, as last read while the process lived. Never raises."""
        now = self._now()
        with self._lock:
            known = self._known.get(pid)
            if known:
                self._known.move_to_end(pid)
        if known and now - known.checked < self._recheck:
            return known.identity
        started = start_time(self._proc, pid)
        same = known if known and known.identity.start_time == started else None
        if known and (started is None or (same and same.answered and not self._nameless(same, now))):
            entry = replace(known, checked=now)
        else:
            entry = self._entry(pid, started, same, now)
        with self._lock:
            self._known[pid] = entry
            self._known.move_to_end(pid)
            while len(self._known) > self._limit:
                self._known.popitem(last=False)
        return entry.identity

    def forget(self, pid: int) -> None:
        """Drop a pid that has ended or runs another program now; the next query reads /proc again."""
        with self._lock:
            self._known.pop(pid, None)

    def jobs(self, of_pod: OfPod = lambda namespace, pod: {}) -> Iterator[Sample]:
        """Yield container and job of each process that was looked at within five minutes, as far as they are known.

        `of_pod` returns the labels of a pod's workload by namespace and name. They count before what the process's
        variables name, which is its owner's claim.
        """
        since = self._now() - workload.SECONDS
        with self._lock:
            recent = takewhile(lambda entry: entry.checked >= since, reversed(self._known.values()))
            known = list(islice((it.identity for it in recent if _has_info(it.identity)), workload.MOST))
        for identity in known:
            yield workload.INFO.sample(1, {**identity.labels, **_job(identity, of_pod)})

    def _nameless(self, entry: _Entry, now: float) -> bool:
        identity = entry.identity
        return bool(identity.pod_uid) and "pod" not in identity.labels and now - entry.seen < self.SETTLED

    def _entry(self, pid: int, started: int | None, before: _Entry | None, now: float) -> _Entry:
        """Return what is read of a process, with what was known `before` of the same one where it does not answer."""
        seen = before.seen if before else now
        if started is None:  # there is nothing else to read
            return _Entry(Identity({"pid": str(pid)}, None), now, seen, answered=True)
        try:
            environ = _whole(process_memory.read(self._proc, pid, "environ", _ENVIRON_BYTES))
        except Unanswered:
            found = self._read(pid, started, b"")
            if before:
                known = before.identity
                labels, resource = {**known.labels, **found.labels}, {**found.resource, **known.resource}
                found = replace(found, labels=labels, resource=resource, workload=known.workload)
            return _Entry(found, self._now(), seen, answered=False)
        except OSError:
            environ = b""
        return _Entry(self._read(pid, started, environ), now, seen, answered=True)

    def _read(self, pid: int, started: int, environ: bytes) -> Identity:
        folder = f"{self._proc}/{pid}"
        comm = _read(f"{folder}/comm", _COMM_BYTES)
        group = cgroup.parse(_read(f"{folder}/cgroup", _CGROUP_BYTES).decode("utf-8", "replace"))
        in_kubernetes = group.container_id or group.pod_uid
        names = self._names.names(group.container_id, group.pod_uid) if in_kubernetes else ContainerNames()
        job = group.slurm_job_id or slurm.job_id(environ)
        labels = {
            "pid": str(pid),
            "comm": printable(comm.removesuffix(b"\n")),
            "container_id": group.container_id,
            "pod": names.pod,
            "namespace": names.namespace,
            "container": names.container,
            "slurm_job_id": job,
        }
        known = {name: value for name, value in labels.items() if value}
        resource, job_labels = service.resource(known, environ), workload.workload(environ, job)
        return Identity(known, started, group.pod_uid, resource, job_labels)


def _whole(environ: bytes) -> bytes:
    """Return an environment block, without its last variable where the block was cut: half a number is another one."""
    return environ if len(environ) < _ENVIRON_BYTES else environ[: environ.rfind(b"\0") + 1]


def _job(identity: Identity, of_pod: OfPod) -> Labels:
    own = of_pod(identity.labels.get("namespace", ""), identity.labels.get("pod", ""))
    return workload.in_pod(identity.workload, own)


def _has_info(identity: Identity) -> bool:
    return bool(identity.workload) or "container_id" in identity.labels


def start_time(proc: Path, pid: int) -> int | None:
    """Return a process's start time in clock ticks after boot (field 22 of /proc/PID/stat), None without a process.

    The name in field 2 may contain any text, also `) R 1 `: fields are counted after the last parenthesis.
    """
    stat = _read(f"{proc}/{pid}/stat", 4096)
    found = _STAT.match(stat, stat.rfind(b") "))
    return int(found[1]) if found else None


def printable(name: bytes) -> str:
    """Return a process's name as text, with bytes that are not UTF-8 and unprintable characters escaped."""
    text = name.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _read(path: str, limit: int) -> bytes:
    """Return the first `limit` bytes of a file, or nothing when the process has ended or access is denied."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while limit > 0 and (part := os.read(file, min(limit, _AT_ONCE))):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(file)
