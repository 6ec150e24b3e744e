"""An HTTP session of OTLP push with answers that are bounded in size and time.

A requests.Session reads an answer of any length for as long as bytes arrive: its timeout is that of one silence.
Imported only when an endpoint is configured, like all that needs requests.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from typing import Any

import requests
import urllib3

from exporter.otlp_answer import AnswerError

LIMIT = 64 << 10
"""Bytes of an answer, its head included, and of its body when decoded."""
_PIECE = 1024
"""Bytes to decode at a time: gzip makes at most 1,032 of one."""
_request = threading.local()
"""The deadline of the thread's request, on the clock of time.monotonic."""


class Session(requests.Session):
    """A session that follows no redirects, and raises AnswerError for an answer beyond LIMIT or the timeout.

    AnswerError is no error of the connection: the SDK does not send again what the endpoint may have taken.
    """

    def __init__(self) -> None:
        super().__init__()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter())

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        seconds = options.get("timeout")
        _request.deadline = time.monotonic() + seconds if isinstance(seconds, int | float) else None
        response = super().send(request, **{**options, "stream": True})
        try:
            body = _body(response)
        except AnswerError:
            response.close()
            if 200 <= response.status_code < 300:
                raise
            body = b""  # the status is the reason
        response.raw = io.BytesIO(body)
        return response

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return none. Where requests looks for the target it reads the body first, of any length when decoded."""


def _body(response: requests.Response) -> bytes:
    body = bytearray()
    try:
        for piece in response.raw.stream(_PIECE, decode_content=True):
            body += piece
            if len(body) > LIMIT:
                raise _too_long()
    except urllib3.exceptions.HTTPError as error:
        raise AnswerError(f"the answer ended early: {type(error).__name__}: {error}"[:300]) from error
    return bytes(body)


def _too_long() -> AnswerError:
    return AnswerError(f"the answer has more than {LIMIT} bytes")


class _Reader(io.RawIOBase):
    """Reads one answer from a socket, up to LIMIT and to the deadline of the thread's request."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._raw = connection, connection.makefile("rb", buffering=0)
        self._deadline = getattr(_request, "deadline", None)
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline is not None:
            # Not 0, which would make the socket non-blocking.
            self._connection.settimeout(max(0.001, self._deadline - time.monotonic()))
        late = self._deadline is not None and time.monotonic() >= self._deadline
        try:
            count = None if late else self._raw.readinto(buffer)
        except TimeoutError:
            count = None
        if count is None:
            if self._count:
                raise AnswerError("the answer took longer than the timeout")
            raise TimeoutError("timed out")
        self._count += count
        if self._count > LIMIT:
            raise _too_long()
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Reader(sock))


class _Adapter(requests.adapters.HTTPAdapter):
    """Has each connection, also by a proxy, read its answers with a _Reader."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        _bound(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        known = proxy in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **options)
        if not known:
            _bound(manager)
        return manager


def _bound(manager: urllib3.PoolManager) -> None:
    """Have the manager's pools make connections with the answers of _Response."""
    manager.pool_classes_by_scheme = {
        scheme: _pool_class(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
    }


def _pool_class(pool: Any) -> Any:
    connection = type("Connection", (pool.ConnectionCls,), {"response_class": _Response})
    return type("Pool", (pool,), {"ConnectionCls": connection})
