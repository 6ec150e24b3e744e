"""Real HTTP servers with an LLM server's program, clients with a clock that is the truth, and the collector on them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from exporter.bpf.library import Library
from exporter.bpf.targets import Targets
from exporter.collectors.serving import Serving
from exporter.model import Span
from exporter.resolve.process import ProcessTable
from exporter.serving import answer
from exporter.serving.answer import Answer
from exporter.serving.http2 import Fields
from tests.nodes import make_node
from tests.support import free_port, until

HERE = Path(__file__).parent
ROUTE = "/v1/chat/completions"
SERVERS = {
    "uvicorn-uvloop": ("uvicorn", "--loop=uvloop", "--http=httptools"),
    "uvicorn-asyncio": ("uvicorn", "--loop=asyncio", "--http=h11"),
    "granian": ("granian", "--interface=asgi"),
    "aiohttp": (),
    "gunicorn": ("gunicorn", "--worker-class=gthread", "--threads=16"),
    "node": (),
}


class Observed(Serving):
    """Keeps the meaning of each record, by pid."""

    def __init__(
        self,
        processes: str = "all",
        targets: Targets | None = None,
        library: Path | None = None,
        **settings: Any,
    ) -> None:
        """Users of no other driver than `library` count: other tests have theirs."""
        self.answers: dict[int, list[Answer]] = {}
        self.spans: list[Span] = []
        self._library = library
        settings |= {"processes": processes, "series-limit": 20_000}
        super().__init__(make_node(settings, ProcessTable(), targets, self.spans.append))

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        if library.path == str(self._library):
            super().process_started(pid, library, from_first_call)

    def _count(self, pid: int, record: answer.RequestRecord, read: Answer, fields: Fields | None) -> None:
        super()._count(pid, record, read, fields)
        self.answers.setdefault(pid, []).append(read)  # last: who sees it finds its span and its numbers

    def of(self, pids: set[int]) -> list[Answer]:
        return [it for pid in pids for it in self.answers.get(pid, ())]

    def follow(self, pids: set[int]) -> None:
        """Follow these processes: with `processes="gpu"` and no user of a GPU no others, also none of other tests."""
        processes, candidates = self.object.maps["processes"], self.object.maps["candidates"]
        processes.fill(pids, processes.value())
        candidates.fill({pid % candidates.max_entries for pid in pids}, 1)

    def numbers(self, pids: set[int], name: str, label: str = "") -> dict[str, Any]:
        """The values of a metric of these processes, by a label."""
        found: dict[str, Any] = {}
        for it in self.collect():
            if it.metric.name == name and it.labels.get("pid") in set(map(str, pids)):
                key = it.labels.get(label, "")
                found[key] = found[key] + it.value if key in found else it.value
        return found


class Server:
    """A running server; `address` is what clients connect to, by TLS where `tls` has its certificate."""

    def __init__(self, process: subprocess.Popen[bytes], address: Any, tls: ssl.SSLContext | None = None) -> None:
        self.process, self.address, self.tls = process, address, tls

    @property
    def pids(self) -> set[int]:
        """The process and those that it started: servers may answer in workers."""
        found = {self.process.pid}
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with suppress(OSError):  # the thread has ended
                found |= {int(pid) for pid in task.read_text().split()}
        return found


@contextmanager
def served(kind: str, unix: str = "", *options: str, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server of this kind, at a port of its own or at a Unix socket."""
    words, port = SERVERS[kind], free_port()
    if kind == "node":
        if not shutil.which("node"):
            pytest.skip("no node (Debian's package nodejs)")
        command = ["node", "serving_app.js", str(port)]
    elif kind == "gunicorn":
        bound = [f"--bind=127.0.0.1:{port}", "--log-level=critical"]
        command = [sys.executable, "-m", *words, *bound, *options, "serving_wsgi:application"]
    elif words:
        where = [f"--uds={unix}"] if unix else ["--host=127.0.0.1", f"--port={port}"]
        quiet = ["--log-level=critical"]
        command = [sys.executable, "-m", *words, *where, *quiet, *options, "serving_app:application"]
    else:
        command = [sys.executable, "serving_app.py", str(port)]
    process = subprocess.Popen(command, cwd=HERE, start_new_session=True)
    server = Server(process, unix or ("127.0.0.1", port), tls)
    try:
        until(lambda: _answers(server), f"{kind} answers")
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _answers(server: Server) -> bool:
    assert server.process.poll() is None
    try:
        with Client(server) as client:
            client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            return client.receive_head().startswith(b"HTTP/1.1 200")
    except OSError:
        return False


