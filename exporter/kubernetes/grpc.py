"""One gRPC call over a Unix socket: HTTP/2 by h2, which takes 2 MB of memory, grpcio 13 MB.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md describes the protocol.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error

_PREFIX = 5
"""Bytes before a message: a flag for compression, and the message's length."""
_RECEIVE = 1 << 16
_MOST_MESSAGE = 200
_STATUS = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


class RpcError(OSError):
    """The call did not succeed: the status of the server, or the defect of its answer."""


def call(path: Path, method: str, request: bytes, seconds: float, most: int) -> memoryview:
    """Return the answer to a unary call of `method`, such as /package.Service/Method, of at most `most` bytes.

    Raises RpcError, TimeoutError when there is no answer within `seconds`, and OSError when connecting fails.
    """
    exchange = _Exchange(most)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(seconds)
            connection.connect(str(path))
            _converse(connection, exchange, exchange.begin(method, request, seconds), time.monotonic() + seconds)
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {seconds:g} s") from error
    return exchange.message()


def _converse(connection: socket.socket, exchange: _Exchange, send: bytes, deadline: float) -> None:
    while True:
        if send:
            connection.sendall(send)
        if exchange.ended:
            return
        connection.settimeout(max(1e-3, deadline - time.monotonic()))
        received = connection.recv(_RECEIVE)
        if not received:
            raise RpcError("the connection was closed before the answer was complete")
        if time.monotonic() > deadline:
            raise TimeoutError
        send = exchange.receive(received)


class _Exchange:
    """The single stream of a connection, without input or output."""

    def __init__(self, most: int) -> None:
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._most = most
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self.ended = False

    def begin(self, method: str, request: bytes, seconds: float) -> bytes:
        """Return the bytes to send first."""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
            "grpc-timeout": f"{max(1, round(seconds * 1000))}m",
        }
        self._connection.initiate_connection()
        self._connection.send_headers(1, list(headers.items()))
        self._connection.send_data(1, b"\0" + len(request).to_bytes(4, "big") + request, end_stream=True)
        return self._connection.data_to_send()

    def receive(self, received: bytes) -> bytes:
        """Process received bytes and return the bytes to send next. Raises RpcError."""
        try:
            for event in self._connection.receive_data(received):
                self._take(event)
            return self._connection.data_to_send()
        except (H2Error, UnicodeDecodeError) as error:
            raise RpcError(f"no HTTP/2, or a broken one: {str(error) or type(error).__name__}") from error

    def _take(self, event: Event) -> None:
        match event:
            case ResponseReceived(headers=headers) | TrailersReceived(headers=headers):
                self._headers.update((str(name), str(value)) for name, value in headers or ())
            case DataReceived(data=data, flow_controlled_length=length):
                self._body += data or b""
                if len(self._body) > self._most + _PREFIX:
                    raise RpcError(f"the answer is larger than {self._most} bytes")
                self._connection.acknowledge_received_data(length or 0, 1)
            case StreamEnded():
                self.ended = True
            case StreamReset() | ConnectionTerminated():
                raise RpcError(f"the call was refused (HTTP/2 error {event.error_code})")

    def message(self) -> memoryview:
        """Return the answer after the end of the stream. Raises RpcError."""
        if self._headers.get(":status") != "200":
            raise RpcError(f"HTTP status {self._headers.get(':status')}: no gRPC server listens there")
        status = self._headers.get("grpc-status", "")
        if status != "0":
            name = next((name for number, name in enumerate(_STATUS) if str(number) == status), status[:20])
            reason = unquote(self._headers.get("grpc-message", ""))[:_MOST_MESSAGE]
            raise RpcError(f"gRPC status {name!r}: {reason!r}")
        whole = memoryview(self._body)
        if len(whole) < _PREFIX or whole[0] or int.from_bytes(whole[1:_PREFIX], "big") != len(whole) - _PREFIX:
            raise RpcError("the answer is not one uncompressed message")
        return whole[_PREFIX:]
