"""The processes that use attached libraries, from the first mapping to exec or the end of the last thread."""

from __future__ import annotations

import itertools
import logging
import os
import select
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from exporter import descriptors
from exporter.bpf.attached import Attached
from exporter.bpf.hints import Hints
from exporter.bpf.library import Interest
from exporter.bpf.watch import Exec, file_of_record

BATCH_SECONDS, BATCH_MOST = 0.25, 256
"""Limits of a batch of ended processes, in seconds and processes: interests walk over maps once a batch."""
MOST_REPLACED = 1 << 14

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Process:
    image: int
    pidfd: int
    listed_ns: tuple[int, int]
    libraries: dict[Attached, int] = field(default_factory=dict)
    """Each with how many of its links the process was announced to."""


class LibraryUsers:
    """Calls interests with processes. The end of each is known by a pidfd in `poll`: none is lost, none is mistaken for
    a later process of the same pid (pidfd_open(2): readable once the last thread is gone).
    """

    def __init__(self, poll: select.epoll) -> None:
        self._poll = poll
        self.processes: dict[int, _Process] = {}
        self._pids: dict[int, int] = {}
        self._ended: set[int] = set()
        self._ended_unlisted: set[int] = set()
        self._replaced: dict[int, int] = {}
        self.listed_ns = (0, 0)
        """Begin and end of the listing of mappings for `check_images` and `use`, CLOCK_MONOTONIC in nanoseconds."""
        self.next_due = float("inf")
        """Time at which queued ends are due, on time.monotonic, in seconds."""

    def __contains__(self, pid: int) -> bool:
        return pid in self.processes

    def pid_of(self, descriptor: int) -> int | None:
        """The process a pidfd of ours stands for."""
        return self._pids.get(descriptor)

    def knows(self, pid: int, attached: Attached) -> bool:
        """Return whether all interests of a library have been given this process."""
        process = self.processes.get(pid)
        return process is not None and process.libraries.get(attached, 0) == len(attached.links)

    def without_pidfd(self) -> Collection[int]:
        """Processes without a pidfd, since there were no descriptors left: their end has to be found by looking."""
        return [pid for pid, process in self.processes.items() if process.pidfd < 0]

    def check_images(self, images: Iterable[tuple[int, int]]) -> None:
        """Compares the programs that processes run, by pid, with those known: another one replaced the one before."""
        known = self.processes
        replaced = {pid for pid, image in images if pid in known and known[pid].image != image}
        if replaced:
            self._replace(replaced, {})

    def replace(self, execs: Collection[Exec], attachments: Iterable[Attached], hints: Hints) -> set[int]:
        """Takes note of processes that run other programs, by the kernel's records. Returns those to be listed again:
        of exec while all were listed, which takes seconds on a busy node, it is not known which program was looked at.

        A process that was not looked at yet may have called whatever is attached to, if it had mapped such a file
        before: it is given to the interests of all `attachments`. Wrappers such as nsenter had not, and what is counted
        is then the new program's.
        """
        if not execs:
            return set()
        known, unknown, doubtful, recorded = set[int](), set[int](), set[int](), _recorded_as(attachments)
        for time_ns, pid in execs:
            process = self.processes.get(pid)
            began, ended = process.listed_ns if process else (0, 0)
            if process and began < time_ns:  # else it was the new program that was looked at
                (doubtful if time_ns <= ended else known).add(pid)
            elif any(not recorded.isdisjoint(file_of_record(it)) for it in hints.mapped_before(pid, time_ns)):
                unknown.add(pid)
        if known or unknown:
            interests = {id(interest): interest for attached in attachments for interest, _ in attached.links}
            self._replace(
                known | unknown, {key: (interest, set(unknown)) for key, interest in interests.items() if unknown}
            )
        return doubtful - known

    def replaced_after(self, pid: int, mapped_ns: int) -> bool:
        """Return whether calls of the previous program of a process were retired after `mapped_ns`. Calls that the
        process made in between, with a library mapped at `mapped_ns`, are then among the calls of the previous program.
        """
        return self._replaced.get(pid, 0) > mapped_ns

    def _replace(self, pids: Collection[int], recipients: dict[int, tuple[Interest, set[int]]]) -> None:
        called = set[int]()

        def notify(interest: Interest, replaced: Collection[int]) -> None:
            observed = replaced
            try:
                observed = interest.processes_replaced(replaced)
            finally:
                called.update(observed)

        self._forget(pids, notify, recipients)
        for pid in called:
            self._replaced.pop(pid, None)
            self._replaced[pid] = time.monotonic_ns()
        while len(self._replaced) > MOST_REPLACED:  # the oldest, which were looked at long ago
            del self._replaced[next(iter(self._replaced))]

    def use(self, pid: int, image: int, attached: Attached, since_ns: int, mapped_ns: int | None = None) -> bool:
        """Gives the interests of a library a process that has it mapped. Returns False if that was known.

        The mapping was made at `since_ns` at the earliest, or at `mapped_ns` where that is known better.
        """
        if self.knows(pid, attached):
            return False
        process = self.processes.get(pid)
        before = process.libraries.get(attached, 0) if process is not None else 0
        has_ended = False
        if process is None:
            pidfd = self.open_pidfd(pid)
            has_ended = pidfd is None
            process = self.processes[pid] = _Process(image, pidfd if pidfd is not None else -1, self.listed_ns)
        process.libraries = {it: links for it, links in process.libraries.items() if not _replaces(attached, it)}
        process.libraries[attached] = len(attached.links)
        attached.users.add(pid)
        first = attached.complete_ns <= since_ns and not self.replaced_after(pid, mapped_ns or since_ns)
        for interest, _ in attached.links[before:]:
            _call(lambda interest=interest: interest.process_started(pid, attached.library, first))  # type: ignore[misc]
        if has_ended:
            self.queue_ends([pid])
        return not before

    def queue_ends(self, ended: Collection[int], unlisted: Collection[int] = ()) -> None:
        """Takes note of ended processes, for `deliver_ends` some time after the first of them.

        Processes that ended before they were listed are `unlisted`: they may have called whatever is attached to.
        """
        self._ended.update(ended)
        self._ended_unlisted.update(pid for pid in unlisted if pid not in self.processes)
        count = len(self._ended) + len(self._ended_unlisted)
        if count:
            self.next_due = 0.0 if count > BATCH_MOST else min(self.next_due, time.monotonic() + BATCH_SECONDS)

    def any_queued(self, pids: Collection[int]) -> bool:
        """Return whether the end of one of these processes is queued, and so another one has its pid now."""
        return not (self._ended.isdisjoint(pids) and self._ended_unlisted.isdisjoint(pids))

    def deliver_ends(self, attachments: Iterable[Attached]) -> None:
        """Gives the ended processes to the interests of the libraries that they used.

        Processes that ended before they were listed are given to the interests of all `attachments`.
        """
        ended, unlisted = self._ended, self._ended_unlisted
        self._ended, self._ended_unlisted, self.next_due = set(), set(), float("inf")
        interests = {id(interest): interest for attached in attachments for interest, _ in attached.links}
        others = {key: (interest, set(unlisted)) for key, interest in interests.items()} if unlisted else {}
        self._forget(ended, lambda interest, pids: interest.processes_ended(pids), others)

    def close(self) -> None:
        for pidfd in self._pids:
            os.close(pidfd)
        self._pids.clear()
        self.processes.clear()

    def _forget(
        self,
        pids: Iterable[int],
        notify: Callable[[Interest, Collection[int]], None],
        recipients: dict[int, tuple[Interest, set[int]]] | None = None,
    ) -> None:
        """Drops processes. Gives each interest those that used its libraries, and its own in `recipients`."""
        recipients = recipients or {}
        for pid in pids:
            for attached in self._drop(pid):
                for interest, _ in attached.links:
                    recipients.setdefault(id(interest), (interest, set()))[1].add(pid)
        for interest, own in recipients.values():
            _call(lambda interest=interest, own=own: notify(interest, own))  # type: ignore[misc]

    def _drop(self, pid: int) -> Collection[Attached]:
        """Drops a process; returns the libraries that it used."""
        process = self.processes.pop(pid, None)
        if process is None:
            return ()
        if process.pidfd >= 0:
            del self._pids[process.pidfd]
            self._poll.unregister(process.pidfd)
            os.close(process.pidfd)
        for attached in process.libraries:
            attached.users.discard(pid)
            attached.idle_since = time.monotonic()
        return process.libraries

    def open_pidfd(self, pid: int) -> int | None:
        """A watched pidfd; None if the process is gone, -1 if there can be none or it would be one of the reserve."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        except OSError as error:
            log.warning("ends of processes are noticed late: %s", error.strerror)
            return -1
        if pidfd >= descriptors.ceiling():
            os.close(pidfd)
            return -1
        self._poll.register(pidfd, select.EPOLLIN | select.EPOLLONESHOT)  # it stays readable
        self._pids[pidfd] = pid
        return pidfd


def _recorded_as(attachments: Iterable[Attached]) -> frozenset[int | bytes]:
    """Inode numbers and names of attached files, one of which any record of them has.

    An overlay shows another device and perhaps another inode number, a hard link another name.
    """
    both = ((it.file.number, it.library.path.rpartition("/")[2].encode()) for it in attachments)
    return frozenset(itertools.chain.from_iterable(both))


def _replaces(attached: Attached, before: Attached) -> bool:
    """Return whether a process's earlier library is detached, with all its interests attached to this one too."""
    return before.detached and {id(it) for it, _ in before.links} <= {id(it) for it, _ in attached.links}


def _call(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("a collector failed to handle a process event")
