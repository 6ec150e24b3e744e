"""Trace contexts of the threads that do GPU work, from the times at which they were read.

A record of work is read some milliseconds after the work has ended, and the thread may then have the context of
another request. A context was that of the work if the thread had it before the work began and after it ended. Span ids
are of one request, so the request is the same unless the thread takes turns between several.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from exporter.linking.obi import Context
from exporter.linking.work import Reading, Work

MOST_THREADS = 4096
LONGEST_NS = 300_000_000_000
"""A context of a thread that lasts longer is taken for one that was not removed."""


class ThreadContexts:
    """Reads the contexts of threads by `read(pid, tid)`, at wall time `now()` in nanoseconds. Safe from any thread."""

    def __init__(self, read: Callable[[int, int], Context | None], now: Callable[[], int]) -> None:
        self._read, self._now = read, now
        self._lock = threading.Lock()
        self._since: OrderedDict[tuple[int, int], tuple[Context, int]] = OrderedDict()

    def after(self, work: Work) -> Reading | None:
        """Return the context that the thread of some work has now; None if there is none, or an old one."""
        thread = (work.pid, work.tid)
        context, now = (self._read(*thread), self._now()) if work.tid else (None, 0)
        with self._lock:
            if context is None:
                self._since.pop(thread, None)
                return None
            known, since = self._since.get(thread, (None, 0))
            if known != context:
                since = now
            self._since[thread] = context, since
            self._since.move_to_end(thread)
            while len(self._since) > MOST_THREADS:
                self._since.popitem(last=False)
        return Reading(context, now, since) if now - since <= LONGEST_NS else None
