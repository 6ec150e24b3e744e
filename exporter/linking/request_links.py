"""Links of a request's span to the GPU work that was done while the request ran.

What a link is based on is its attribute link.kind:

thread: the thread that answered the request did the work, and had no other request meanwhile.
concurrent: the work was done meanwhile by another thread, by another process of the server's, or by a thread that may
have had several requests (link.same_thread=true). With continuous batching each of the requests is linked so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from exporter.linking.lineage import Lineages, server_of
from exporter.linking.served import Others, RecentRequests
from exporter.linking.work import KIND, RecentWork, Work
from exporter.model import Attribute, Link, Served, Span

MOST_LINKS = 32
WAIT_SECONDS = 1.0
"""Time for which a request's span waits for the spans of work, and the ends of other requests."""
MOST_WAITING = 4096
CLOCK_NS = 5_000_000
"""The most by which the difference of wall time and monotonic time changes while one reading of it is used."""
SAME_THREAD = "link.same_thread"

log = logging.getLogger(__name__)


class _Servers:
    """The server of each process that uses a GPU, looked for again when a server is new and after a while."""

    AGAIN_SECONDS = 5.0

    def __init__(self, lineages: Lineages) -> None:
        self._lineages = lineages
        self._servers: frozenset[int] = frozenset()
        self._until = 0.0
        self._of: dict[int, int | None] = {}

    def of(self, pid: int, servers: frozenset[int]) -> int | None:
        now = time.monotonic()
        if servers != self._servers or now > self._until:
            self._servers, self._until, self._of = servers, now + self.AGAIN_SECONDS, {}
        found = self._of
        if pid not in found:
            found[pid] = server_of(pid, servers, self._lineages)
        return found[pid]


class RequestLinks:
    """Passes spans of requests on with their links, a second after they ended. Safe from any thread.

    `wall_ns` converts monotonic nanoseconds to wall time, which times of spans are.
    """

    def __init__(
        self, proc: Path, requests: RecentRequests, wall_ns: Callable[[int], int], send: Callable[[Span], object]
    ) -> None:
        self._requests, self._wall_ns, self._send = requests, wall_ns, send
        self._work, self._lineages = RecentWork(), Lineages(proc)
        self._servers = _Servers(self._lineages)
        self._waiting: deque[tuple[float, Span, Served]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add_work(self, work: Work) -> None:
        """Remember GPU work of which the span is sent."""
        self._lineages.note(work.pid)
        self._work.add(work)

    def hold(self, span: Span, request: Served) -> None:
        """Pass the span of a request on later, at once if too many wait."""
        self._lineages.note(request.pid)
        with self._changed:
            if not self._closed and len(self._waiting) < MOST_WAITING:
                self._waiting.append((time.monotonic() + WAIT_SECONDS, span, request))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="span links", daemon=True)
                    self._thread.start()
                self._changed.notify()
                return
        self._send(self.linked(span, request))

    def linked(self, span: Span, request: Served) -> Span:
        """Return the span of a request with links to the work that is known now."""
        found = self._during(span, request)
        if not found:
            return span
        others = self._requests.others(request)
        links = [self._link(it, request, others) for it in found]
        links.sort(key=lambda link: link.attributes[KIND] != "thread")
        links[:0] = self._of_obi(found, request, others)
        dropped = span.links_dropped + max(0, len(links) - MOST_LINKS)
        return replace(span, links=(*span.links, *links[:MOST_LINKS]), links_dropped=dropped)

    def close(self) -> None:
        """Pass on at once what waits."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread:
            thread.join(WAIT_SECONDS)

    def _during(self, span: Span, request: Served) -> list[Work]:
        """Return the work of the server and of processes that work for it, the longest first."""
        servers = frozenset(self._requests.servers())
        begin = self._wall_ns(request.read_ns)
        found: list[Work] = []
        for pid in self._work.processes():
            if self._servers.of(pid, servers) == request.pid:
                found += self._work.during(pid, begin, span.end_ns)
        return sorted(found, key=lambda work: work.start_ns - work.end_ns)

    def _link(self, work: Work, request: Served, others: Others) -> Link:
        same = request.tid != 0 and (work.pid, work.tid) == (request.pid, request.tid)
        alone = same and self._alone(request, others, work.start_ns, work.end_ns)
        attributes: dict[str, Attribute] = {KIND: "thread" if alone else "concurrent"}
        if same and not alone:
            attributes[SAME_THREAD] = True
        return Link(work.trace_id, work.span_id, attributes)

    def _alone(self, request: Served, others: Others, start_ns: int, end_ns: int) -> bool:
        """Return whether the thread of a request had no other one between these times."""
        begin = start_ns - self._wall_ns(0)
        return begin > request.read_ns - CLOCK_NS and others.exclude(begin, begin + end_ns - start_ns)

    def _of_obi(self, found: list[Work], request: Served, others: Others) -> list[Link]:
        """Return a link to the span that OBI had for the thread, if that is known of a time while the request ran.

        A span that OBI had for the thread before is no link: another request's, or one that OBI has not removed.
        """
        begin, end = self._wall_ns(request.read_ns), self._wall_ns(request.end_ns)
        contexts = {
            it.reading.link.span_id: it.reading.link
            for it in found
            if it.reading
            and begin < it.reading.since_ns <= it.reading.read_ns < end
            and (it.pid, it.tid) == (request.pid, request.tid)
            and self._alone(request, others, it.start_ns, it.reading.read_ns)
        }
        return list(contexts.values()) if len(contexts) == 1 else []

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due():
                    if self._closed and not self._waiting:
                        return
                    self._changed.wait(self._left())
                _, span, request = self._waiting.popleft()
            try:
                span = self.linked(span, request)
            except Exception:
                log.exception("the span of a request could not be linked")
            self._send(span)

    def _due(self) -> bool:
        return bool(self._waiting) and (self._closed or self._left() == 0.0)

    def _left(self) -> float | None:
        """Return the seconds until the first span that waits is due, None if none waits."""
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
