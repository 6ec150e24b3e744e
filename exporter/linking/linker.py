"""Links of finished spans, between a collector and the queue of spans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from exporter.linking.obi import ObiContexts
from exporter.linking.request_links import RequestLinks
from exporter.linking.served import RecentRequests
from exporter.linking.thread_contexts import ThreadContexts
from exporter.linking.work import work_of
from exporter.model import Span


class Linker:
    """Passes spans on with their links: to `send`, which returns False for a span that is not sent.

    `sampled` returns whether a span may be sent, `wall_ns` converts monotonic nanoseconds to wall time. `contexts` is
    the file of OBI's map. Safe from any thread.
    """

    def __init__(
        self,
        proc: Path,
        requests: RecentRequests,
        now: Callable[[], int],
        wall_ns: Callable[[int], int],
        send: Callable[[Span], bool | None],
        sampled: Callable[[Span], bool],
        contexts: Path,
    ) -> None:
        self._send, self._sampled = send, sampled
        self._requests = RequestLinks(proc, requests, wall_ns, send)
        self._obi = ObiContexts(contexts)
        self._threads = ThreadContexts(self._obi.of, now)

    def take(self, span: Span) -> None:
        """Pass a span on, that of a request later."""
        if not self._sampled(span):
            self._send(span)  # which counts it
        elif span.served:
            self._requests.hold(span, span.served)
        elif work := work_of(span):
            reading = self._threads.after(work)
            if reading and reading.during(work):
                span = replace(span, links=(*span.links, reading.link))
            if self._send(span) is not False:
                self._requests.add_work(replace(work, reading=reading))
        else:
            self._send(span)

    def close(self) -> None:
        """Pass on what waits; from now on nothing waits."""
        self._requests.close()
        self._obi.close()
