"""The /metrics of inference engines: which ports of a process may have it, and how it is read."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from exporter import loopback
from exporter.loopback import Endpoint, OtherNamespaceError
from exporter.process_memory import living
from exporter.resolve import sockets

MOST_PORTS = 16
MOST_DESCRIPTORS = 65_536
MOST_BYTES = 8 << 20
LONGEST_LINE = 256
"""Bytes of the line before a chunk, extensions included."""
SECONDS = 3.0
"""For a connection, and for a whole answer."""
_PATHS = {"tensorrt-llm": ("/prometheus/metrics",)}
"""By engine, where it is not /metrics: TensorRT-LLM has JSON there."""
_HEAD = re.compile(rb"HTTP/1\.[01] 200[ \r].*?\r\n\r\n", re.DOTALL)
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
"""Line before a chunk (RFC 9112, 7.1): int() alone would accept a sign, too, and so a chunk that begins before it."""
_SOCKET = re.compile(r"socket:\[(\d{1,20})\]")


class NoPageError(Exception):
    """The reason why an engine's page was not read."""


def endpoints(proc: Path, pid: int) -> list[Endpoint]:
    """Return the ports at which a process itself listens, reachable by the loopback; at most MOST_PORTS.

    Raises OSError where the process has ended or may not be looked at.
    """
    namespace = loopback.namespace(proc, pid)
    own = _sockets(living(proc, pid) / "fd")
    ports = sorted({row.local[1] for row in sockets.listening(proc, pid) if row.inode in own})
    return [Endpoint(namespace, port) for port in ports[:MOST_PORTS]]


def read(proc: Path, pid: int, at: Endpoint, engine: str) -> str:
    """Return the text of the metrics at an endpoint. Raises NoPageError."""
    [path] = _PATHS.get(engine, ("/metrics",))
    try:
        with loopback.connect(proc, pid, at) as connection:
            return _body(_received(connection, path))
    except OtherNamespaceError as error:
        raise NoPageError(f"{error}: give --collector.serving.engine-namespaces") from error
    except OSError as error:
        raise NoPageError(f"port {at.port} of process {pid} has no metrics: {error.strerror or error}") from error


def _sockets(folder: Path) -> set[int]:
    return {_inode(entry) for entry in islice(folder.iterdir(), MOST_DESCRIPTORS)}


def _inode(entry: Path) -> int:
    try:
        match = _SOCKET.fullmatch(str(entry.readlink()))
    except OSError:
        return 0
    return int(match[1]) if match else 0


def _received(connection: socket.socket, path: str) -> bytes:
    """Request by HTTP/1.0, so that the answer has no chunks and ends with the connection."""
    until = time.monotonic() + SECONDS
    connection.settimeout(SECONDS)
    connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: text/plain;version=0.0.4\r\n\r\n".encode())
    return b"".join(_parts(connection, until))


def _parts(connection: socket.socket, until: float) -> Iterator[bytes]:
    size = 0
    while size <= MOST_BYTES:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole answer within {SECONDS:g} s")
        connection.settimeout(left)
        part = connection.recv(1 << 16)
        if not part:
            return
        size += len(part)
        yield part
        if not size - len(part) and not part.startswith(b"HTTP/"[: len(part)]):
            raise OSError("what listens there is no HTTP server")
    raise OSError(f"the answer is larger than {MOST_BYTES >> 20} MiB")


def _body(answer: bytes) -> str:
    head = _HEAD.match(answer[: 1 << 16])
    if not head:
        raise OSError(f"the answer begins with {answer[:40]!r}")
    body = answer[head.end() :]
    length = re.search(rb"\r\ncontent-length: *(\d{1,12})\r", head[0], re.IGNORECASE)
    if length and int(length[1]) > len(body):
        raise OSError("the answer is not whole")
    if re.search(rb"\r\ntransfer-encoding: *chunked", head[0], re.IGNORECASE):
        body = _unchunked(body)
    return body.decode("utf-8", "replace")


def _unchunked(body: bytes) -> bytes:
    """Return the data of chunks: some servers send them to clients of HTTP/1.0 too. Raises OSError."""
    data, at = bytearray(), 0
    while line := _CHUNK.match(body, at, at + LONGEST_LINE):
        begin, size = line.end(), int(line[1], 16)
        if not size:
            return bytes(data)
        data += body[begin : begin + size]
        at = begin + size + 2
    raise OSError("the answer is not whole")
