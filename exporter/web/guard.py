"""Checks of every request: the web configuration's rate limit, client names, headers and users."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Executor

from exporter.web import connections, tls
from exporter.web.config import RateLimit, WebConfig, WebConfigError, WebConfigFile
from exporter.web.http import web, web_response
from exporter.web.logins import Logins

MOST_REFUSED = 100
"""Size of the cache of wrong passwords, which makes a repeated one cheap."""
HEADERS = {
    "Server": "accel-exporter",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "deny",
    "Referrer-Policy": "no-referrer",
}
vars(web_response)["SERVER_SOFTWARE"] = HEADERS["Server"]  # of answers to malformed requests, which no signal reaches

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger(__name__)


class Guard:
    """aiohttp middleware for a web configuration file, or for none.

    The paths in `exempt` (health checks) need no user, certificate name or rate: kubelet probes carry no credentials.
    """

    def __init__(self, file: WebConfigFile | None, exempt: Collection[str], executor: Executor) -> None:
        self._file = file
        self._exempt = frozenset(exempt)
        self._users = Users(executor)
        self._limiter = Limiter(file.read().rate_limit if file else RateLimit())
        self._config = WebConfig()
        self._problem = ""

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._file is not None:
            try:
                self._config = self._file.read()
                self._problem = ""
            except WebConfigError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    log.error("requests are answered with 500 until the file is corrected: %s", error)
                raise web.HTTPInternalServerError(text="the web configuration file is wrong; see the log\n") from None
            if request.path not in self._exempt:
                await self._check(request, self._config)
        return await handler(request)

    async def _check(self, request: web.Request, config: WebConfig) -> None:
        if not self._limiter.allows():
            raise web.HTTPTooManyRequests(text="rate limit reached; try again later\n")
        if config.tls and config.tls.client_allowed_sans:
            tunnel = request.transport and request.transport.get_extra_info("ssl_object")
            if not tunnel or not tls.allowed(tunnel.getpeercert(), config.tls.client_allowed_sans):
                raise web.HTTPForbidden(text="the client certificate carries no allowed name\n")
        connection = connections.of(request.transport)
        peer = connection.peer if connection else ""
        if config.users and not await self._users.knows(request.headers.get("Authorization", ""), config.users, peer):
            raise web.HTTPUnauthorized(text="user and password are needed\n", headers={"WWW-Authenticate": "Basic"})

    async def add_headers(self, _request: web.Request, response: web.StreamResponse) -> None:
        """Add the exporter's headers, then those of the web configuration; for aiohttp's on_response_prepare."""
        response.headers.update(HEADERS)
        response.headers.update(self._config.http.headers)


class Limiter:
    """A token bucket: one request an interval on average, `burst` at once."""

    def __init__(self, limit: RateLimit) -> None:
        self._interval, self._burst = limit.seconds, limit.burst
        self._tokens, self._at = float(limit.burst), time.monotonic()

    def allows(self) -> bool:
        """Take a token. Returns False when there is none."""
        if not self._interval:
            return True
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) / self._interval)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Users:
    """Checks basic authentication. bcrypt takes tens of milliseconds, so comparisons are serial, threaded, cached."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._right: dict[str, bytes] = {}
        """Keys of right passwords by user, apart from refused ones, of which any client can make more."""
        self._refused: OrderedDict[bytes, None] = OrderedDict()
        self._salt = secrets.token_bytes(16)
        self._logins = Logins()

    async def knows(self, authorization: str, users: Mapping[str, str], peer: str = "") -> bool:
        """Return whether an Authorization header has a valid user and password.

        Raises HTTPTooManyRequests when too many comparisons are waiting.
        """
        user, password = _credentials(authorization)
        if user is None:
            return False
        # An unknown user takes as long as a known one, so that response times do not reveal names.
        hashed = users.get(user) or _nobody(users)
        text = "\0".join((user, hashed, password)).encode("utf-8", "surrogateescape")
        key = hashlib.blake2b(text, key=self._salt).digest()
        if hmac.compare_digest(self._right.get(user, b""), key):
            return True
        if key in self._refused:
            self._refused.move_to_end(key)
            return False
        if await self._compare(password, hashed, peer) and user in users:
            self._right = {name: known for name, known in self._right.items() if name in users} | {user: key}
            return True
        self._refused[key] = None
        while len(self._refused) > MOST_REFUSED:
            self._refused.popitem(last=False)
        return False

    async def _compare(self, password: str, hashed: str, peer: str) -> bool:
        async def compare() -> bool:
            return await asyncio.get_running_loop().run_in_executor(self._executor, _matches, password, hashed)

        return await self._logins.run(peer, compare)


def _credentials(authorization: str) -> tuple[str | None, str]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None, ""
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        return None, ""
    user, colon, password = text.partition(":")
    return (user, password) if colon else (None, "")


def _nobody(users: Mapping[str, str]) -> str:
    """Return a hash that no password has, with the highest cost among the users' hashes."""
    cost = max(hashed.split("$")[2] for hashed in users.values())
    return f"$2b${cost}${'.' * 53}"


def _matches(password: str, hashed: str) -> bool:
    import bcrypt  # where there are users only

    # bcrypt reads 72 bytes of a password; Go's compares those, the Python package refuses longer ones
    try:
        return bcrypt.checkpw(password.encode("utf-8", "surrogateescape")[:72], hashed.encode())
    except ValueError:
        return False
