"""The HTTP surface in this process, on a loop in a thread of its own, and collectors to serve."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from exporter.model import Sample
from exporter.scrape import Scraper
from exporter.server import Landing, Server, WebSettings
from exporter.stack_profiles.growth import Growth
from exporter.stack_profiles.published import StackProfiles
from exporter.views.landing import LandingPage
from tests.support import PATIENCE


class Fake:
    """A collector that gives what a function gives."""

    def __init__(self, name: str, collect: Callable[[], Iterable[Sample]]) -> None:
        self.name, self.collect = name, collect

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Served:
    """A running Server; leaving the context stops it. `context` is the client's for TLS."""

    def __init__(
        self,
        collectors: Sequence[Fake],
        landing: Landing | None = None,
        reload: Callable[[], None] | None = None,
        release: Callable[[float], bool] | None = None,
        start: bool = True,
        profiles: StackProfiles | None = None,
        growth: Growth | None = None,
        **settings: Any,
    ) -> None:
        self.scraper = Scraper(collectors)
        if start:
            self.scraper.start()
        words = {"listen_address": ("127.0.0.1:0",), **settings}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = self._do(
            self._make(WebSettings(**words), landing or LandingPage().render, reload, release, profiles, growth)
        )
        self.context: ssl.SSLContext | None = None

    async def _make(
        self,
        settings: WebSettings,
        landing: Landing,
        reload: Callable[[], None] | None,
        release: Callable[[float], bool] | None,
        profiles: StackProfiles | None,
        growth: Growth | None,
    ) -> Server:
        return Server(settings, self.scraper, landing, reload, release, profiles=profiles, growth=growth)

    async def _settle(self) -> None:
        """Until the connections that stopping closed are gone."""
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def __enter__(self) -> Served:
        try:
            self._do(self.server.start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self.server.stop())
        self._do(self._settle())
        self.scraper.close(1)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    @property
    def port(self) -> int:
        return int(urlsplit(self.server.urls[0]).port or 0)

    def get(
        self,
        path: str = "/metrics",
        method: str = "GET",
        timeout: float = PATIENCE,
        source: str = "127.0.0.1",
        **headers: str,
    ) -> Answer:
        """One request from the address `source`; header names with underscores for hyphens."""
        connection: http.client.HTTPConnection
        words: dict[str, Any] = {"timeout": timeout, "source_address": (source, 0)}
        if self.server.urls[0].startswith("https"):
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, **words)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, **words)
        try:
            connection.request(method, path, headers={key.replace("_", "-"): value for key, value in headers.items()})
            response = connection.getresponse()
            return Answer(
                response.status, {key.lower(): value for key, value in response.getheaders()}, response.read()
            )
        finally:
            connection.close()
