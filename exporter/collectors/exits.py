"""Ends of processes that use a GPU: exit status, or signal."""

from __future__ import annotations

import signal
import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from typing import Protocol

from exporter.bpf import object_path
from exporter.bpf.events import Events
from exporter.bpf.libbpf import BpfError, Link, Object
from exporter.bpf.library import GPU_SYMBOLS, Library
from exporter.bpf.native import not_started
from exporter.faults import categories
from exporter.faults.ledger import Fault
from exporter.model import Kind, Metric, Sample
from exporter.node import Node

EXITS = Metric(
    "gpu.process.exits",
    "Processes that ended while the library of the CUDA driver, or of AMD's HIP, was mapped, by status: exit status, "
    "or the signal that killed the process. Without pid, so that counts survive a restart of the job; at most 1,024 "
    "series. Processes that ended before discovery found them, as by a crash in the first tens of milliseconds, are "
    "not counted.",
    Kind.COUNTER,
    labels=("status", "comm", "pod", "namespace", "container", "slurm_job_id"),
)
UNWATCHED = Metric(
    "gpu.process.exits.unwatched",
    "GPU processes not watched for their end, because the table of watched processes was full or the process ended "
    "first. Processes that ended before discovery found them are not counted.",
    Kind.COUNTER,
)
CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP")
"""Nobody sends these to stop a job: they are faults of software or of what it runs on."""
MOST_SERIES = 1024
_MOST_REMEMBERED = 16_384


def create(node: Node) -> Exits:
    return Exits(node)


class ProcessEnd(Protocol):
    """struct process_end of bpf/exits.bpf.c: the end of a watched process, with its status as wait(2) has it."""

    ended: int
    tgid: int
    status: int


class _Nothing:
    """There is no probe in the library: it only marks the processes that use a GPU."""

    def close(self) -> None:
        """Nothing was attached."""


class Exits:
    """One tracepoint for the whole node; the kernel records only processes that were found to use a GPU."""

    name = "exits"

    def __init__(self, node: Node) -> None:
        self.node = node
        self.counts: OrderedDict[tuple[tuple[str, str], ...], int] = OrderedDict()
        self.users: dict[int, tuple[tuple[str, str], ...]] = {}
        self.unwatched = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Load the program, and attach it.

        Raises Unavailable where BPF cannot be used or the kernel has no BTF, and BpfError for other failures.
        """
        try:
            self.object = Object(object_path(self.name))
        except BpfError as error:
            raise not_started("ends of processes cannot be watched", error) from error
        try:
            self._link: Link = self.object.programs["process_exit"].attach()
        except BpfError as error:
            self.object.close()
            raise not_started("ends of processes cannot be watched", error) from error
        self._events = Events()
        self._events.add(self.object.maps["process_ends"], self.ended)
        self._events.start("exits", gather=0.02)
        self.node.targets.want(self)

    def collect(self) -> Iterator[Sample]:
        """Yield the counts. Raises Unavailable, or BpfError, where processes of the driver are not searched for."""
        self.node.targets.require()
        with self._lock:
            counts = list(self.counts.items())
        yield from (EXITS.sample(count, dict(labels)) for labels, count in counts)
        yield UNWATCHED.sample(self.unwatched)
        yield from self._events.collect()

    def close(self) -> None:
        self._link.close()
        self._events.close()
        self.object.close()

    # The processes that use a GPU (exporter.bpf.library.Interest).

    @property
    def symbols(self) -> Collection[str]:
        return GPU_SYMBOLS

    def attach(self, library: Library) -> _Nothing:
        return _Nothing()

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        self.node.processes.forget(pid)  # another one may have had the pid a moment ago
        labels = self.node.processes.labels(pid)
        user = tuple((name, value) for name, value in labels.items() if name in EXITS.labels)
        with self._lock:  # an end that the kernel records at once waits for the labels
            if len(self.users) < _MOST_REMEMBERED and self._watch(pid):
                self.users[pid] = user
            else:
                self.unwatched += 1

    def processes_ended(self, pids: Collection[int]) -> None:
        """The kernel's own record, which has the status, may come later than this. There is none of a process that is
        still watched: it ended before it was, and the next one with its pid is another.
        """
        early = self.object.maps["watched"].take(pids)
        self.unwatched += len(early)
        with self._lock:
            for pid, _ in early:
                self.users.pop(pid, None)

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        """Stops watching processes that now run other programs, with or without a GPU. Returns no pids: no calls are
        observed.
        """
        self.object.maps["watched"].take(pids)
        with self._lock:
            for pid in pids:
                self.users.pop(pid, None)
        return ()

    def _watch(self, pid: int) -> bool:
        """Has the kernel record the end of a process; false where the table is full."""
        try:
            self.object.maps["watched"].set(pid, 1)
        except BpfError:
            return False
        return True

    def ended(self, end: ProcessEnd) -> None:
        status = status_text(end.status)
        with self._lock:
            who = self.users.pop(end.tgid, ())
            labels = (("status", status), *who)
            self.counts[labels] = self.counts.pop(labels, 0) + 1
            if len(self.counts) > MOST_SERIES:
                self._make_room()
        if status in CRASHES:
            when = self.node.clock.wall_ns(end.ended) / 1e9
            component = dict(who).get("comm", "") or "unknown"
            self.node.faults.add(Fault(categories.SOFTWARE, component, f"process_{status.lower()}", when))

    def _make_room(self) -> None:
        """Forgets the oldest series of the workload that has most, so that none pushes out those of others."""
        workloads = [tuple(pair for pair in labels if pair[0] not in ("status", "comm")) for labels in self.counts]
        [(largest, _)] = Counter(workloads).most_common(1)
        del self.counts[next(labels for labels, it in zip(self.counts, workloads, strict=True) if it == largest)]


def status_text(status: int) -> str:
    """A status of wait(2): "0" to "255", or the name of the signal."""
    number = status & 0x7F
    if not number:
        return str(status >> 8 & 0xFF)
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
