"""Requests that change the exporter's state: reloading settings, and releasing the GPUs.

As in Prometheus they are disabled over the network unless --web.enable-lifecycle is given. Root and the exporter's own
user may send them on the node itself. Requests of web pages are always refused: a browser with access to the exporter
would send them for any page that is open in it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

from exporter.resolve import socket_users, sockets
from exporter.resolve.sockets import ip
from exporter.web.config import RateLimit
from exporter.web.guard import Limiter
from exporter.web.http import web

RELOAD, RELEASE = "/-/reload", "/-/release-gpus"
RELEASE_SECONDS, LONGEST_RELEASE = 300.0, 3600.0
LIMIT = RateLimit("6s", 10)
"""Rate limit of these requests together: each is logged, and costs more than others."""
PAUSE = 0.1
"""Seconds after a look into the table of sockets for a sender who is refused."""
MOST_LOOKING = 8
"""Requests at a time that look into the table of sockets or wait for it; each holds a connection meanwhile."""
_BROWSER = ("Origin", "Sec-Fetch-Site")
_PROXY = ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP")
_HOW = "on the node, as root: curl -X POST http://localhost:PORT{path}; over the network: --web.enable-lifecycle\n"


class Lifecycle:
    """The handlers of these requests, which call `reload` and `release` in a thread.

    `reload` raises ValueError with the reason when it fails. `release` closes the handles of the GPUs for a time in
    seconds; it returns False when they are not closed in time, and raises LookupError when NVML is not in use.
    """

    def __init__(
        self,
        enabled: bool,
        reload: Callable[[], None] | None,
        release: Callable[[float], bool] | None,
        proc: Path = Path("/proc"),
    ) -> None:
        self._enabled, self._reload, self._release, self._proc = enabled, reload, release, proc
        self._limiter = Limiter(LIMIT)
        self._reloading, self._table = asyncio.Lock(), asyncio.Lock()
        self._looking = 0

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes of the available handlers."""
        if self._reload is not None:
            router.add_post(RELOAD, self._do_reload)
            router.add_put(RELOAD, self._do_reload)
        if self._release is not None:
            router.add_post(RELEASE, self._do_release)

    async def _permit(self, request: web.Request) -> None:
        """Check the sender. Raises HTTPForbidden without permission, HTTPTooManyRequests above the limit."""
        if any(name in request.headers for name in _BROWSER):
            raise web.HTTPForbidden(text="refused: a browser sent this for a web page; use curl\n")
        if not self._enabled and (refusal := await self._refusal(request)):
            raise web.HTTPForbidden(text=f"refused: {refusal}; {_HOW.format(path=request.path)}")
        if not self._limiter.allows():
            raise web.HTTPTooManyRequests(text="too many requests of this kind; try again in some seconds\n")

    async def _refusal(self, request: web.Request) -> str:
        """Return the reason why the sender does not count as root on this node, or an empty string."""
        if request.transport is None:
            return "the connection is closed"
        near, far = (request.transport.get_extra_info(name) for name in ("sockname", "peername"))
        if near is None:  # TLS loses its addresses with the connection, before the transport is gone
            return "the connection is closed"
        peer, own = ip(far), ip(near)
        if own is None:
            return ""  # a unix socket, guarded by the mode of its file
        if peer is None or not (peer.is_loopback or peer == own):
            return "this came over the network"
        if any(name in request.headers for name in _PROXY):
            return "this came through a proxy"
        if not local_name(request.host):
            return f"{request.host!r:.100} is no name of this machine's loopback"
        if not await self._is_own(near, far):
            return "the sender is neither root nor the exporter's user"
        return ""

    async def _is_own(self, near: object, far: object) -> bool:
        """Return whether a connection is root's or the exporter's user's. Raises HTTPTooManyRequests.

        The kernel reports the user at once, so that a flood of other users' requests delays none of root. If the kernel
        does not, the table of sockets is read, which may be long: for one request at a time, with a pause after those
        of other users, and few requests wait.
        """
        allowed = (0, os.geteuid())
        user = socket_users.user(near, far)
        if user is not None:
            return user in allowed
        if self._looking >= MOST_LOOKING:
            raise web.HTTPTooManyRequests(text="too many requests of this kind; try again, or send SIGHUP to reload\n")
        self._looking += 1
        try:
            async with self._table:
                if await asyncio.to_thread(sockets.client, self._proc, near, far) in allowed:
                    return True
                await asyncio.sleep(PAUSE)
                return False
        finally:
            self._looking -= 1

    async def _do_reload(self, request: web.Request) -> web.Response:
        assert self._reload is not None
        await self._permit(request)
        if self._reloading.locked():
            raise web.HTTPConflict(text="a reload is under way\n")
        async with self._reloading:
            try:
                await asyncio.to_thread(self._reload)
            except ValueError as error:
                raise web.HTTPInternalServerError(text=f"not reloaded: {error}\n") from None
        return web.Response(text="reloaded\n")

    async def _do_release(self, request: web.Request) -> web.Response:
        assert self._release is not None
        await self._permit(request)
        given = request.query.get("seconds", "")
        try:
            seconds = float(given) if given else RELEASE_SECONDS
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= LONGEST_RELEASE:
            raise web.HTTPBadRequest(text=f"seconds has to be a number above 0, at most {LONGEST_RELEASE:.0f}\n")
        try:
            done = await asyncio.to_thread(self._release, seconds)
        except LookupError as error:
            raise web.HTTPNotFound(text=f"{error.args[0]}\n") from None
        if not done:
            raise web.HTTPGatewayTimeout(text="NVML does not answer: its handles may still be held\n")
        return web.Response(text=f"no GPU is held for {seconds:g} s\n")


def local_name(host: str) -> bool:
    """Return whether `host` is an IP address, localhost or this machine's name, which no remote page can have."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.removeprefix("[").removesuffix("]").lower()
    try:
        ip_address(name)
        return True
    except ValueError:
        own = socket.gethostname().lower()
        return name in ("localhost", own, own.partition(".")[0])
