"""Which processes use which libraries: found at start, followed as they map, fork, exec and end.

The kernel's records of mapped files (watch.py) are hints where to look; what counts is what a process has mapped when
looked at (mappings.py). A lost hint is therefore no lost process: everything is looked at again from time to time.
"""

from __future__ import annotations

import bisect
import logging
import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from exporter.bpf.attachments import Attachments
from exporter.bpf.library import Closeable, Gone, Interest, Library
from exporter.bpf.mappings import IteratorLister, Lister, Mapping, ProcLister
from exporter.bpf.native import BpfError
from exporter.bpf.status import LATENCY_BOUNDS, Status
from exporter.bpf.users import Users
from exporter.bpf.watch import Batch, Watch
from exporter.model import Distribution, Sample

__all__ = ["Closeable", "Interest", "Library", "Status", "Targets"]

MAX_HINTS = 1 << 14
MAX_PLACES = 1 << 12
MAX_DULL = 1 << 13

_FORK_DELAY, _KNOWN_DELAY, _GONE_DELAY = 0.1, 0.2, 0.1
_LONGEST_BACKOFF = 0.5
_SHORTEST_RESYNC = 1.0
_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
_COSTLY = 0.02
_ATTEMPTS = 3
_JOIN_SECONDS = 4.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Hint:
    """A process to look at. Whatever it newly mapped was mapped at `since_ns` or later."""

    since_ns: int
    due: float
    places: list[tuple[int, bytes]] = field(default_factory=list)
    attempts: int = 0


