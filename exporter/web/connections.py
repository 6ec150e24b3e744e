"""The open connections from accept() on: limits of their number, in all and for each peer, and eviction.

TLS and HTTP get a connection only after its admission here, so that neither handshakes nor incomplete request heads
are outside of the limits.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from asyncio import sslproto
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from exporter import descriptors
from exporter.resolve import socket_users
from exporter.resolve.sockets import ip

MOST = 256
MOST_OF_PEER = 64
"""A quarter of all, so that no single peer takes all connections."""
MOST_HANDSHAKES, MOST_HANDSHAKES_OF_PEER = 64, 16
"""Handshakes at a time, in all and for each peer."""
TLS_BUFFER = 16 * 1024
"""Bytes of a TLS connection's buffer: one record. asyncio's default is 256 KiB, also for unfinished handshakes."""
HANDSHAKE_SECONDS = 3.0
HEAD_SECONDS = 10.0
"""Time from accept(), or from the first byte of a later request, until the head of the request is complete."""
IDLE_SECONDS = 90.0
"""Time between two requests of a connection."""
SHUTDOWN_SECONDS = 2.0
MOST_BYTES = 64 * 1024
"""Bytes received beyond the request that is being answered; no head of an honest client is longer."""
_SWEEP_SECONDS = 0.5

log = logging.getLogger(__name__)


class Connections:
    """The protocol factory of a listening socket. `handle` returns the HTTP protocol, or None while stopping.

    At the limit the connection idle for longest is closed: of the same peer at the peer's limit, else of the peer with
    most connections, because a new connection is idle for longer than those of a flood until its request is read. A
    connection that is being answered is never closed for another; when all are, the new connection is refused.
    """

    def __init__(self, handle: Callable[[], asyncio.Protocol | None], context: ssl.SSLContext | None = None) -> None:
        self._handle, self._context = handle, context
        self.most = min(MOST, descriptors.limit() // 4)
        """Connections in all: fewer than MOST where they would take more than a quarter of the descriptors."""
        self._most_of_peer = min(MOST_OF_PEER, max(2, self.most // 4))
        sslproto.SSLProtocol.max_size = TLS_BUFFER  # asyncio has no parameter for this size
        self._open: dict[Connection, None] = {}
        self.of_peer: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def __call__(self) -> Connection:
        """Return the protocol of a newly accepted connection."""
        return Connection(self, self._handle, self._context)

    def start(self) -> None:
        """Start closing overdue connections periodically. Call in the event loop."""
        now = asyncio.get_running_loop().time()
        for connection in [connection for connection in self._open if connection.overdue(now)]:
            connection.abort()
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self.start)

    def close(self) -> None:
        """Close the connections that HTTP has not got yet; HTTP closes the others."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [connection for connection in self._open if connection.unserved]:
            connection.abort()

    def admit(self, new: Connection) -> bool:
        """Admit a connection, evicting an idle one at a limit. Returns False when there is no idle connection."""
        for crowd, most in self._crowds(new):
            if len(crowd) < most:
                continue
            idle = (connection for connection in crowd if not connection.answering)
            oldest = min(idle, key=self._first_to_close, default=None)
            if oldest is None:
                return False
            oldest.abort()
        self._open[new] = self.of_peer[new.peer][new] = None
        return True

    def _first_to_close(self, connection: Connection) -> tuple[int, float]:
        return -len(self.of_peer[connection.peer]), connection.since

    def _crowds(self, new: Connection) -> Iterator[tuple[Collection[Connection], int]]:
        """Yield the groups of connections that a new one joins, with the limit of each group."""
        own = self.of_peer.get(new.peer, {})
        if new.handshaking:
            yield [connection for connection in own if connection.handshaking], MOST_HANDSHAKES_OF_PEER
            yield [connection for connection in self._open if connection.handshaking], MOST_HANDSHAKES
        yield own, self._most_of_peer
        yield self._open, self.most

    def remove(self, connection: Connection) -> None:
        """Remove a connection. Does nothing when the connection was not admitted."""
        self._open.pop(connection, None)
        own = self.of_peer.get(connection.peer, {})
        own.pop(connection, None)
        if not own:
            self.of_peer.pop(connection.peer, None)