class Client:
    """A connection that writes and reads bytes, with times of CLOCK_MONOTONIC."""

    def __init__(self, server: Server) -> None:
        kind = socket.AF_UNIX if isinstance(server.address, str) else socket.AF_INET
        self.socket = socket.socket(kind)
        self.socket.settimeout(60)
        try:
            self.socket.connect(server.address)
            if server.tls:
                self.socket = server.tls.wrap_socket(self.socket, server_hostname="localhost")
        except OSError:
            self.socket.close()
            raise
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def stream(self, **wanted: Any) -> tuple[float, float, float]:
        """Request a stream and read it to its end: seconds to the first token, to the last, and to the end."""
        started = time.monotonic()
        self.send(request(stream=True, **wanted))
        return self.read_stream(started)

    def read_stream(self, started: float) -> tuple[float, float, float]:
        first = last = 0.0
        while not self._read.endswith(b"0\r\n\r\n"):
            before = len(self._read)
            self._read += self._more()
            now = time.monotonic() - started
            if b"data: {" in self._read[max(0, before - 8) :]:
                first, last = first or now, now
        self._read = b""
        return first, last, time.monotonic() - started

    def whole(self, **wanted: Any) -> float:
        """Request an answer in one piece: seconds to its end."""
        started = time.monotonic()
        self.send(request(**wanted))
        self.receive_whole()
        return time.monotonic() - started

    def settle(self) -> float:
        """Return the time when an answer to what is no POST is here: the server's calls for all before have returned.

        Earlier a client may have read what the server's call has sent, and the call itself not have returned.
        """
        self.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        self.receive_whole()
        return time.monotonic()

    def receive_head(self) -> bytes:
        while b"\r\n\r\n" not in self._read:
            self._read += self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        return head

    def receive_whole(self) -> bytes:
        head = self.receive_head().lower()
        size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(self._read) < size:
            self._read += self._more()
        body, self._read = self._read[:size], self._read[size:]
        return body

    def _more(self) -> bytes:
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        return data


def request(route: str = ROUTE, **wanted: Any) -> bytes:
    """A POST request for this answer."""
    body = json.dumps(wanted).encode()
    return (
        f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


@contextmanager
def observe(processes: str = "all") -> Iterator[Observed]:
    """The collector on all processes, or with "gpu" on those that a test has it follow: it finds no user of a GPU."""
    observed = Observed(processes, Targets())
    observed.start()
    try:
        yield observed
    finally:
        observed.close()


class Since:
    """Answers observed of a server from now on."""

    def __init__(self, observed: Observed, server: Server) -> None:
        self._observed, self._server = observed, server
        self._before = {pid: len(found) for pid, found in [*observed.answers.items()]}

    def answers(self, count: int) -> list[Answer]:
        """Exactly so many answers."""
        until(lambda: len(self._found()) >= count, lambda: f"{count} answers; there are {len(self._found())}")
        time.sleep(0.1)
        assert count == len(self._found())
        return self._found()

    def _found(self) -> list[Answer]:
        return [it for pid in self._server.pids for it in self._observed.of({pid})[self._before.get(pid, 0) :]]


def stream_23(observed: Observed, server: Server) -> list[Answer]:
    """Return 23 streams of 5 tokens, over 4 connections, after they were compared with the clients' times."""
    since = Since(observed, server)

    def stream(client: Client) -> tuple[float, float, float]:
        started = time.monotonic()
        first, _, end = client.stream(tokens=5, first=0.02, gap=0.01)
        return first, end, client.settle() - started

    def streams(count: int) -> list[tuple[float, float, float]]:
        with Client(server) as client:
            return [stream(client) for _ in range(count)]

    with ThreadPoolExecutor(4) as pool:
        times = [it for found in pool.map(streams, (6, 6, 6, 5)) for it in found]
    answers = since.answers(23)
    latest = sorted(it[2] for it in times)

    assert {("200", "tiny", ROUTE, "")} == {(it.status, it.model, it.route, it.aborted) for it in answers}
    assert [{"input": 11, "output": 5}] * 23 == [it.tokens for it in answers]
    first = sorted(it.time_to_first_token or 0 for it in answers)
    whole = sorted(it.duration or 0 for it in answers)
    for seen, clients in ((first, sorted(it[0] for it in times)), (whole, sorted(it[1] for it in times))):
        assert 0.018 <= seen[0]  # uvloop counts in ms
        assert [] == [pair for pair in zip(seen, latest, strict=True) if pair[0] > pair[1]]
        assert 0.05 > abs(clients[0] - seen[0])
    return answers
