"""Requests of LLM servers over HTTP/2: real servers, each stream counted once, against the client's clock."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.bpf.fixtures import once
from tests.bpf.grpc_app import SERVICE
from tests.bpf.http2_node import Http2Client, grpc_server, hypercorn, running
from tests.bpf.serving_node import ROUTE, Observed, Server, Since, observe
from tests.support import free_port, until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="real software")]

GENERATE, EMBED = f"/{SERVICE}/Generate", f"/{SERVICE}/Embed"


observed = once(observe)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with hypercorn() as running:
        yield running


@pytest.fixture(scope="module")
def engine() -> Iterator[Server]:
    with grpc_server() as running:
        yield running


def test_streams_at_once(observed: Observed, server: Server) -> None:
    """23 streams on 4 connections, several at once on each: each is one, with its tokens and the client's times."""
    since = Since(observed, server)

    def streams(count: int) -> list[tuple[float, float, float]]:
        with Http2Client(server) as client:
            made = {client.post(stream=True, tokens=5, first=0.05, gap=0.02) for _ in range(count)}
            client.read(made)
            clients = [(client.streams[it].first, client.streams[it].end) for it in made]
            return [(*it, latest) for it, latest in zip(clients, client.settle(made), strict=True)]

    with ThreadPoolExecutor(4) as pool:
        times = [it for found in pool.map(streams, (6, 6, 6, 5)) for it in found]
    answers = since.answers(23)
    latest = sorted(it[2] for it in times)

    assert {("200", "tiny", ROUTE, "")} == {(it.status, it.model, it.route, it.aborted) for it in answers}
    assert [{"input": 11, "output": 5}] * 23 == [it.tokens for it in answers]
    first = sorted(it.time_to_first_token or 0 for it in answers)
    whole = sorted(it.duration or 0 for it in answers)
    for seen, clients in ((first, sorted(it[0] for it in times)), (whole, sorted(it[1] for it in times))):
        assert 0.045 <= seen[0]
        assert [] == [pair for pair in zip(seen, latest, strict=True) if pair[0] > pair[1]]
        assert 0.05 > seen[0] - clients[0]
    assert all(0 < (it.time_per_output_token or 0) < (it.duration or 0) / 4 for it in answers)


def test_whole_answers(observed: Observed, server: Server) -> None:
    """23 whole answers and 3 that refuse: statuses, tokens and route of each, though fields refer to earlier ones."""
    since = Since(observed, server)
    with Http2Client(server) as client:
        for _ in range(23):
            client.read({client.post(tokens=2000, first=0.01)})
        for _ in range(3):
            client.read({client.post(tokens=0, status=429)})
    answers = since.answers(26)

    assert [("200", ROUTE, 2000)] * 23 == [(it.status, it.route, it.tokens["output"]) for it in answers[:23]]
    assert [("429", ROUTE)] * 3 == [(it.status, it.route) for it in answers[23:]]
    assert {None} == {it.time_to_first_token for it in answers}


def test_bytes_one_by_one(observed: Observed, server: Server) -> None:
    """A connection that is written byte by byte, another that is read so, and one with padded frames."""
    since = Since(observed, server)
    with Http2Client(server) as client:
        made = client.post(flush=False, stream=True, tokens=3)
        client.flush(1)
        client.read({made})
    with Http2Client(server) as client:
        client.read({client.post(stream=True, tokens=7)}, 1)
    with Http2Client(server) as client:
        client.read({client.post(stream=True, tokens=11, padding=200)})
    answers = since.answers(3)

    assert [3, 7, 11] == [it.tokens["output"] for it in answers]
    assert all(it.time_to_first_token for it in answers)