class Connection(asyncio.Protocol):
    """One connection, between the transport (TCP or TLS) and HTTP's protocol."""

    def __init__(
        self,
        table: Connections,
        handle: Callable[[], asyncio.Protocol | None],
        context: ssl.SSLContext | None,
    ) -> None:
        self._table, self._handle, self._context = table, handle, context
        self._handler: asyncio.Protocol | None = None
        self._early = b""
        self._untaken = 0
        self._head_since: float | None = None
        self._securing: asyncio.Task[None] | None = None
        self.handshaking = context is not None
        self.answering = False
        self.since = 0.0
        """Time of acceptance or of the last response, by the clock of the event loop."""
        self.peer = ""

    @property
    def unserved(self) -> bool:
        """Return whether HTTP has not got the connection yet."""
        return self._handler is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self.peer = peer(*(transport.get_extra_info(name) for name in ("sockname", "peername")))
        self.since = self._head_since = self._loop.time()
        if not self._table.admit(self):
            transport.abort()
        elif self._context is None:
            self._serve(transport)
        else:
            self._securing = self._loop.create_task(self._secure(transport, self._context))

    def data_received(self, data: bytes) -> None:
        self._untaken += len(data)
        if self._untaken > MOST_BYTES:
            self.abort()
        elif self._handler is None:
            self._early += data
        else:
            if self._head_since is None:
                self._head_since = self._loop.time()
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received() if self._handler else None

    def pause_writing(self) -> None:
        if self._handler:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.remove(self)
        if self._handler:
            self._handler.connection_lost(exc)

    def abort(self) -> None:
        """Close the connection at once, without sending pending data."""
        self._table.remove(self)
        self._transport.abort()

    def overdue(self, now: float) -> bool:
        """Return whether the peer has exceeded the time for the next request or its head."""
        if self.answering:
            return False
        if self._head_since is not None and now - self._head_since > HEAD_SECONDS:
            return True
        return now - self.since > IDLE_SECONDS

    @contextmanager
    def answer(self) -> Iterator[None]:
        """Mark the connection as being answered. Bytes received within the context belong to the next request."""
        self.answering, self._head_since, self._untaken = True, None, 0
        try:
            yield
        finally:
            self.answering, self.since = False, self._loop.time()
            if self._head_since is not None:
                self._head_since = self.since

    def _serve(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._handler = self._handle()
        if self._handler is None:
            self.abort()
            return
        self._handler.connection_made(transport)
        if self._early:
            self._handler.data_received(self._early)
            self._early = b""

    async def _secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        """Do the TLS handshake, after which this object is the protocol of the TLS transport."""
        if transport.is_closing():
            return  # evicted meanwhile: asyncio would begin the handshake, and keep its memory until the time-out
        secure = None
        try:
            secure = await self._loop.start_tls(
                transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except ssl.SSLError as error:
            address = ip(transport.get_extra_info("peername")) or "a client"
            log.warning("TLS handshake with %s failed: %s", address, error.reason or error)
        except OSError:
            pass  # a time-out, or the peer has left
        finally:
            self.handshaking = False
            if secure is None or transport.is_closing():
                self.abort()
            else:
                self._serve(secure)


def of(transport: asyncio.BaseTransport | None) -> Connection | None:
    """Return the connection of HTTP's transport, or None when it is closed."""
    found = transport.get_protocol() if transport is not None else None
    return found if isinstance(found, Connection) else None


def peer(near: object, far: object) -> str:
    """Return the unit of the limits of a connection from `near`, the server's address, to `far`.

    A user of this machine, who has all its addresses; else an IPv4 address, all of the loopback, an IPv6 /64 network,
    or "" for all unix sockets.
    """
    user = socket_users.user(near, far)
    if user is not None:
        return f"user {user}"
    found = ip(far)
    if found is not None and found.is_loopback:
        return "loopback"
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((found, 64), strict=False))
    return str(found or "")
