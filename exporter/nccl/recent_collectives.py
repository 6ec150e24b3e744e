"""The newest collectives of each process, which its RDMA work may belong to."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

PROCESSES, CALLS = 1024, 64
MOST_LINKS = 4
WINDOW_NS = 1_000_000_000

Link = tuple[str, str]


class RecentCollectives:
    """The collectives of a node: the NCCL collector adds them, the verbs collector reads them. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[int, deque[tuple[int, Link]]] = OrderedDict()

    def add(self, pid: int, start_ns: int, link: Link) -> None:
        """Add a collective that began at this monotonic time; `link` is its trace id and span id."""
        with self._lock:
            self._of.setdefault(pid, deque(maxlen=CALLS)).append((start_ns, link))
            self._of.move_to_end(pid)
            while len(self._of) > PROCESSES:
                self._of.popitem(last=False)

    def links(self, pid: int, posted_ns: int) -> tuple[Link, ...]:
        """Return the collectives that RDMA work of the process posted at this monotonic time may serve, newest first.

        These are the last few that began before it, at most a second. NCCL's proxy threads post after the call has
        returned, and without a mark of the call.
        """
        with self._lock:
            calls = list(self._of.get(pid, ()))
        found = [link for start, link in reversed(calls) if 0 <= posted_ns - start <= WINDOW_NS]
        return tuple(found[:MOST_LINKS])

    def forget(self, pid: int) -> None:
        """Drop the collectives of a process that has ended."""
        with self._lock:
            self._of.pop(pid, None)
