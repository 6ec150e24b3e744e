"""The requests of a node's servers that ended lately."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from exporter.model import Served

PROCESSES, REQUESTS, MOST = 256, 1024, 16_384
"""The most servers, requests of one, and requests of all: 4 MB."""


@dataclass(slots=True)
class _Server:
    requests: deque[Served] = field(default_factory=lambda: deque(maxlen=REQUESTS))
    forgotten_ns: int = 0
    """The latest end of a request that is not kept any more."""


class RecentRequests:
    """The serving collector adds them, whoever links spans reads them. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[int, _Server] = OrderedDict()
        self._kept = 0

    def add(self, request: Served) -> None:
        with self._lock:
            server = self._of.setdefault(request.pid, _Server())
            if len(server.requests) == REQUESTS:
                server.forgotten_ns = max(server.forgotten_ns, server.requests[0].end_ns)
                self._kept -= 1
            server.requests.append(request)
            self._kept += 1
            self._of.move_to_end(request.pid)
            while len(self._of) > PROCESSES or self._kept > MOST:
                _, last = self._of.popitem(last=False)
                self._kept -= len(last.requests)

    def servers(self) -> Collection[int]:
        """Return the processes that have served requests."""
        with self._lock:
            return list(self._of)

    def others(self, request: Served) -> Others:
        """Return what is known of the other requests of the process."""
        with self._lock:
            server = self._of.get(request.pid, _Server())
            known = [it for it in server.requests if it is not request and it.end_ns > request.read_ns]
            forgotten = server.forgotten_ns > request.read_ns
        late = sum(it.read_ns < request.seen_ns < it.end_ns for it in known)
        times = tuple((it.read_ns, it.end_ns) for it in known if it.tid in (0, request.tid))
        return Others(not forgotten and late >= request.others, times)


@dataclass(frozen=True, slots=True)
class Others:
    """The other requests of a process that overlapped one.

    `complete`: all of them are known; those that were in flight when the request ended have ended, too. `times` are
    the begin and end of those that the request's thread may have read.
    """

    complete: bool
    times: tuple[tuple[int, int], ...]

    def exclude(self, start_ns: int, end_ns: int) -> bool:
        """Return whether it is known that none of them ran between these times."""
        return self.complete and all(end <= start_ns or begin >= end_ns for begin, end in self.times)
