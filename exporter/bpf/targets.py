"""Discovery of libraries and the processes that use them: at start, then at each mapping, fork, exec and exit.

The kernel's records of mapped files (watch.py) are hints; the mappings of the process when examined (mappings.py)
decide. A lost hint is therefore no lost process: all processes are examined again at intervals.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from exporter import descriptors, pid_namespace
from exporter.bpf.attachments import Attachments
from exporter.bpf.file_worker import WORKER
from exporter.bpf.library import Closeable, Interest, Library
from exporter.bpf.mappings import IteratorLister, Lister, ProcLister
from exporter.bpf.native import BpfError, not_started
from exporter.bpf.patient_lister import PatientLister
from exporter.bpf.search import Search
from exporter.bpf.status import SOURCE_AGE, SearchStatus
from exporter.bpf.users import LibraryUsers
from exporter.bpf.watch import Watch
from exporter.model import Sample

__all__ = ["Closeable", "Interest", "Library", "SearchStatus", "Targets"]

_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
_JOIN_SECONDS = 4.0

log = logging.getLogger(__name__)


class Targets:
    """Finds the libraries that interests want and the processes that use them, and calls the interests from a thread.

    `grace` is how long a library without users stays attached to, `resync` how often everything is looked at; seconds.
    """

    def __init__(self, proc: Path = Path("/proc"), *, grace: float = 10.0, resync: float = 60.0) -> None:
        self._proc, self._grace, self._resync = proc, grace, resync
        self._interests: list[Interest] = []
        self._next_release = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._status = SearchStatus()
        self._refusal: OSError | None = None
        self.scanned = threading.Event()
        """Set once the processes that ran at start have been looked at, and their libraries attached to."""

    def want(self, interest: Interest) -> None:
        """Registers an interest; RuntimeError once started."""
        if self._thread is not None:
            raise RuntimeError("an interest has to be registered before targets are started")
        self._interests.append(interest)

    def start(self) -> None:
        """Watches from now on, and looks at all processes in the background; does nothing if nobody wants anything.

        BpfError where the kernel refuses, or where pids of other processes would mean others here; `require` raises
        from then on, until a start succeeds.
        """
        if not self._interests:
            self.scanned.set()
            return
        try:
            self.begin()
        except OSError as error:
            self._refusal = error
            raise
        self._refusal = None

    def require(self) -> None:
        """Raise what a collector of libraries raises where the search could not begin: Unavailable, or BpfError."""
        if (error := self._refusal) is not None:
            reason = BpfError(error.errno or errno.EIO, str(error).partition("\n")[0])
            raise not_started("no library can be probed", reason) from error

    def begin(self) -> None:
        if not pid_namespace.is_host():
            raise BpfError(errno.ENOTSUP, f"{pid_namespace.REFUSAL}: {pid_namespace.REMEDY}")
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
        self._lister = PatientLister(choose_lister(self._proc), self._proc)
        self.users = LibraryUsers(self._poll)
        self._attachments = Attachments(self._interests, self._proc, self._grace)
        self._urgent = select.poll()
        self._urgent.register(self._wake, select.POLLIN)
        if (overwrites := self._attachments.overwrites.descriptor) >= 0:
            self._urgent.register(overwrites, select.POLLIN)
            self._poll.register(overwrites, select.EPOLLIN)
        self._search = Search(self._lister, self.users, self._attachments, self._closing, self._resync)
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
                log.error("library discovery did not stop; probes are detached when this process ends")
        return not self._thread.is_alive()

    @property
    def status(self) -> SearchStatus:
        return self._status

    def collect(self) -> Iterable[Sample]:
        """Samples about the search itself."""
        yield from self._status.samples()
        if self._thread is not None:
            yield SOURCE_AGE.sample(time.monotonic() - self._search.last_resync, {"source": "processes"})

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                started = time.thread_time() + self._lister.cpu_seconds
                try:
                    self._wait()
                    self._step()
                except Exception:
                    log.exception("library discovery failed; all processes are scanned again soon")
                    self._search.resync_soon()
                self._publish()
                busy = time.thread_time() + self._lister.cpu_seconds - started
                self._rest(min(max(busy, _PAUSE), _LONGEST_PAUSE))
        finally:
            self._close_all()

    def _rest(self, seconds: float) -> None:
        """Leaves this CPU to others; a library that is overwritten meanwhile cannot wait."""
        until = time.monotonic() + seconds
        if self._urgent.poll(1000 * seconds):
            self._leave_overwritten()
            self._closing.wait(max(0.0, until - time.monotonic()))

    def _leave_overwritten(self) -> None:
        self._search.look_again(self._attachments.leave_overwritten())

    def _wait(self) -> None:
        """Sleeps until something happens or is due; takes note of the processes that ended."""
        search = self._search
        due = min(search.next_resync, search.next_look(), self._next_release, self.users.next_due)
        until = due - time.monotonic()
        for descriptor, event in self._poll.poll(max(0.0, until)):
            pid = self.users.pid_of(descriptor)
            if pid is not None:
                self.users.queue_ends([pid])  # at once: its descriptor reports an end only once
            elif event & (select.EPOLLHUP | select.EPOLLERR):
                self._watch.drop(descriptor)

    def _step(self) -> None:
        self._leave_overwritten()
        search, batch = self._search, self._watch.drain()
        if batch.lost:
            search.count_lost(batch.lost)
        search.note(batch)
        if time.monotonic() >= search.next_resync:
            self.users.deliver_ends(self._attachments)
            self._watch.follow_cpus()
            search.look_at_all()
        elif time.monotonic() >= search.next_listing:
            search.look()
        if search.settled:
            self.scanned.set()
        if time.monotonic() >= self.users.next_due:
            self.users.deliver_ends(self._attachments)
        self._next_release = self._attachments.release_idle()

    def _publish(self) -> None:
        attachments = self._attachments
        self._status = SearchStatus(
            self._lister.name,
            tuple((attached.library.path, len(attached.users)) for attached in attachments),
            self._search.latencies,
            attachments.verdicts.examined,
            attachments.verdicts.unreadable,
            dict(attachments.refused),
            attachments.failed,
            dict(attachments.verdicts.unsearched),
            WORKER.abandoned,
            len(self._lister.left_out),
            self._search.lost,
            self._search.late,
        )

    def _close_all(self) -> None:
        self._attachments.close()
        self.users.close()
        self._watch.close()
        self._lister.close()
        self._poll.close()
        os.close(self._wake)


def choose_lister(proc: Path) -> Lister:
    try:
        return IteratorLister()
    except BpfError as error:
        log.info("mappings are listed from /proc, where overlays hide which files are the same: %s", error)
        return ProcLister(proc)
