"""Which processes use which libraries: found at start, followed as they map, fork, exec and end.

The kernel's records of mapped files (watch.py) are hints where to look; what counts is what a process has mapped when
looked at (mappings.py). A lost hint is therefore no lost process: everything is looked at again from time to time.
"""

from __future__ import annotations

import bisect
import errno
import logging
import operator
import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from exporter import descriptors
from exporter.bpf.apart import WORKER
from exporter.bpf.attachments import Attachments
from exporter.bpf.hints import Hint, Hints
from exporter.bpf.library import Closeable, Interest, Library, Vanished, Wait
from exporter.bpf.mappings import IteratorLister, Lister, Mapping, ProcLister
from exporter.bpf.native import BpfError
from exporter.bpf.status import LATENCY_BOUNDS, SOURCE_AGE, Status
from exporter.bpf.users import Users
from exporter.bpf.watch import Batch, Watch
from exporter.model import Distribution, Sample

__all__ = ["Closeable", "Interest", "Library", "Status", "Targets"]

HOST_PID_NAMESPACE = 0xEFFFFFFC
"""Its inode number on every machine (PROC_PID_INIT_INO of the kernel)."""
MAX_DULL = 1 << 13

_FORK_DELAY = 0.1
"""Seconds until a forked process is looked at: most run another program by then."""
_KNOWN_DELAY, _VANISHED_DELAY, _WAIT_DELAY = 0.2, 0.1, 2.0
_LONGEST_BACKOFF = 0.5
_SHORTEST_RESYNC = 1.0
_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
_COSTLY = 0.02
_SHARE, _LONGEST_REST = 0.1, 2.0
"""Where one process cannot be listed without all others: how much of a processor that takes, how long it waits."""
_ATTEMPTS = 3
_JOIN_SECONDS = 4.0
_START = operator.attrgetter("start")

log = logging.getLogger(__name__)


