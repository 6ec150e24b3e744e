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
LINKED_MARK, LEAVING, BLIND, _GROUP = 1 << 31, 1 << 30, 1 << 29, 32
"""As in bpf/linked.h: bits of a row, and where a key has the group."""
_SINCE = (6, 11)
"""The kernel that looks at the process instead of its first thread (commit 46ba0e49b642, in some older ones too)."""


def supported(release: str | None = None) -> bool:
    """Return whether this kernel attaches to one process, all its threads."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release if release is None else release)
    return found is not None and tuple(map(int, found.groups())) >= _SINCE and multi.supported()


def linked_key(pid: int, group: int) -> int:
    """Return the key of a process in the map `linked`."""
    return group << _GROUP | pid


class LinkedProcesses:
    """The maps `linked` and `linked_processes` of an object: programs for all leave these processes to others.

    `group` is the number of the functions for which they do.
    """

    def __init__(self, linked: Map, processes: Map, group: int = 0, waits: bool = False) -> None:
        """`waits`: programs know by the row which calls began in these links, and return in them."""
        self._linked, self._processes, self._group, self.waits = linked, processes, group, waits
        self._lock = threading.Lock()
        self._rows: dict[int, int] = {}
        self._times = 0

    def add(self, pid: int, since: int = 1) -> None:
        """Hand the calls of a process over to programs for one.

        `since` is its row, or 0 if returns are not seen.
        """
        with self._lock:
            self._times += 1
            self._rows[pid] = LINKED_MARK | (0 if since else BLIND) | self._times % BLIND if self.waits else since
            self._processes.set(self._group, len(self._rows))
            self._linked.set(self._key(pid), self._rows[pid])

    def hand_back(self, pid: int) -> None:
        """Hand back calls that begin from now on."""
        with self._lock:
            if self.waits:
                self._linked.set(self._key(pid), self._rows[pid] | LEAVING)
            else:
                self._remove(pid)

    def remove(self, pid: int) -> None:
        """Hand all of them back."""
        with self._lock:
            self._remove(pid)

    def _remove(self, pid: int) -> None:
        if self._rows.pop(pid, None) is not None:
            self._linked.delete(self._key(pid))
            self._processes.set(self._group, len(self._rows))

    def _key(self, pid: int) -> int:
        return linked_key(pid, self._group)


class ProcessLinks:
    """The links of processes of one library.

    `attach` makes the link of a process. No call is lost or counted twice while that comes or goes. `returned` waits
    until calls of these processes have returned that wait for return probes in such links.
    """

    def __init__(
        self,
        rows: LinkedProcesses,
        attach: Callable[[int], Link],
        returned: Callable[[Collection[int]], None] = lambda pids: None,
    ) -> None:
        self._rows, self._attach, self._returned = rows, attach, returned
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
        leaving = [pid for pid in pids if pid in self._links]
        for pid in leaving:
            self._rows.hand_back(pid)
        if leaving:
            self._returned(leaving)
        for pid in leaving:
            self._rows.remove(pid)
            self._links.pop(pid).close()