def test_upgrade(observed: Observed, server: Server) -> None:
    """Requests after an upgrade from HTTP/1.1, which was of no POST."""
    since = Since(observed, server)
    with Http2Client(server, preface=False) as client:
        client.upgrade()
        client.read({client.post(stream=True, tokens=3), client.post(stream=True, tokens=5)})
    answers = since.answers(2)

    assert {("200", ROUTE, 3), ("200", ROUTE, 5)} == {(it.status, it.route, it.tokens["output"]) for it in answers}
    assert {"": 0} == observed.numbers(server.pids, "gen_ai.server.requests.in_flight")


def test_clients_that_go(observed: Observed, server: Server) -> None:
    """7 streams are reset, and 5 are of a connection that is; the 5 that stay are whole."""
    since = Since(observed, server)
    with Http2Client(server) as client, Http2Client(server) as leaver:
        stay = {client.post(stream=True, tokens=5, gap=0.02) for _ in range(5)}
        for _ in range(7):
            made = client.post(stream=True, tokens=200, gap=0.05)
            client.read_first(made)
            client.reset(made)
        for _ in range(5):
            leaver.read_first(leaver.post(stream=True, tokens=200, gap=0.05))
        client.read(stay)
        # Without a reset hypercorn leaves some of these connections open.
        leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        leaver.socket.close()
        answers = since.answers(17)

    assert 12 == [it.aborted for it in answers].count("client_gone")
    assert 5 == [it.aborted for it in answers].count("")
    assert all(it.time_to_first_token for it in answers)


def test_in_flight_then_killed(observed: Observed) -> None:
    """3 streams of a connection are in flight; then the server is killed, and they have no end."""
    with hypercorn() as server, Http2Client(server) as client:
        pids = server.pids
        for _ in range(3):
            client.read_first(client.post(stream=True, tokens=2, first=0.05, gap=60))
        assert 3 == sum(observed.numbers(pids, "gen_ai.server.requests.in_flight").values())
        os.killpg(server.process.pid, signal.SIGKILL)
        until(lambda: len(observed.of(pids)) == 3, "three requests have ended")
        assert ["server_gone"] * 3 == [it.aborted for it in observed.of(pids)]


def test_100_streams_in_one_write(observed: Observed, server: Server) -> None:
    """As many streams as the server allows, begun in one write."""
    since = Since(observed, server)
    with Http2Client(server) as client:
        made = {client.post(flush=False, stream=True, tokens=2, gap=0.1) for _ in range(97)}
        client.flush()
        client.read(made)
    answers = since.answers(97)

    assert {("", 2)} == {(it.aborted, it.tokens["output"]) for it in answers}


def address(server: Server) -> str:
    host, port = server.address
    return f"{host}:{port}"


def calls(channel: Any, count: int, **wanted: Any) -> list[tuple[float, float, int]]:
    """Streams of gRPC at once: seconds to the first message and to the end, and the messages."""

    def call(_: int) -> tuple[float, float, int]:
        started, first, messages = time.monotonic(), 0.0, 0
        for _message in channel.unary_stream(GENERATE)(json.dumps(wanted).encode()):
            first, messages = first or time.monotonic() - started, messages + 1
        return first, time.monotonic() - started, messages

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


def test_grpc_streams(observed: Observed, engine: Server) -> None:
    """23 streams of gRPC, some of messages larger than a frame, on one connection: times are the client's."""
    since, begun = Since(observed, engine), time.monotonic()
    with grpc.insecure_channel(address(engine)) as channel:
        times = calls(channel, 12, tokens=5, first=0.1, gap=0.05) + calls(
            channel, 11, tokens=5, first=0.1, gap=0.05, size=40_000
        )
    answers = since.answers(23)
    took = time.monotonic() - begun  # with the server's calls, which may return when a client has its message

    assert {("OK", GENERATE, "")} == {(it.status, it.route, it.aborted) for it in answers}
    assert [5] * 23 == [it[2] for it in times]
    first = sorted(it.time_to_first_token or 0 for it in answers)
    assert 0.09 <= first[0] <= min(it[0] for it in times) + 0.05 and first[-1] <= took
    gaps = Counter(sum(it.gaps) for it in answers)  # messages that a busy server sends together have no gap
    assert gaps.keys() <= {2, 3, 4} and gaps[4] > len(answers) / 2


