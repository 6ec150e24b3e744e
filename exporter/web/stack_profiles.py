"""Requests for profiles of stacks, and for the page that shows them; off unless --web.enable-profiles is given.

They reveal names of functions and files of all users' processes (docs/privileges.md). A source makes a profile, and a
format is written, in a thread of their own: neither delays /metrics.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from exporter.stack_profiles.growth import Growth
from exporter.stack_profiles.kept import K, Kept
from exporter.stack_profiles.model import ALLOC, INUSE, LAUNCHES, StackProfile, ValueType
from exporter.stack_profiles.published import StackProfiles
from exporter.web import connections
from exporter.web.guard import Handler
from exporter.web.http import web
from exporter.web.profile_query import ProfileQuery
from exporter.web.request_slots import RequestSlots

ROOT, PAGE, SYMBOL = "/debug/pprof/", "/flamegraph", "/debug/pprof/symbol"
GROWING, FAILED, HANGS = "/api/growing-stacks", "/api/failed-allocations", "/api/hangs"
OOM, HANG = "gpu_oom", "gpu_hang"
PROFILES = "gpu_inuse", "gpu_alloc", "gpu_launches", OOM, HANG
PATHS = (PAGE, SYMBOL, GROWING, FAILED, HANGS, *(ROOT + name for name in PROFILES))
MOST_REQUESTS = 8
"""Requests at once, half of them of one peer; each may hold two profiles in memory."""
WORK_SECONDS = 60.0
"""Time for a profile to be made or written, and for those of requests before it."""
OFF = "profiles show names of functions and files of all users' processes: they are off without --web.enable-profiles\n"
_LOOK_SECONDS = 0.5
_KINDS: dict[str, tuple[ValueType, ...]] = {"gpu_inuse": INUSE, "gpu_alloc": ALLOC, "gpu_launches": LAUNCHES}

Send = Callable[[web.Request, web.StreamResponse], Awaitable[web.StreamResponse]]
Result = TypeVar("Result")


class ProfileRequests:
    """The handlers of these requests; `send` sends a response within a time limit."""

    def __init__(self, enabled: bool, published: StackProfiles, growth: Growth | None, send: Send) -> None:
        self._enabled, self._published, self._growth, self._send = enabled, published, growth, send
        self.slots = RequestSlots(MOST_REQUESTS)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="profiles")

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes, or those that answer with the reason why there are none."""
        for name in _KINDS:
            router.add_get(ROOT + name, self._on(self._profile))
        router.add_get(ROOT + OOM, self._on(self._frozen))
        router.add_get(ROOT + HANG, self._on(self._hang))
        router.add_get(PAGE, self._on(self._page))
        router.add_get(SYMBOL, self._on(self._symbols))
        router.add_post(SYMBOL, self._on(self._symbols))
        router.add_get(GROWING, self._on(self._growing))
        router.add_get(FAILED, self._on(self._failed))
        router.add_get(HANGS, self._on(self._hangs))

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _on(self, handler: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            if not self._enabled:
                raise web.HTTPNotFound(text=OFF)
            connection = connections.of(request.transport)
            if connection is None:
                raise ConnectionResetError("the client has left")
            with self.slots.take(connection.peer) as free:
                if not free:
                    most = f"{MOST_REQUESTS} requests for profiles at once, half of one peer"
                    raise web.HTTPServiceUnavailable(text=f"at the limit of {most}; try later\n")
                return await self._send(request, await handler(request))

        return handle

    async def _work(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns in the thread of profiles. Raises HTTPServiceUnavailable with a reason."""
        try:
            async with asyncio.timeout(WORK_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        except TimeoutError:
            reason = f"it takes longer than {WORK_SECONDS:.0f} s"
            raise web.HTTPServiceUnavailable(text=f"there is no profile: {reason}\n") from None
        except (OSError, RuntimeError) as error:
            raise web.HTTPServiceUnavailable(text=f"there is no profile: {error}\n") from None

    async def _profile(self, request: web.Request) -> web.StreamResponse:
        name = request.path.removeprefix(ROOT)
        query = _query(request, False, tuple(kind for kind, _ in _KINDS[name]))
        profile = await self._work(lambda: self._made(name))
        if query.seconds:
            before = profile
            await _pause(request, query.seconds)
            after = await self._work(lambda: self._made(name))
            profile = await self._work(lambda: _delta(before, after, name == "gpu_inuse"))
        return await self._written(request, name, profile, query)

    async def _frozen(self, request: web.Request) -> web.StreamResponse:
        from exporter.stack_profiles.frozen import TYPES

        query = _query(request, True, tuple(kind for kind, _ in TYPES))
        none = "no allocation has run out of memory since the start"
        found = await self._kept(self._published.frozen, query.n, none)
        return await self._written(request, OOM, found.with_failed(), query)

    async def _hang(self, request: web.Request) -> web.StreamResponse:
        from exporter.stack_profiles.hangs import TYPES

        query = _query(request, True, tuple(kind for kind, _ in TYPES))
        found = await self._kept(self._published.hangs, query.n, "nothing has hung since the start")
        return await self._written(request, HANG, found.profile, query)

    async def _kept(self, profiles: Kept[K], number: int, none: str) -> K:
        """Return the kept profile of a number, 0: the newest. Raises HTTPNotFound, HTTPServiceUnavailable."""
        kept = profiles.newest_first()
        found = next((it for it in kept if number in (0, it.number)), None)
        if found is not None:
            return found
        if not kept and (problem := await self._work(lambda: self._published.source.problem())):
            raise web.HTTPServiceUnavailable(text=f"there is no profile: {problem}\n")
        reason = f"there are {', '.join(str(it.number) for it in kept)}" if kept else none
        raise web.HTTPNotFound(text=f"there is no such profile: {reason}\n")

    def _made(self, name: str) -> StackProfile:
        """Return a profile of the source as it is now. Raises RuntimeError with the reason where there is none."""
        source = self._published.source
        if problem := source.problem():
            raise RuntimeError(problem)
        make = {"gpu_inuse": source.inuse, "gpu_alloc": source.alloc, "gpu_launches": source.launches}
        return make[name]()

    async def _written(
        self, request: web.Request, name: str, profile: StackProfile, query: ProfileQuery
    ) -> web.StreamResponse:
        def write() -> tuple[bytes, str, str]:
            from exporter.stack_profiles.select import select
            from exporter.views.stack_profiles.formats import written

            return written(select(profile, query.labels), name, query.format, query.value, query.by)

        body, media, file = await self._work(write)
        headers = {"Content-Type": media, "Cache-Control": "no-store"}
        if file:
            headers["Content-Disposition"] = f'attachment; filename="{file}"'
        response = web.Response(body=body, headers=headers)
        if query.format != "pprof":
            response.enable_compression()
        return response

    async def _page(self, _request: web.Request) -> web.StreamResponse:
        def render() -> tuple[str, str]:
            from exporter.views.stack_profiles.page import page

            return page()

        text, policy = await self._work(render)
        headers = {"Cache-Control": "no-store", "Content-Security-Policy": policy}
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def _symbols(self, _request: web.Request) -> web.StreamResponse:
        """Answer that no address has a name but those in the profile. Go's pprof requests the others before it shows a
        profile with one, and shows none without an answer.
        """
        return web.Response(text="num_symbols: 0\n")

    async def _growing(self, request: web.Request) -> web.StreamResponse:
        _no_parameters(request)
        growth = self._growth
        if growth is None:
            raise web.HTTPServiceUnavailable(text="nobody compares profiles here\n")
        return await self._json(growth.document)

    async def _failed(self, request: web.Request) -> web.StreamResponse:
        _no_parameters(request)
        return await self._json(lambda: [it.document() for it in self._published.frozen.newest_first()])

    async def _hangs(self, request: web.Request) -> web.StreamResponse:
        _no_parameters(request)
        return await self._json(lambda: [it.document() for it in self._published.hangs.newest_first()])

    async def _json(self, make: Callable[[], object]) -> web.StreamResponse:
        body = await self._work(lambda: json.dumps(make()).encode())
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


def _query(request: web.Request, frozen: bool, values: tuple[str, ...]) -> ProfileQuery:
    try:
        return ProfileQuery.of(request.query, frozen, values)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from None


def _no_parameters(request: web.Request) -> None:
    for name in request.query:
        raise web.HTTPBadRequest(text=f"there is no parameter {name[:40]!r}\n")


def _delta(before: StackProfile, after: StackProfile, falls: bool) -> StackProfile:
    from exporter.stack_profiles.select import delta

    return delta(before, after, falls)


async def _pause(request: web.Request, seconds: float) -> None:
    """Wait. Raises ConnectionResetError once the client has left, so that its slot is free again."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, _LOOK_SECONDS))
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the client has left")
