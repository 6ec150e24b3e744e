"""Servers of HTTP/2 that nobody here wrote, and clients of it with a clock that is the truth."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events

from tests.bpf.serving_node import HERE, ROUTE, Client, Server
from tests.support import free_port, until


@contextmanager
def running(command: list[str], port: int, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server of this command, once its port takes connections."""
    process = subprocess.Popen(command, cwd=HERE, start_new_session=True)
    server = Server(process, ("127.0.0.1", port), tls)
    try:
        until(lambda: _listens(server), f"{command[0]} listens", 60)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@contextmanager
def hypercorn(*options: str, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """The program of tests/bpf/serving_app.py under hypercorn: HTTP/2 by prior knowledge, by upgrade or over TLS."""
    port = free_port()
    command = [sys.executable, "-m", "hypercorn", f"--bind=127.0.0.1:{port}", "--log-level=critical", *options]
    with running([*command, "serving_app:application"], port, tls) as server:
        yield server


@contextmanager
def grpc_server() -> Iterator[Server]:
    """The same as a server of gRPC: tests/bpf/grpc_app.py."""
    port = free_port()
    with running([sys.executable, "grpc_app.py", str(port)], port) as server:
        yield server


def _listens(server: Server) -> bool:
    assert server.process.poll() is None
    try:
        socket.create_connection(server.address, 10).close()
    except OSError:
        return False
    return True


@dataclass
class Times:
    """Seconds since a request to its first token and to its end, 0 without one, and how it ended."""

    first: float = 0.0
    end: float = 0.0
    ended: str = ""


class Http2Client(Client):
    """A connection with any number of streams at once."""

    def __init__(self, server: Server, preface: bool = True) -> None:
        super().__init__(server)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.streams: dict[int, Times] = {}
        self._answered = 0
        self._began: dict[int, float] = {}
        if preface:
            self.h2.initiate_connection()
            self.flush()

    def upgrade(self) -> None:
        """Get something by HTTP/1.1, with the upgrade to HTTP/2: hypercorn refuses it for requests with a body."""
        settings = self.h2.initiate_upgrade_connection()
        assert settings
        head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: "
        self.streams[1], self._began[1] = Times(), time.monotonic()
        self.send(head + settings + b"\r\n\r\n")
        assert self.receive_head().startswith(b"HTTP/1.1 101")
        self.flush()
        self._take(self._read)
        self.read({1})

    def flush(self, at_once: int = 1 << 30) -> None:
        """Send what the connection has to send, so many bytes in each call."""
        data = self.h2.data_to_send()
        for at in range(0, len(data), at_once):
            self.socket.sendall(data[at : at + at_once])

    def post(self, flush: bool = True, padding: int | None = None, **wanted: Any) -> int:
        """Begin a request: the number of its stream."""
        stream = self.h2.get_next_available_stream_id()
        body = json.dumps(wanted).encode()
        fields = [(":method", "POST"), (":path", ROUTE), (":scheme", "http"), (":authority", "localhost")]
        fields += [("content-type", "application/json"), ("x-request", str(stream) * 20)]
        self.streams[stream], self._began[stream] = Times(), time.monotonic()
        self.h2.send_headers(stream, fields)
        self.h2.send_data(stream, body, end_stream=True, pad_length=padding)
        if flush:
            self.flush()
        return stream

    def reset(self, stream: int) -> None:
        """Break a stream off."""
        self.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        self.flush()

    def read(self, streams: set[int], at_once: int = 65_536) -> None:
        """Read until these streams have ended, so many bytes in each call."""
        while any(not self.streams[stream].ended for stream in streams):
            data = self.socket.recv(at_once)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._take(data)

    def settle(self, streams: set[int]) -> list[float]:
        """Return the seconds since these requests once a ping is answered: the server's calls before have returned."""
        answered = self._answered
        self.h2.ping(b"settling")
        self.flush()
        while self._answered == answered:
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._take(data)
        return [time.monotonic() - self._began[stream] for stream in streams]

    def read_first(self, stream: int) -> None:
        """Read until a stream has its first token."""
        while not self.streams[stream].first:
            self._take(self.socket.recv(65_536))

    def _take(self, data: bytes) -> None:
        now = time.monotonic()
        for event in self.h2.receive_data(data):
            self._answered += isinstance(event, h2.events.PingAckReceived)
            stream = getattr(event, "stream_id", None)
            times = self.streams.get(stream or 0)
            if times is None or stream is None:
                continue
            if isinstance(event, h2.events.DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, stream)
                if b"data: {" in event.data and not times.first:
                    times.first = now - self._began[stream]
            elif isinstance(event, h2.events.StreamEnded):
                times.end, times.ended = now - self._began[stream], "complete"
            elif isinstance(event, h2.events.StreamReset):
                times.ended = "reset"
        self.flush()