def test_grpc_that_fails(observed: Observed, engine: Server) -> None:
    """Statuses come from trailers; whole answers have no first token; who cancels a stream has left it."""
    since = Since(observed, engine)
    with grpc.insecure_channel(address(engine)) as channel:
        channel.unary_unary(EMBED)(json.dumps({"tokens": 3}).encode())
        for _ in range(2):
            with pytest.raises(grpc.RpcError):
                list(channel.unary_stream(GENERATE)(json.dumps({"tokens": 3, "fail": "RESOURCE_EXHAUSTED"}).encode()))
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(f"/{SERVICE}/Nothing")(b"")
        stream = channel.unary_stream(GENERATE)(json.dumps({"tokens": 100, "gap": 0.05}).encode())
        next(stream)
        stream.cancel()
        answers = since.answers(5)

    found = [(it.status, it.route, it.aborted) for it in answers]
    refused = ("RESOURCE_EXHAUSTED", GENERATE, "")
    assert found == [
        *(("OK", EMBED, ""), refused, refused),
        *(("UNIMPLEMENTED", "other", ""), ("none", GENERATE, "client_gone")),
    ]
    assert [None] * 4 == [it.time_to_first_token for it in answers[:4]] and answers[4].time_to_first_token


@pytest.mark.skipif(not shutil.which("nghttpd") or not shutil.which("h2load"), reason="no nghttp2 (Debian's package)")
def test_nghttpd(observed: Observed, tmp_path: Path) -> None:
    """1,009 posts of h2load to nghttpd, on 8 connections with up to 16 at once: each is one, and none is lost."""
    (tmp_path / "answer").write_text('{"model": "tiny", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}')
    (tmp_path / "request").write_text("{}")
    port = free_port()
    with running(["nghttpd", "--no-tls", f"--htdocs={tmp_path}", str(port)], port) as server:
        since = Since(observed, server)
        command = ["h2load", "-n1009", "-c8", "-m16", f"--data={tmp_path}/request", f"http://127.0.0.1:{port}/answer"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "1009 succeeded, 0 failed" in made.stdout
        answers = since.answers(1009)
    assert {("200", "", "tiny", 3)} == {(it.status, it.aborted, it.model, it.tokens["output"]) for it in answers}


@pytest.mark.skipif(not shutil.which("nghttpd") or not shutil.which("h2load"), reason="no nghttp2 (Debian's package)")
def test_flood(tmp_path: Path) -> None:
    """25,600 posts as fast as they go: each is counted as a request or as lost, and none is both.

    Servers of other tests are not followed: the flood can leave no room for their requests either.
    """
    (tmp_path / "answer").write_text('{"model": "tiny"}')
    (tmp_path / "request").write_text("{}")
    port = free_port()
    command = ["nghttpd", "--no-tls", "--workers=2", f"--htdocs={tmp_path}", str(port)]
    with observe("gpu") as observed, running(command, port) as server:
        observed.follow(server.pids)
        command = ["h2load", "-n25600", "-c16", "-m32", "-t2", f"--data={tmp_path}/request"]
        made = subprocess.run(
            [*command, f"http://127.0.0.1:{port}/answer"], capture_output=True, text=True, timeout=120, check=True
        )
        assert "25600 succeeded, 0 failed" in made.stdout

        def seen() -> int:
            return len(observed.of(server.pids)) + int(observed.object.globals()["requests_uncounted"])

        until(lambda: seen() >= 25_600, lambda: f"25,600 requests; there are {seen()}")
        time.sleep(0.5)
        assert 25_600 == seen()
        assert {""} == {it.aborted for it in observed.of(server.pids)}
        assert {"": 0} == observed.numbers(server.pids, "gen_ai.server.requests.in_flight")
