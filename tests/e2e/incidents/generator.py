"""Series of timelines as pages that Prometheus scrapes: what many nodes export, minute by minute."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.e2e.incidents.faster import Clock

_STEPS = re.compile(r"(-?[\d.e]+)([+-][\d.e]+)?x(\d+)")


def values(notation: str) -> Iterator[str]:
    """Yield the values of promtool's notation, a minute apart; an empty one is a series that is absent."""
    for word in notation.split():
        if word.startswith(("_", "stale")):
            absent = int(word[2:] or 1) if word.startswith("_x") else 1
            yield from itertools.repeat("", absent)
        elif steps := _STEPS.fullmatch(word):
            first, step = float(steps[1]), float(steps[2] or 0)
            yield from (f"{first + number * step:.17g}" for number in range(int(steps[3]) + 1))
        else:
            yield f"{float(word):.17g}"


class Generator:
    """An HTTP server with a page for each timeline, at /NAME, of minute 0 until the Unix time `start`. A context.

    `longest` is the longest time in seconds between two scrapes of a page since then.
    """

    def __init__(self, timelines: Mapping[str, Mapping[str, str]], clock: Clock) -> None:
        self.start, self.longest = float("inf"), 0.0
        self._clock = clock
        self._series = {
            name: [(series, list(values(notation))) for series, notation in timeline.items()]
            for name, timeline in timelines.items()
        }
        self._made: dict[str, tuple[int, bytes]] = {}
        self._scraped: dict[str, float] = {}
        generator = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                page = generator.page(self.path[1:], time.time())
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def page(self, name: str, now: float) -> bytes:
        """Return a timeline's page at a Unix time, without the series that are absent then."""
        self.longest = max(self.longest, now - max(self._scraped.get(name, now), self.start))
        self._scraped[name] = now
        minute = int(max(0.0, now - self.start) * self._clock.factor // 60)
        if (made := self._made.get(name)) and made[0] == minute:
            return made[1]
        lines = (
            f"{series} {numbers[minute]}\n"
            for series, numbers in self._series[name]
            if minute < len(numbers) and numbers[minute]
        )
        page = "".join(lines).encode()
        self._made[name] = minute, page
        return page

    def __enter__(self) -> Generator:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
