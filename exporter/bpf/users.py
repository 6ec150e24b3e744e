"""The processes that use attached libraries, from the first mapping to exec or the end of the last thread."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from exporter.bpf.attachments import Attached
from exporter.bpf.library import Interest

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Process:
    image: int
    pidfd: int
    libraries: set[Attached] = field(default_factory=set)


class Users:
    """Tells interests of processes. The end of each is known by a pidfd in `poll`: none is lost, none is mistaken for
    a later process of the same pid (pidfd_open(2): readable once the last thread is gone).
    """

    def __init__(self, poll: select.epoll) -> None:
        self._poll = poll
        self._processes: dict[int, _Process] = {}
        self._pids: dict[int, int] = {}

    def __contains__(self, pid: int) -> bool:
        return pid in self._processes

    def pid_of(self, descriptor: int) -> int | None:
        """The process a pidfd of ours stands for."""
        return self._pids.get(descriptor)

    def without_pidfd(self) -> Collection[int]:
        """Those whose end has to be found by looking, for there were no descriptors left."""
        return [pid for pid, process in self._processes.items() if process.pidfd < 0]

    def see(self, pid: int, image: int) -> None:
        """Takes note of the program a process runs; another one than before replaced it."""
        process = self._processes.get(pid)
        if process is not None and process.image != image:
            self._forget(pid, lambda interest: interest.process_replaced(pid))

    def use(self, pid: int, image: int, attached: Attached, since_ns: int) -> bool:
        """A process has a library mapped, since `since_ns` at the earliest. False if that was known."""
        process = self._processes.get(pid)
        if process is not None and attached in process.libraries:
            return False
        over = False
        if process is None:
            pidfd = self._open_pidfd(pid)
            over = pidfd is None
            process = self._processes[pid] = _Process(image, pidfd if pidfd is not None else -1)
        process.libraries.add(attached)
        attached.users.add(pid)
        first = attached.complete_ns <= since_ns
        for interest, _ in attached.links:
            _tell(lambda interest=interest: interest.process_started(pid, attached.library, first))  # type: ignore[misc]
        if over:
            self.end(pid)
        return True

    def end(self, pid: int) -> None:
        """The process is gone."""
        self._forget(pid, lambda interest: interest.process_ended(pid))

    def close(self) -> None:
        for pidfd in self._pids:
            os.close(pidfd)
        self._pids.clear()
        self._processes.clear()

    def _forget(self, pid: int, tell: Callable[[Interest], None]) -> None:
        process = self._processes.pop(pid, None)
        if process is None:
            return
        if process.pidfd >= 0:
            del self._pids[process.pidfd]
            self._poll.unregister(process.pidfd)
            os.close(process.pidfd)
        for attached in process.libraries:
            attached.users.discard(pid)
            attached.idle_since = time.monotonic()
        interested = {id(interest): interest for attached in process.libraries for interest, _ in attached.links}
        for interest in interested.values():
            _tell(lambda interest=interest: tell(interest))  # type: ignore[misc]

    def _open_pidfd(self, pid: int) -> int | None:
        """A watched pidfd; None if the process is gone, -1 if there can be none."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        except OSError as error:
            log.warning("the end of processes will be noticed late: %s", error.strerror)
            return -1
        self._poll.register(pidfd, select.EPOLLIN)
        self._pids[pidfd] = pid
        return pidfd


def _tell(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("an interest failed on the news of a process")
