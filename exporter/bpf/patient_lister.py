"""Listing that goes on without processes which keep it waiting in the kernel.

A process's mappings are listed under its mmap lock. A page fault on a file system that does not answer can hold that
lock, and whoever lists the process waits until it ends (proc_pid_maps(5) has the same wait).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import cast

from exporter.background.patience import MOST_WAITING, Patience, Unanswered
from exporter.bpf.mappings import Lister, Mapping
from exporter.bpf.process_user import User, user_of

ALL_SECONDS, ONE_SECONDS, LEAST_SECONDS = 10.0, 5.0, 0.1
"""Time limits of a listing of all processes and, after a timeout, of one process, in seconds. The latter is divided by
1 plus the number of timeouts of the user's processes, down to LEAST_SECONDS."""
MOST_OF_USER = 8
"""Processes of a user that wait. All others of that user are left out then, and where MOST_WAITING wait in all, those
of every user who has one: no user keeps the processes of others from being listed."""
REMEMBERED_SECONDS = 600.0
"""Time for which it counts that a process was waited for."""
_MOST_USERS = 1024
_ALL = 0

log = logging.getLogger(__name__)

_List = Callable[[], list[Mapping]]


class PatientLister:
    """A lister that gives up waiting for a process, and lists it again when the kernel has answered.

    Where a single process cannot be listed, nothing is left out, and the caller waits. For one thread at a time.
    """

    def __init__(self, lister: Lister, proc: Path) -> None:
        self._lister, self._proc = lister, proc
        self.patience = Patience("mappings")
        """Listings by pid; _ALL stands for all processes."""
        self._users: dict[int, User] = {}
        """Of the processes that were waited for last."""
        self._skipped: set[int] = set()
        """Processes that are left out for others of their user."""
        self._late: dict[User, tuple[int, float]] = {}
        """Number of timeouts of a user's processes, and time of the last one."""
        self.cpu_seconds = 0.0
        """Processor time of all listings that were waited for."""

    @property
    def name(self) -> str:
        return self._lister.name

    @property
    def one_process(self) -> bool:
        return self._lister.one_process

    @property
    def left_out(self) -> Collection[int]:
        """The processes that are not listed now."""
        return self._skipped | self.waiting()

    def everything(self) -> list[Mapping]:
        """Return the mappings of all processes but those left out. Raises what the lister raises."""
        if not self._lister.one_process:
            return self._listed(self._lister.everything, None) or []
        self._skipped.clear()
        if self._is_quick():
            found = self._listed(self._lister.everything, _ALL)
            if found is not None:
                return found
        return self._one_by_one([int(it.name) for it in self._proc.iterdir() if it.name.isdigit()])

    def of(self, pids: Collection[int]) -> list[Mapping]:
        """Return the mappings of these processes but those left out. Raises what the lister raises."""
        if not self._lister.one_process:
            return self._listed(partial(self._lister.of, pids), None) or []
        if self._is_quick():
            found = self._listed(partial(self._lister.of, pids), _ALL)
            if found is not None:
                return found
        return self._one_by_one(pids)

    def close(self) -> None:
        """Ends the thread, and closes the lister."""
        self.patience.close()
        self._lister.close()

    def _one_by_one(self, pids: Collection[int]) -> list[Mapping]:
        found: list[Mapping] = []
        self._skipped.difference_update(pids)
        for pid in pids:
            waiting = self.waiting()
            if pid in waiting:
                continue
            user = user_of(self._proc, pid)
            of_user = Counter(self._users.get(it) for it in waiting)[user]
            if of_user >= (MOST_OF_USER if len(self.patience.waiting) < MOST_WAITING else 1):
                self._skipped.add(pid)
                continue
            times, _ = self._late.get(user, (0, 0.0))
            one = self._listed(partial(self._lister.of, [pid]), pid, max(LEAST_SECONDS, ONE_SECONDS / (1 + times)))
            if one is None:
                self._note(pid, user)
            found += one or []
        return found

    def waiting(self) -> set[int]:
        return cast(set[int], set(self.patience.waiting)) - {_ALL}

    def _is_quick(self) -> bool:
        """Return whether processes may be listed together: none waits, and none was waited for of late."""
        since = time.monotonic() - REMEMBERED_SECONDS
        self._late = {user: it for user, it in self._late.items() if it[1] > since}
        return not self._late and not self.patience.waiting

    def _note(self, pid: int, user: User) -> None:
        """Take note of a process that was waited for."""
        waiting = self.waiting()
        self._users = {it: of for it, of in self._users.items() if it in waiting} | {pid: user}
        times, _ = self._late.pop(user, (0, 0.0))
        self._late[user] = times + 1, time.monotonic()
        if len(self._late) > _MOST_USERS:
            del self._late[next(iter(self._late))]

    def _listed(self, function: _List, pid: int | None, limit: float = 0.0) -> list[Mapping] | None:
        """Return what a listing gives; None if it takes too long, after which `pid` is waiting. Forever for None."""
        patient = pid is None or len(self.patience.waiting) >= MOST_WAITING
        try:
            found, seconds = self.patience.call(
                pid or _ALL, partial(_timed, function), None if patient else limit or ALL_SECONDS
            )
        except Unanswered:
            if pid:
                log.warning("a process keeps its memory map locked; it is not searched", extra={"pid": pid})
            return None
        self.cpu_seconds += seconds
        return found


def _timed(function: _List) -> tuple[list[Mapping], float]:
    """Return what a listing gives, and its processor time in seconds."""
    began = time.thread_time()
    return function(), time.thread_time() - began
