"""Requests of LLM servers: real servers of PyPI, each request counted once, against the client's clock."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exporter.bpf.targets import Targets
from tests.bpf.cuda_node import BUILD, Script, build_standins
from tests.bpf.fixtures import once
from tests.bpf.serving_node import SERVERS, Client, Observed, Server, Since, observe, request, served, stream_23
from tests.support import PATIENCE, until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="real software")]


observed = once(observe)


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with served(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def uvicorn() -> Iterator[Server]:
    with served("uvicorn-uvloop") as running:
        yield running


def test_streams(observed: Observed, server: Server) -> None:
    """23 streams of 5 tokens from 4 connections: each is one, with its tokens and the client's times.

    A busy server may send two events together: these have no gap.
    """
    answers = stream_23(observed, server)
    for it in answers:
        assert 0.002 <= (it.time_per_output_token or 0) < (it.duration or 0) / 4
    gaps = Counter(sum(it.gaps) for it in answers)
    assert gaps.keys() <= {2, 3, 4, 5} and gaps[4] + gaps[5] > len(answers) / 2


def test_whole_answers(observed: Observed, server: Server) -> None:
    """23 answers in one piece, and 3 that refuse, on connections that also serve what is no POST."""
    since = Since(observed, server)
    seconds, times = list[float](), [time.monotonic()]
    with Client(server) as client:
        for _ in range(23):
            seconds.append(client.whole(tokens=2000, first=0.01))
            times.append(time.monotonic())
        times.append(client.settle())
        for _ in range(3):
            client.whole(tokens=0, status=429)
    answers = since.answers(26)

    assert ["200"] * 23 + ["429"] * 3 == [it.status for it in answers]
    assert [(2000, "tiny")] * 23 == [(it.tokens["output"], it.model) for it in answers[:23]]
    assert {None} == {it.time_to_first_token for it in answers}
    whole = [it.duration or 0 for it in answers[:23]]
    assert 0.008 <= min(whole)
    # A server that answers the next request has returned from the call for the one before.
    assert all(it <= later - begun for it, begun, later in zip(whole, times, times[2:], strict=False))
    assert 0.05 > abs(min(seconds) - min(whole))


def test_bytes_one_by_one(observed: Observed, server: Server) -> None:
    """A request that comes byte by byte, and a stream that is read a few bytes at a time."""
    since = Since(observed, server)
    with Client(server) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request(stream=True, tokens=3):
            client.send(bytes([byte]))
        client.read_stream(0)
    with Client(server) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.send(request(stream=True, tokens=60))
        read = b""
        while not read.endswith(b"0\r\n\r\n"):
            read += client.socket.recv(50)
    answers = since.answers(2)

    assert [3, 60] == [it.tokens["output"] for it in answers]


def test_clients_that_go(observed: Observed, server: Server) -> None:
    """7 clients close or reset their connection in the middle of a stream, 3 before it; the 5 that stay are whole."""
    since = Since(observed, server)

    def leave(number: int) -> None:
        with Client(server) as client:
            client.send(request(stream=True, tokens=400, gap=0.01))
            while b"data: {" not in client.socket.recv(65_536):
                pass
            if number % 2:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def leave_early(number: int) -> None:
        with Client(server) as client:
            client.send(request(stream=number != 1, tokens=1, first=0.3))

    def stay(_: int) -> None:
        with Client(server) as client:
            client.stream(tokens=5)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(leave, range(7)))
        list(pool.map(leave_early, range(3)))
        list(pool.map(stay, range(5)))
    answers = since.answers(15)

    assert 10 == [it.aborted for it in answers].count("client_gone")
    assert 3 == [it.abandoned for it in answers].count(True)
    assert 5 == [it.aborted for it in answers].count("")


def test_pipelines(observed: Observed, uvicorn: Server) -> None:
    """11 requests in one write are 11."""
    since = Since(observed, uvicorn)
    with Client(uvicorn) as client:
        client.send(b"".join(request(tokens=number) for number in range(1, 12)))
        for _ in range(11):
            client.receive_whole()
    answers = since.answers(11)

    assert list(range(1, 12)) == [it.tokens["output"] for it in answers]


def test_in_flight_then_killed(observed: Observed) -> None:
    """3 streams are in flight; then the server is killed, and they have no end."""
    with served("uvicorn-asyncio") as server:
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
        for client in clients:
            client.socket.close()


def test_broken_stream(observed: Observed, uvicorn: Server) -> None:
    """A server that closes the connection before the end of a stream has not terminated it."""
    since = Since(observed, uvicorn)
    with Client(uvicorn) as client, pytest.raises(ConnectionResetError):
        client.stream(tokens=5, **{"break": 3})

    assert ["unterminated"] == [it.aborted for it in since.answers(1)]


def test_unix_socket(observed: Observed, tmp_path: Path) -> None:
    """The same over a Unix socket: 5 streams, and one with a client that goes."""
    with served("uvicorn-uvloop", str(tmp_path / "server")) as server:
        with Client(server) as client:
            for _ in range(5):
                client.stream(tokens=3)
        with Client(server) as client:
            client.send(request(stream=True, tokens=300, gap=0.02))
            client.socket.recv(1)
        until(lambda: len(observed.of(server.pids)) == 6, "six requests have ended")
        assert [""] * 5 + ["client_gone"] == [it.aborted for it in observed.of(server.pids)]


def test_queue_in_the_socket(observed: Observed, uvicorn: Server) -> None:
    """A request that waits for a stopped server was in the socket all the while, and its clock runs."""
    with Client(uvicorn) as client:
        since = Since(observed, uvicorn)
        client.whole(tokens=1)
        for pid in uvicorn.pids:
            os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        client.send(request(stream=True, tokens=2))
        time.sleep(0.2)
        for pid in uvicorn.pids:
            os.kill(pid, signal.SIGCONT)
        client.read_stream(started)
        settled = client.settle() - started
    _, answer = since.answers(2)

    assert 0.19 <= (answer.queue or 0) <= (answer.time_to_first_token or 0) <= settled


def test_families_of_gpu_users(tmp_path: Path) -> None:
    """A server is followed from when a process of its tree uses a GPU, and no longer than it runs."""
    build_standins()
    library = Path(shutil.copy(BUILD / "libcuda.so.1", tmp_path))
    targets = Targets()
    observed = Observed("gpu", targets, library)
    observed.start()
    try:
        targets.start()
        assert targets.scanned.wait(PATIENCE)
        with served("uvicorn-uvloop") as server:
            with Client(server) as client:
                client.whole(tokens=1)
            followed = observed.object.maps["processes"]
            assert not server.pids & {pid for pid, _ in followed.items()}
            with Script(libraries=library.parent):
                until(lambda: server.pids <= {pid for pid, _ in followed.items()}, "the server is followed")
                with Client(server) as client:
                    for _ in range(23):
                        client.whole(tokens=2)
                until(lambda: len(observed.of(server.pids)) >= 23, "23 answers")
            assert {"200": 23} == observed.numbers(server.pids, "gen_ai.server.requests", "status")
            pids = server.pids
        until(lambda: not pids & {pid for pid, _ in followed.items()}, "the server has ended")
    finally:
        targets.close()
        observed.close()
