"""Requests of LLM servers over TLS: real servers with OpenSSL, each request counted once, by the client's clock."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.bpf.targets import Targets
from exporter.serving.tls import ALL
from tests.bpf.http2_node import Http2Client, hypercorn
from tests.bpf.openssl_calls import Calls
from tests.bpf.serving_node import ROUTE, Client, Observed, Server, Since, request, served, stream_23
from tests.support import PATIENCE, until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed"),
    pytest.mark.evidence(feature="LLM requests", on="real software"),
]

KINDS = {
    "uvicorn-uvloop": ("--ssl-certfile={}.crt", "--ssl-keyfile={}.key"),
    "uvicorn-asyncio": ("--ssl-certfile={}.crt", "--ssl-keyfile={}.key"),
    "gunicorn": ("--certfile={}.crt", "--keyfile={}.key"),  # of a thread for each connection
}
"""Servers with memory BIOs, and one with threads that give OpenSSL their sockets."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a certificate and its key, without .crt and .key."""
    path = tmp_path_factory.mktemp("tls") / "server"
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{path}.key")
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    command = ["openssl", "req", "-x509", "-days", "2", *key, *name, "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return path


@contextmanager
def observing(tls: bool) -> Iterator[Observed]:
    """The collector, with discovery, which finds OpenSSL where `tls` has it probed."""
    targets = Targets()
    made = Observed(targets=targets, tls=tls)
    made.start()
    try:
        targets.start()
        assert targets.scanned.wait(PATIENCE)
        yield made
    finally:
        targets.close()
        made.close()


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    with observing(tls=True) as made:
        yield made


def trust(certificate: Path, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=f"{certificate}.crt")
    context.set_alpn_protocols([*protocols])
    return context


@contextmanager
def start(kind: str, certificate: Path) -> Iterator[Server]:
    options = [it.format(certificate) for it in KINDS[kind]]
    with served(kind, "", *options, tls=trust(certificate)) as running:
        yield running


def wait_until_probed(observed: Observed, server: Server, workers: bool = False) -> None:
    """A process is probed some time after it has mapped OpenSSL."""

    def processes() -> set[int]:
        return {it for it in server.pids if "libssl.so" in maps(it)}

    def maps(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/maps").read_text()
        except OSError:  # it has ended
            return ""

    def probed() -> set[int]:
        tls = observed.tls
        assert tls
        used = [it for it in [*tls.used.values()] if it.links]
        return {pid for it in used for pid in (it.users if ALL in it.links else it.links)}

    until(lambda: not workers or processes() - {server.process.pid}, "the server's workers run", PATIENCE)
    until(lambda: processes() <= probed(), "OpenSSL of the server is probed", PATIENCE)


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, observed: Observed, certificate: Path) -> Iterator[Server]:
    with start(request.param, certificate) as running:
        wait_until_probed(observed, running, workers=request.param == "gunicorn")
        yield running


@pytest.fixture(scope="module")
def http2(observed: Observed, certificate: Path) -> Iterator[Server]:
    options = f"--certfile={certificate}.crt", f"--keyfile={certificate}.key"
    with hypercorn(*options, tls=trust(certificate, "h2")) as running:
        wait_until_probed(observed, running, workers=True)
        yield running


def test_streams(observed: Observed, server: Server) -> None:
    """23 streams of 5 tokens from 4 connections: each is one, with its tokens and the client's times."""
    answers = stream_23(observed, server)
    assert {None} == {it.queue for it in answers}
    assert not observed.answers.get(os.getpid())


def test_whole_answers(observed: Observed, server: Server) -> None:
    """23 answers in one piece and 3 that refuse, on connections that also serve what is no POST."""
    since = Since(observed, server)
    with Client(server) as client:
        for _ in range(23):
            client.whole(tokens=2000, first=0.01)
        client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        client.receive_whole()
        for _ in range(3):
            client.whole(tokens=0, status=429)
    answers = since.answers(26)

    assert ["200"] * 23 + ["429"] * 3 == [it.status for it in answers]
    assert [(2000, "tiny")] * 23 == [(it.tokens["output"], it.model) for it in answers[:23]]
    assert {None} == {it.time_to_first_token for it in answers}
    assert {"": 0} == observed.numbers(server.pids, "gen_ai.server.requests.in_flight")


def test_bytes_one_by_one(observed: Observed, server: Server) -> None:
    """A request of which each byte is a TLS record, and a body of more than one record."""
    since = Since(observed, server)
    with Client(server) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request(stream=True, tokens=3):
            client.send(bytes([byte]))
        client.read_stream(0)
        client.whole(tokens=40_000, unused="x" * 100_000)
    answers = since.answers(2)

    assert [3, 40_000] == [it.tokens["output"] for it in answers]


@pytest.mark.parametrize("reset", [False, True])
def test_clients_that_go(observed: Observed, server: Server, reset: bool) -> None:
    """5 clients that close or reset the connection in the middle of a stream, beside one that reads on."""
    since = Since(observed, server)
    with Client(server) as reader:
        reader.send(request(stream=True, tokens=40, gap=0.02))
        for _ in range(5):
            with Client(server) as client:
                client.send(request(stream=True, tokens=300, gap=0.02))
                client.socket.recv(1)
                if reset:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reader.read_stream(0)
    answers = since.answers(6)

    assert ["", *["client_gone"] * 5] == sorted(it.aborted for it in answers)


def test_many_connections(observed: Observed, server: Server) -> None:
    """400 connections, one after another and at once: addresses of connections that were freed are used again."""
    since = Since(observed, server)

    def connections(count: int) -> None:
        for number in range(count):
            with Client(server) as client:
                client.whole(tokens=1 + number % 5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(connections, [50] * 8))
    answers = since.answers(400)

    assert {("200", "")} == {(it.status, it.aborted) for it in answers}
    assert 400 * 3 == sum(it.tokens["output"] for it in answers)


def test_broken_stream(observed: Observed, server: Server) -> None:
    """A server that closes the connection before the end of a stream has not terminated it."""
    since = Since(observed, server)
    with Client(server) as client, pytest.raises((ConnectionResetError, ssl.SSLError)):
        client.stream(tokens=5, **{"break": 3})

    assert ["unterminated"] == [it.aborted for it in since.answers(1)]


def test_killed_server(observed: Observed, certificate: Path) -> None:
    """3 streams are in flight; then the server is killed, and nothing is left of its connections."""
    with start("uvicorn-asyncio", certificate) as server:
        wait_until_probed(observed, server)
        pids = server.pids
        clients = [Client(server) for _ in range(3)]
        for client in clients:
            client.send(request(stream=True, tokens=2, first=0.05, gap=60))
            client.socket.recv(1)
        assert {"": 3} == observed.numbers(pids, "gen_ai.server.requests.in_flight")
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(30)
        until(lambda: len(observed.of(pids)) == 3, "three requests have ended")
        assert ["server_gone"] * 3 == [it.aborted for it in observed.of(pids)]
        list(observed.collect())
        assert not [key for key, _ in observed.object.maps["tls_connections"].items() if key.tgid in pids]
        for client in clients:
            client.socket.close()


def test_http2(observed: Observed, http2: Server) -> None:
    """23 streams on 4 connections of HTTP/2, several at once on each, and 4 that the client resets."""
    since = Since(observed, http2)

    def streams(count: int) -> list[float]:
        with Http2Client(http2) as client:
            made = {client.post(stream=True, tokens=5, first=0.05, gap=0.02) for _ in range(count)}
            client.read(made)
            latest = client.settle(made)
            cut = client.post(stream=True, tokens=300, gap=0.02)
            client.read_first(cut)
            client.reset(cut)
            time.sleep(0.05)
            return latest

    with ThreadPoolExecutor(4) as pool:
        times = sorted(it for found in pool.map(streams, (6, 6, 6, 5)) for it in found)
    answers = since.answers(27)

    whole = [it for it in answers if not it.aborted]
    assert {("200", "tiny", ROUTE)} == {(it.status, it.model, it.route) for it in whole}
    assert [{"input": 11, "output": 5}] * 23 == [it.tokens for it in whole]
    assert ["client_gone"] * 4 == [it.aborted for it in answers if it.aborted]
    for seen, latest in zip(sorted(it.time_to_first_token or 0 for it in whole), times, strict=True):
        assert 0.045 <= seen <= latest


def test_every_process(certificate: Path) -> None:
    """If the kernel cannot probe one process, all that map the file are probed; others are not counted."""
    targets = Targets()
    made = Observed(targets=targets, tls=True)
    made.start()
    assert made.tls
    made.tls.each = False
    try:
        targets.start()
        assert targets.scanned.wait(PATIENCE)
        with start("uvicorn-uvloop", certificate) as server:
            wait_until_probed(made, server)
            with Client(server) as client:
                for _ in range(23):
                    client.stream(tokens=2)
            until(lambda: len(made.of(server.pids)) >= 23, "23 answers")
            assert ["200"] * 23 == [it.status for it in made.of(server.pids)]
            assert {ALL} == {key for used in made.tls.used.values() for key in used.links}
    finally:
        targets.close()
        made.close()


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n" + b'{"model":"tiny"}'


@pytest.fixture
def calls(observed: Observed, tmp_path: Path) -> Iterator[Calls]:
    with Calls(tmp_path) as made:
        tls = observed.tls
        assert tls
        until(lambda: any(made.pid in used.links for used in [*tls.used.values()]), "the calls are probed", PATIENCE)
        yield made


@pytest.mark.parametrize("kind", ["", "_ex"])
def test_partial_writes_and_errors(observed: Observed, calls: Calls, kind: str) -> None:
    """Bytes that calls report as moved count, in whatever parts; calls that fail move nothing."""
    sent = request(tokens=1)
    for at in range(0, len(sent), 7):
        calls.read(1, sent[at:], 0, kind)
        calls.read(1, sent[at:], min(7, len(sent) - at), kind)
    for at in range(0, len(ANSWER), 11):
        calls.write(1, ANSWER[at:], 0, kind)
        calls.write(1, ANSWER[at:], min(11, len(ANSWER) - at), kind)
    calls.finish()

    until(lambda: observed.of({calls.pid}), "an answer")
    assert [("200", "tiny", "")] == [(it.status, it.model, it.aborted) for it in observed.of({calls.pid})]


def test_connections_of_one_thread(observed: Observed, calls: Calls) -> None:
    """Bytes of three connections alternate; one is freed in the middle, and its address is used again."""
    for ssl_ in (1, 2, 3):
        calls.read(ssl_, request(tokens=1), None, "_ex")
    calls.free(2)
    calls.read(2, request(tokens=1), None, "_ex")
    for ssl_ in (3, 2, 1):
        calls.write(ssl_, ANSWER, None, "_ex")
    calls.finish()

    until(lambda: len(observed.of({calls.pid})) >= 4, "4 answers")
    assert ["unknown", "", "", ""] == [it.aborted for it in observed.of({calls.pid})]


def test_hostile_calls(observed: Observed, calls: Calls) -> None:
    """Pointers to nothing and sizes beyond the buffer: nothing is read there, and what follows is counted."""
    calls.read(1, request(tokens=1), 1 << 40, "_ex")
    calls.wild()
    calls.read(2, request(tokens=1), None, "_ex")
    calls.write(2, ANSWER, None, "_ex")
    calls.finish()

    until(lambda: observed.of({calls.pid}), "an answer")
    assert [("200", "")] == [(it.status, it.aborted) for it in observed.of({calls.pid})]