class Targets:
    """Finds the libraries that interests want and the processes that use them, and calls the interests from a thread.

    `grace` is how long a library without users stays attached to, `resync` how often everything is looked at; seconds.
    """

    def __init__(self, proc: Path = Path("/proc"), *, grace: float = 10.0, resync: float = 60.0) -> None:
        self._proc, self._grace, self._resync = proc, grace, resync
        self._interests: list[Interest] = []
        self._hints = Hints()
        self._dull: set[bytes] = set()
        self._latencies = [0] * (len(LATENCY_BOUNDS) + 1)
        self._latency_sum = 0.0
        self._lost = self._late = 0
        self._unsure = False
        self._last_resync = self._next_resync = self._next_release = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_listing = 0.0
        self._status = Status()
        self.scanned = threading.Event()
        """Set once the processes that ran at start have been looked at, and their libraries attached to."""

    def want(self, interest: Interest) -> None:
        """Registers an interest; RuntimeError once started."""
        if self._thread is not None:
            raise RuntimeError("an interest has to be registered before targets are started")
        self._interests.append(interest)

    def start(self) -> None:
        """Watches from now on, and looks at all processes in the background; does nothing if nobody wants anything.

        BpfError where the kernel refuses, or where pids of other processes would mean others here.
        """
        if not self._interests:
            self.scanned.set()
            return
        if Path("/proc/self/ns/pid").stat().st_ino != HOST_PID_NAMESPACE:
            raise BpfError(errno.ENOTSUP, "not in the host's PID namespace: use hostPID: true or --pid=host")
        descriptors.raise_limit()
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
        self._last_resync = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="targets", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """Detaches from everything; False where that has not happened in time.

        Interests hear nothing of ended processes, for those have not ended.
        """
        if self._thread is None:
            return True
        if not self._closing.is_set():
            os.eventfd_write(self._wake, 1)
            self._closing.set()
            WORKER.interrupt()
            self._thread.join(_JOIN_SECONDS)
            if self._thread.is_alive():
                log.error("the search for libraries hangs; the kernel detaches from them when this process has ended")
        return not self._thread.is_alive()

    @property
    def status(self) -> Status:
        return self._status

    def collect(self) -> Iterable[Sample]:
        """Samples about the search itself."""
        yield from self._status.samples()
        if self._thread is not None:
            yield SOURCE_AGE.sample(time.monotonic() - self._last_resync, {"source": "processes"})

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                started = time.thread_time()
                try:
                    self._wait()
                    self._step()
                except Exception:
                    log.exception("looking for libraries failed; everything is looked at again soon")
                    self._resync_soon()
                self._publish()
                busy = time.thread_time() - started
                self._closing.wait(min(max(busy, _PAUSE), _LONGEST_PAUSE))  # others need this CPU too
        finally:
            self._close_all()

    def _wait(self) -> None:
        """Sleeps until something happens or is due; takes note of the processes that ended."""
        look = max(self._hints.next_due(), self._next_listing)
        until = min(self._next_resync, self._next_release, self._users.next_due, look) - time.monotonic()
        for descriptor, event in self._poll.poll(max(0.0, until)):
            pid = self._users.pid_of(descriptor)
            if pid is not None:
                self._users.gather([pid])  # at once: its descriptor reports an end only once
            elif event & (select.EPOLLHUP | select.EPOLLERR):
                self._watch.drop(descriptor)

    def _step(self) -> None:
        batch = self._watch.drain()
        if batch.lost:
            self._lose(batch.lost)
        self._note(batch)
        if time.monotonic() >= self._next_resync:
            self._users.end(self._attachments)
            self._look_at_all()
        elif time.monotonic() >= self._next_listing:
            self._look()
        if time.monotonic() >= self._users.next_due:
            self._users.end(self._attachments)
        self._next_release = self._attachments.release_idle()

    def _note(self, batch: Batch) -> None:
        for mapped in batch.mapped:
            if mapped.file not in self._dull:
                self._hint(mapped.pid, mapped.time, 0.0, (mapped.address, mapped.file))
            elif mapped.pid in self._users:  # perhaps it runs another program now
                self._hint(mapped.pid, mapped.time, _KNOWN_DELAY)
        self._users.replace(batch.execs, self._attachments, self._hints)
        for fork in sorted(batch.forks):
            if fork.parent in self._users or fork.parent in self._hints:
                self._hint(fork.pid, fork.time, _FORK_DELAY)

    def _hint(self, pid: int, since_ns: int, delay: float, place: tuple[int, bytes] | None = None) -> None:
        if not self._hints.add(pid, since_ns, delay, place):
            self._lose(1)

    def _look(self) -> None:
        """Looks at the processes of the hints that are due."""
        due = self._hints.take_due()
        if not due:
            return
        began = time.thread_time()
        self._users.listed_ns = time.monotonic_ns()
        mappings = _by_process(self._lister.of(due))
        cost = time.thread_time() - began
        if not self._lister.one_process:
            self._next_listing = time.monotonic() + min(cost / _SHARE, _LONGEST_REST)
        missed = {pid for pid in due if pid not in mappings and not os.access(f"{self._proc}/{pid}", os.F_OK)}
        self._users.gather((), missed)
        if self._users.gathered(mappings):
            self._users.end(self._attachments)
        self._users.see((pid, found[-1].image) for pid, found in mappings.items())
        for pid, hint in due.items():
            self._look_at(pid, mappings.get(pid, []), hint)
            if pid not in mappings and pid not in missed and hint.attempts < _ATTEMPTS:  # it is about to end
                self._hints.add(pid, hint.since_ns, _VANISHED_DELAY, attempts=hint.attempts + 1)
            if cost > _COSTLY:  # one that maps endlessly, or very much, gets a tenth of our time
                self._hints.rest(pid, min(10 * cost, _LONGEST_BACKOFF))

    def _look_at(self, pid: int, mappings: list[Mapping], hint: Hint) -> None:
        vanished = waits = False
        since = None if self._unsure else hint
        for mapping in mappings:
            if self._closing.is_set():
                return
            try:
                if self._take(mapping, 0, since) and hint.places:
                    self._observe(time.monotonic_ns() - hint.since_ns)
            except Vanished:
                vanished = True
            except Wait:
                waits = True
        if waits:
            self._hints.add_again(pid, hint, _WAIT_DELAY, hint.attempts)
        elif vanished and hint.attempts < _ATTEMPTS:
            self._hints.add_again(pid, hint, _VANISHED_DELAY, hint.attempts + 1)
        self._remember_dull(mappings, hint.places)

    def _take(self, mapping: Mapping, since_ns: int, hint: Hint | None) -> bool:
        """Whether this made the process a user of a library it was not known to use.

        Without a hint it has had what it mapped since `since_ns` at the earliest.
        """
        self._users.see([(mapping.pid, mapping.image)])  # also one that changes while it is listed
        if self._attachments.is_dull(mapping.file):
            return False
        with self._attachments.on_account_of(mapping.pid):
            attached = self._attachments.of(mapping)
            if attached is None:
                return False
            times = (hint.since_ns, hint.mapped_ns(mapping)) if hint else (since_ns, since_ns)
            return self._users.use(mapping.pid, mapping.image, attached, *times)

    def _remember_dull(self, mappings: list[Mapping], places: list[tuple[int, bytes]]) -> None:
        """Records of files that turned out to be of no interest will not be looked into again."""
        ordered = sorted(mappings, key=_START) if places else []
        starts = [mapping.start for mapping in ordered]
        for address, file in places:
            at = bisect.bisect_right(starts, address) - 1
            if at >= 0 and address < ordered[at].end and self._attachments.is_dull(ordered[at].file):
                if len(self._dull) >= MAX_DULL:
                    self._dull.clear()
                self._dull.add(file)

    def _look_at_all(self) -> None:
        """Looks at every process: at start, when records were lost, and from time to time."""
        hints = self._hints.take_all()
        attached = len(self._attachments)
        self._watch.follow_cpus()
        self._attachments.retry()
        self._users.listed_ns = time.monotonic_ns()
        mappings = self._lister.everything()
        running = {mapping.pid: mapping.image for mapping in mappings}
        self._users.see(running.items())
        for mapping in mappings:
            if self._closing.is_set():
                return
            hint = hints.get(mapping.pid)
            since = None if self._unsure else hint
            since_ns = since.since_ns if since else mapping.started
            try:
                self._late += self._take(mapping, since_ns, since) and not hint and self.scanned.is_set()
            except Vanished:
                self._hint(mapping.pid, since_ns, _VANISHED_DELAY)
            except Wait:
                self._hint(mapping.pid, since_ns, _WAIT_DELAY)
        self._users.gather([pid for pid in self._users.without_pidfd() if pid not in running])
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
            dict(attachments.refused),
            attachments.failed,
            dict(attachments.unsearched),
            WORKER.abandoned,
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
        log.info("mappings are listed from /proc, where overlays hide which files are the same: %s", error)
        return ProcLister(proc)


def _by_process(mappings: Iterable[Mapping]) -> dict[int, list[Mapping]]:
    grouped = defaultdict(list)
    for mapping in mappings:
        grouped[mapping.pid].append(mapping)
    return grouped