class Targets:
    """Finds the libraries that interests want, and tells them of the processes that use them, from a thread of its own.

    `grace` is how long a library without users stays attached to, `resync` how often everything is looked at; seconds.
    """

    def __init__(self, proc: Path = Path("/proc"), *, grace: float = 10.0, resync: float = 60.0) -> None:
        self._proc, self._grace, self._resync = proc, grace, resync
        self._interests: list[Interest] = []
        self._hints: dict[int, _Hint] = {}
        self._rest_until: dict[int, float] = {}
        self._dull: set[bytes] = set()
        self._latencies = [0] * (len(LATENCY_BOUNDS) + 1)
        self._latency_sum = 0.0
        self._lost = self._late = 0
        self._unsure = False
        self._last_resync = self._next_resync = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._status = Status()
        self.scanned = threading.Event()
        """Set once the processes that ran at start have been looked at, and their libraries attached to."""

    def want(self, interest: Interest) -> None:
        """Registers an interest; RuntimeError once started."""
        if self._thread is not None:
            raise RuntimeError("an interest has to be registered before targets are started")
        self._interests.append(interest)

    def start(self) -> None:
        """Watches from now on, and looks at all processes in the background. BpfError where the kernel refuses."""
        self._poll = select.epoll()
        self._wake = os.eventfd(0)
        self._poll.register(self._wake, select.EPOLLIN)
        try:
            self._watch = Watch(self._poll)
        except BaseException:
            os.close(self._wake)
            self._poll.close()
            raise
        self._lister = _choose_lister(self._proc)
        self._users = Users(self._poll)
        self._attachments = Attachments(self._interests, self._proc, self._grace)
        self._thread = threading.Thread(target=self._run, name="targets", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Detaches from everything. Interests are not told that processes ended, for they did not."""
        if self._thread is None or self._closing.is_set():
            return
        os.eventfd_write(self._wake, 1)
        self._closing.set()
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            log.error("the search for libraries hangs in a read; leaving without it")

    @property
    def status(self) -> Status:
        return self._status

    def collect(self) -> Iterable[Sample]:
        """Samples about the search itself."""
        return self._status.samples()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                started = time.thread_time()
                try:
                    self._step(self._wait())
                except Exception:
                    log.exception("looking for libraries failed; everything is looked at again soon")
                    self._resync_soon()
                self._publish()
                busy = time.thread_time() - started
                self._closing.wait(min(max(busy, _PAUSE), _LONGEST_PAUSE))  # others need this CPU too
        finally:
            self._close_all()

    def _wait(self) -> list[int]:
        """Sleeps until something happens or is due; returns the processes that ended."""
        due = [hint.due for hint in self._hints.values()]
        until = min([self._next_resync, *due]) - time.monotonic()
        ended = []
        for descriptor, event in self._poll.poll(max(0.0, min(until, self._attachments.release_idle()))):
            pid = self._users.pid_of(descriptor)
            if pid is not None:
                ended.append(pid)
            elif event & (select.EPOLLHUP | select.EPOLLERR):
                self._watch.drop(descriptor)
        return ended

    def _step(self, ended: list[int]) -> None:
        for pid in ended:
            self._users.end(pid)
        batch = self._watch.drain()
        if batch.lost:
            self._lose(batch.lost)
        self._note(batch)
        if time.monotonic() >= self._next_resync:
            self._look_at_all()
        else:
            self._look()

    def _note(self, batch: Batch) -> None:
        now = time.monotonic()
        for mapped in batch.mapped:
            if mapped.file not in self._dull:
                self._hint(mapped.pid, mapped.time, now, (mapped.address, mapped.file))
            elif mapped.pid in self._users:  # perhaps it runs another program now
                self._hint(mapped.pid, mapped.time, now + _KNOWN_DELAY)
        for fork in sorted(batch.forks):
            if (
                fork.parent in self._users or fork.parent in self._hints
            ):  # most run another program at once: wait for it
                self._hint(fork.pid, fork.time, now + _FORK_DELAY)

    def _hint(self, pid: int, since_ns: int, due: float, place: tuple[int, bytes] | None = None) -> None:
        hint = self._hints.get(pid)
        if hint is None:
            if len(self._hints) >= MAX_HINTS:
                self._lose(1)
                return
            hint = self._hints[pid] = _Hint(since_ns, due)
        hint.since_ns = min(hint.since_ns, since_ns)
        hint.due = max(min(hint.due, due), self._rest_until.get(pid, 0.0))
        if place and len(hint.places) < MAX_PLACES:
            hint.places.append(place)

    def _look(self) -> None:
        """Looks at the processes whose hints are due."""
        started = time.monotonic()
        self._rest_until = {pid: until for pid, until in self._rest_until.items() if until > started}
        due = {pid: hint for pid, hint in self._hints.items() if hint.due <= started}
        if not due:
            return
        for pid in due:
            del self._hints[pid]
        began = time.thread_time()
        mappings = _by_process(self._lister.of(due))
        cost = time.thread_time() - began
        for pid, hint in due.items():
            self._look_at(pid, mappings.get(pid, []), hint)
            if cost > _COSTLY:  # one that maps endlessly, or very much, gets a tenth of our time
                self._rest_until[pid] = time.monotonic() + min(10 * cost, _LONGEST_BACKOFF)

    def _look_at(self, pid: int, mappings: list[Mapping], hint: _Hint) -> None:
        gone = False
        since_ns = 0 if self._unsure else hint.since_ns
        for mapping in mappings:
            try:
                if self._take(mapping, since_ns) and hint.places:
                    self._observe(time.monotonic_ns() - hint.since_ns)
            except Gone:
                gone = True
        if gone and hint.attempts < _ATTEMPTS:
            self._hint(pid, hint.since_ns, time.monotonic() + _GONE_DELAY)
            self._hints[pid].attempts = hint.attempts + 1
        self._remember_dull(mappings, hint.places)

    def _take(self, mapping: Mapping, since_ns: int) -> bool:
        """Whether this made the process a user of a library it was not known to use."""
        self._users.see(mapping.pid, mapping.image)
        attached = self._attachments.of(mapping)
        return attached is not None and self._users.use(mapping.pid, mapping.image, attached, since_ns)

    def _remember_dull(self, mappings: list[Mapping], places: list[tuple[int, bytes]]) -> None:
        """Records of files that turned out to be of no interest will not be looked into again."""
        dull = [mapping for mapping in mappings if self._attachments.is_dull(mapping.file)]
        dull.sort(key=lambda mapping: mapping.start)
        starts = [mapping.start for mapping in dull]
        for address, file in places:
            at = bisect.bisect_right(starts, address) - 1
            if at >= 0 and address < dull[at].end:
                if len(self._dull) >= MAX_DULL:
                    self._dull.clear()
                self._dull.add(file)

    def _look_at_all(self) -> None:
        """Looks at every process: at start, when records were lost, and from time to time."""
        hints, self._hints = self._hints, {}
        attached = len(self._attachments)
        self._watch.follow_cpus()
        self._attachments.retry()
        mappings = self._lister.everything()
        for mapping in mappings:
            hint = hints.get(mapping.pid)
            since_ns = hint.since_ns if hint and not self._unsure else mapping.started
            try:
                self._late += self._take(mapping, since_ns) and not hint and self.scanned.is_set()
            except Gone:
                self._hint(mapping.pid, since_ns, time.monotonic() + _GONE_DELAY)
        running = {mapping.pid for mapping in mappings}
        for pid in self._users.without_pidfd():
            if pid not in running:
                self._users.end(pid)
        if len(self._attachments) > attached:  # perhaps under the name of a file that held nothing before
            self._dull.clear()
        self._unsure = False
        self._last_resync = time.monotonic()
        self._next_resync = self._last_resync + self._resync
        self.scanned.set()

    def _lose(self, count: int) -> None:
        """Records are missing: what is found before the next look at everything may have been mapped at any time."""
        self._lost += count
        self._unsure = True
        self._resync_soon()

    def _resync_soon(self) -> None:
        self._next_resync = min(self._next_resync, self._last_resync + _SHORTEST_RESYNC)

    def _observe(self, latency_ns: int) -> None:
        seconds = latency_ns / 1e9
        self._latencies[bisect.bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._latency_sum += seconds

    def _publish(self) -> None:
        attachments = self._attachments
        self._status = Status(
            self._lister.name,
            tuple((attached.library.path, len(attached.users)) for attached in attachments),
            Distribution(LATENCY_BOUNDS, tuple(self._latencies), self._latency_sum),
            attachments.examined,
            attachments.unreadable,
            attachments.refused,
            attachments.failed,
            self._lost,
            self._late,
        )

    def _close_all(self) -> None:
        self._attachments.close()
        self._users.close()
        self._watch.close()
        self._lister.close()
        self._poll.close()
        os.close(self._wake)


def _choose_lister(proc: Path) -> Lister:
    try:
        return IteratorLister()
    except BpfError as error:
        log.info(
            "listing mappings from /proc: one file under several overlay mounts may be taken for several: %s", error
        )
        return ProcLister(proc)


def _by_process(mappings: Iterable[Mapping]) -> dict[int, list[Mapping]]:
    grouped = defaultdict(list)
    for mapping in mappings:
        grouped[mapping.pid].append(mapping)
    return grouped
