"""The connections that are open, from accept() on: how many, of which peers, and which one makes room for another.

TLS and HTTP see a connection only after it has its place here, so that neither a handshake nor a head that never comes
is outside the limits.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from asyncio import sslproto
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from exporter.resolve.sockets import ip

MOST = 256
MOST_OF_PEER = 64
"""A quarter, so that no single peer takes the places of all."""
MOST_HANDSHAKES, MOST_HANDSHAKES_OF_PEER = 64, 16
"""At once."""
TLS_BUFFER = 16 * 1024
"""Bytes of a TLS connection's buffer: a record. asyncio's own is 256 KiB for each, also for those that never finish."""
HANDSHAKE_SECONDS = 3.0
HEAD_SECONDS = 10.0
"""From accept(), or from the first byte of a later request, until the head of the request is whole."""
IDLE_SECONDS = 90.0
"""Between two requests of a connection."""
SHUTDOWN_SECONDS = 2.0
MOST_BYTES = 64 * 1024
"""Received and not yet part of a request that is being answered; no head of an honest client is longer."""
_SWEEP_SECONDS = 0.5


class Connections:
    """Makes the protocols of a listening socket. `handle` gives the HTTP protocol, None while stopping.

    Where there is no place left, the connection that has been idle for longest is closed: of the same peer if that has
    its share, else of all. One that is being answered is never closed for another; if all are, the new one is refused.
    """

    def __init__(self, handle: Callable[[], asyncio.Protocol | None], context: ssl.SSLContext | None = None) -> None:
        self._handle, self._context = handle, context
        sslproto.SSLProtocol.max_size = TLS_BUFFER  # there is no parameter for it
        self._open: dict[Connection, None] = {}
        self._of_peer: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def __call__(self) -> Connection:
        """The protocol of a connection that was just accepted."""
        return Connection(self, self._handle, self._context)

    def start(self) -> None:
        """Begins to close what is silent for too long. In the event loop."""
        now = asyncio.get_running_loop().time()
        for connection in [it for it in self._open if it.overdue(now)]:
            connection.abort()
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self.start)

    def close(self) -> None:
        """Closes what HTTP does not know of yet; the rest is closed by HTTP."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [it for it in self._open if it.strange]:
            connection.abort()

    def admit(self, new: Connection) -> bool:
        """Gives the connection a place, if need be another's; False where there is none."""
        for crowd, most in self._crowds(new):
            if len(crowd) < most:
                continue
            oldest = min((it for it in crowd if not it.answering), key=lambda it: it.since, default=None)
            if oldest is None:
                return False
            oldest.abort()
        self._open[new] = self._of_peer[new.peer][new] = None
        return True

    def _crowds(self, new: Connection) -> Iterator[tuple[Collection[Connection], int]]:
        """What a new connection competes with, and how many of these there may be."""
        own = self._of_peer.get(new.peer, {})
        if new.handshaking:
            yield [it for it in own if it.handshaking], MOST_HANDSHAKES_OF_PEER
            yield [it for it in self._open if it.handshaking], MOST_HANDSHAKES
        yield own, MOST_OF_PEER
        yield self._open, MOST

    def remove(self, connection: Connection) -> None:
        """Frees its place. Does nothing when it has none."""
        self._open.pop(connection, None)
        own = self._of_peer.get(connection.peer, {})
        own.pop(connection, None)
        if not own:
            self._of_peer.pop(connection.peer, None)


class Connection(asyncio.Protocol):
    """One connection: between the transport, of TCP or TLS, and HTTP's protocol."""

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
        """When it was accepted, or last answered, by the clock of the event loop."""
        self.peer = ""

    @property
    def strange(self) -> bool:
        """HTTP does not know of it yet."""
        return self._handler is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self.peer = peer(transport.get_extra_info("peername"))
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
        """Closes it without another word, and frees its place at once."""
        self._table.remove(self)
        self._transport.abort()

    def overdue(self, now: float) -> bool:
        """True when it has had time enough for what it is about to send."""
        if self.answering:
            return False
        if self._head_since is not None and now - self._head_since > HEAD_SECONDS:
            return True
        return now - self.since > IDLE_SECONDS

    @contextmanager
    def answer(self) -> Iterator[None]:
        """While one of its requests is answered. What comes meanwhile belongs to the next one."""
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
        """The handshake, after which this is the protocol of the TLS transport."""
        secure = None
        try:
            with suppress(OSError):  # ssl.SSLError and time-outs are; the peer has gone or speaks no TLS
                secure = await self._loop.start_tls(
                    transport,
                    self,
                    context,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                    ssl_shutdown_timeout=SHUTDOWN_SECONDS,
                )
        finally:
            self.handshaking = False
            if secure is None or transport.is_closing():
                self.abort()
            else:
                self._serve(secure)


def of(transport: asyncio.BaseTransport | None) -> Connection | None:
    """The connection that HTTP's transport belongs to; None when it is gone."""
    found = transport.get_protocol() if transport is not None else None
    return found if isinstance(found, Connection) else None


def peer(address: object) -> str:
    """Who shares a share: an IPv4 address, an IPv6 network of 64 bits, or all who come by a unix socket."""
    found = ip(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((found, 64), strict=False))
    return str(found or "")
