"""Processes that are probed by links of their own while the link for all processes of a file comes and goes."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from exporter.bpf import multi
from exporter.bpf.libbpf import BpfError, Link

if TYPE_CHECKING:
    from exporter.bpf.maps import Map

MOST = 64
"""Links of one library: each takes some milliseconds and a file descriptor. Further processes are probed in windows."""
log = logging.getLogger(__name__)
_SINCE = (6, 11)
"""The kernel that looks at the process instead of its first thread (commit 46ba0e49b642, in some older ones too)."""


def supported(release: str | None = None) -> bool:
    """Return whether this kernel attaches to one process, all its threads."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release if release is None else release)
    return found is not None and tuple(map(int, found.groups())) >= _SINCE and multi.supported()


class LinkedProcesses:
    """The maps `linked` and `linked_processes` of an object: programs for all leave these processes to others."""

    def __init__(self, linked: Map, processes: Map) -> None:
        self._linked, self._processes = linked, processes
        self._lock = threading.Lock()
        self._pids: set[int] = set()

    def add(self, pid: int, since: int = 1) -> None:
        """Hand the calls of a process over to programs for one. `since` is its row."""
        with self._lock:
            self._pids.add(pid)
            self._processes.set(0, len(self._pids))
            self._linked.set(pid, since)

    def remove(self, pid: int) -> None:
        """Hand them back."""
        with self._lock:
            self._pids.discard(pid)
            self._linked.take([pid])
            self._processes.set(0, len(self._pids))


class ProcessLinks:
    """The links of processes of one library.

    `attach` makes the link of a process. No call is lost or counted twice while that comes or goes.
    """

    def __init__(self, rows: LinkedProcesses, attach: Callable[[int], Link]) -> None:
        self._rows, self._attach = rows, attach
        self._links: dict[int, Link] = {}

    @property
    def pids(self) -> Collection[int]:
        """The processes that have links."""
        return [*self._links]

    def keep(self, pids: Collection[int], since: int = 1) -> Collection[int]:
        """Keep links to just these, MOST at most. Return those that have one. `since` is the row of new ones."""
        self.leave(self._links.keys() - set(pids))
        for pid in pids:
            if pid not in self._links and len(self._links) < MOST:
                try:
                    self._links[pid] = self._attach(pid)
                except BpfError as error:
                    if error.errno != errno.ESRCH:  # it has ended
                        log.warning("a process cannot be probed on its own: %s", error, extra={"pid": pid})
                    continue
                self._rows.add(pid, since)
        return [*self._links]

    def leave(self, pids: Collection[int]) -> None:
        """Close the links to these processes."""
        for pid in [pid for pid in pids if pid in self._links]:
            self._rows.remove(pid)
            self._links.pop(pid).close()
