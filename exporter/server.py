"""The HTTP server: /metrics, the landing page, health and reload. Collectors run outside the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from exporter.collector_state import CollectorState
from exporter.model import Sample
from exporter.options import SettingsError
from exporter.page import Gather, Pages
from exporter.profile import Profile
from exporter.resolve import socket_users
from exporter.scrape import Run, Scraper
from exporter.series import LEAST
from exporter.stack_profiles.growth import Growth
from exporter.stack_profiles.published import StackProfiles
from exporter.views import negotiation, prometheus
from exporter.views.text import LabelTexts
from exporter.web import connections, lifecycle, listen, stack_profiles
from exporter.web.config import WebConfigFile
from exporter.web.connections import Connections
from exporter.web.guard import Guard, Handler
from exporter.web.http import web
from exporter.web.lifecycle import Lifecycle
from exporter.web.request_slots import RequestSlots
from exporter.web.stack_profiles import ProfileRequests
from exporter.web.tls import FollowingContext

HEALTHY_PATHS = ("/-/healthy", "/healthz", "/health")
READY_PATHS = ("/-/ready", "/readyz")
TAKEN_PATHS = (*HEALTHY_PATHS, *READY_PATHS, lifecycle.RELOAD, lifecycle.RELEASE, *stack_profiles.PATHS)
DEFAULT_TIMEOUT = 10.0
LONGEST_TIMEOUT = 120.0
SEND_TIMEOUT = 30.0
_BACKLOG = 100
"""Connections that asyncio accepts before it looks at any of them; its default."""

Landing = Callable[[Sequence[Sample], Sequence[CollectorState]], str]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WebSettings:
    """The --web.* flags, by their names."""

    listen_address: tuple[str, ...] = (":19445",)
    systemd_socket: bool = False
    config_file: str = ""
    enable_lifecycle: bool = False
    enable_profiles: bool = False
    growing_stacks_window: float = 1800.0
    telemetry_path: str = "/metrics"
    max_requests: int = 40
    timeout_offset: float = 0.5
    disable_exporter_metrics: bool = False
    series_limit: int = 50_000

    def __post_init__(self) -> None:
        if not re.fullmatch(r"/[A-Za-z0-9._~/-]*", self.telemetry_path) or self.telemetry_path in TAKEN_PATHS:
            raise SettingsError(f"web.telemetry-path: {self.telemetry_path!r} is no path to serve on, such as /metrics")
        if 0 < self.series_limit < LEAST:
            raise SettingsError(f"web.series-limit: {self.series_limit} is too few: give {LEAST} or more, 0 for none")


class Server:
    """Serves the samples of `scraper`, made for `profile`.

    `landing` renders the page at /; `reload` and `release` are Lifecycle's. `profiles` and `growth` are of stacks.
    """

    def __init__(
        self,
        settings: WebSettings,
        scraper: Scraper,
        landing: Landing,
        reload: Callable[[], None] | None = None,
        release: Callable[[float], bool] | None = None,
        profile: Profile = Profile.DEBUG,
        profiles: StackProfiles | None = None,
        growth: Growth | None = None,
    ) -> None:
        self._settings, self._scraper, self._landing = settings, scraper, landing
        self._lifecycle = Lifecycle(settings.enable_lifecycle, reload, release)
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="web")
        self.slots = RequestSlots(settings.max_requests)
        published = profiles or StackProfiles()
        self.profiles = ProfileRequests(settings.enable_profiles, published, growth, self._send)
        self.pages, self._texts = Pages(settings.series_limit, profile), LabelTexts()
        self._runner: web.AppRunner | None = None
        self.connections: Connections | None = None
        self._servers: list[asyncio.Server] = []
        self.urls: list[str] = []
        """The URLs of a started server, such as http://localhost:19445/."""

    async def start(self) -> None:
        """Bind the addresses and serve. Raises ListenError and WebConfigError."""
        file = WebConfigFile(Path(self._settings.config_file)) if self._settings.config_file else None
        context = FollowingContext.of(file) if file and file.read().tls else None
        app = self._application(Guard(file, (*HEALTHY_PATHS, *READY_PATHS), self._workers))
        if self._settings.systemd_socket:
            sockets = listen.inherited(os.environ)
        else:
            sockets = listen.bind(self._settings.listen_address)
        quiet = logging.Logger("aiohttp", logging.CRITICAL + 1)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=quiet,  # aiohttp's would log each malformed request with a traceback
            keepalive_timeout=connections.IDLE_SECONDS,
            lingering_time=1.0,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        socket_users.available()  # now, as the first request may load a module of the kernel
        self.connections = Connections(self._handler, context)
        self.urls = [listen.url(bound, "https" if context else "http") for bound in sockets]
        for bound in sockets:
            loop, at_once = asyncio.get_running_loop(), min(_BACKLOG, self.connections.most)
            self._servers.append(await loop.create_server(self.connections, sock=bound, backlog=at_once))
        self.connections.start()
        log.info("listening on %s", ", ".join(self.urls))

    async def stop(self) -> None:
        """Stop listening, wait at most a second for current responses, and close all connections."""
        for server in self._servers:
            server.close()
        if self.connections is not None:
            self.connections.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self.profiles.close()

    def _application(self, guard: Guard) -> web.Application:
        app = web.Application(middlewares=[self._answering, guard.middleware, self._errors], client_max_size=64 * 1024)
        app.on_response_prepare.append(guard.add_headers)
        app.router.add_get(self._settings.telemetry_path, self._metrics)
        if self._settings.telemetry_path != "/":
            app.router.add_get("/", self._page)
        for path in HEALTHY_PATHS:
            app.router.add_get(path, self._healthy)
        for path in READY_PATHS:
            app.router.add_get(path, self._ready)
        self._lifecycle.add_to(app.router)
        self.profiles.add_to(app.router)
        return app

    def _handler(self) -> asyncio.Protocol | None:
        running = self._runner and self._runner.server
        return running() if running else None

    @web.middleware
    async def _answering(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = connections.of(request.transport)
        with connection.answer() if connection else nullcontext():
            return await handler(request)

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPException, asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("a request for %.100r failed", request.path)
            raise web.HTTPInternalServerError(text="internal error; see the log\n") from None

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        try:
            names = self._scraper.select(request.query.getall("collect[]", []), request.query.getall("exclude[]", []))
            profile = self.pages.profile(request.query.get("profile"))
            timeout = self._timeout(request.headers.get("X-Prometheus-Scrape-Timeout-Seconds"))
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None
        form = negotiation.negotiate(_listed(request, "Accept"))
        zipped = negotiation.accepts_gzip(_listed(request, "Accept-Encoding"))

        def write(samples: Sequence[Sample]) -> tuple[bytes, int]:
            page = prometheus.render(samples, form, self._texts)
            self._scraper.dropped.add("duplicate", page.duplicates)
            self._scraper.dropped.add("malformed", page.malformed)
            return page.compressed() if zipped else page.text, page.size

        def render(gather: Gather) -> bytes:
            return self.pages.write(gather, names, profile, write)

        headers = {"Content-Type": form.value, "Vary": "Accept, Accept-Encoding"}
        if zipped:
            headers["Content-Encoding"] = "gzip"
        return await self._answer(request, names, timeout, render, headers)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        def render(gather: Gather) -> bytes:
            return self._landing(gather(), self._scraper.states()).encode("utf-8", "replace")

        return await self._answer(
            request,
            None,
            DEFAULT_TIMEOUT / 2,
            render,
            {
                "Content-Type": "text/html; charset=utf-8",
                "Cache-Control": "no-store",
                "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
            },
        )

    async def _answer(
        self,
        request: web.Request,
        names: frozenset[str] | None,
        timeout: float,
        render: Callable[[Gather], bytes],
        headers: dict[str, str],
    ) -> web.StreamResponse:
        """Gather, render and send. Sending counts for the limit of requests, because it holds a page in memory."""
        connection = connections.of(request.transport)
        if connection is None:
            raise ConnectionResetError("the client has left")
        with self.slots.take(connection.peer) as free:
            if not free:
                most = f"{self._settings.max_requests} requests at once (--web.max-requests), half of one peer"
                raise web.HTTPServiceUnavailable(text=f"at the limit of {most}; try later\n")
            runs = self._scraper.begin(names)
            if runs:
                await _ended(runs, timeout)

            def work(runs: Sequence[Run] = runs) -> bytes:
                return render(partial(self._scraper.finish, runs, names))

            body = await asyncio.get_running_loop().run_in_executor(self._workers, work)
            return await self._send(request, web.Response(body=body, headers=headers))

    async def _send(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        """Send a response. Raises ConnectionResetError when the client does not read it."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await response.prepare(request)
                await response.write_eof()
            return response
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client does not read") from None

    def _timeout(self, header: str | None) -> float:
        """Return the seconds for collecting within the scraper's own time limit. Raises ValueError without a number."""
        if header is None:
            return DEFAULT_TIMEOUT - self._settings.timeout_offset
        try:
            seconds = float(header)
        except ValueError:
            seconds = 0.0
        if not seconds > 0:
            raise ValueError("X-Prometheus-Scrape-Timeout-Seconds has to be a number above 0")
        seconds = min(seconds, LONGEST_TIMEOUT)
        return seconds - self._settings.timeout_offset if seconds > self._settings.timeout_offset else seconds

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="accel-exporter is healthy\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        if not self._scraper.ready:
            raise web.HTTPServiceUnavailable(text="accel-exporter is starting or stopping\n")
        return web.Response(text="accel-exporter is ready\n")


async def _ended(runs: Sequence[Run], seconds: float) -> None:
    """Wait until all runs have ended, so many seconds at most. The last one wakes the event loop, not each of them."""
    loop, ended, left, lock = asyncio.get_running_loop(), asyncio.Event(), len(runs), threading.Lock()

    def count(_: object) -> None:
        nonlocal left
        with lock:
            left -= 1
        if not left:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

    for run in runs:
        run.done.add_done_callback(count)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ended.wait()


def _listed(request: web.Request, header: str) -> str:
    """Return a header's list, which may be over several lines (RFC 9110 section 5.3); empty without any."""
    return ", ".join(request.headers.getall(header, []))
