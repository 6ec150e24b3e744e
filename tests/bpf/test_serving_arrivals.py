"""Arrival times of requests to LLM servers: each of several requests that a server reads at once has its own time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import hpack
import pytest

from exporter.serving.answer import Answer
from tests.bpf.serving_node import Observed
from tests.bpf.test_serving_bytes import EVENTS, JSON, POST, answers, observed
from tests.bpf.test_serving_frames import BEGUN, PREFACE, data, head, post
from tests.support import until

__all__ = ["answers", "observed"]
pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="stand-in")]
REST = 0.05
"""Seconds between two requests."""


@pytest.fixture
def sides() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's and a server's end of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as server,
    ):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client, server


def http1(count: int) -> tuple[bytes, Sequence[bytes], bytes]:
    """A first request, so many more, and all answers to these."""
    return POST, [POST] * count, JSON * count


def http2(count: int) -> tuple[bytes, Sequence[bytes], bytes]:
    encoder, answering = hpack.Encoder(), hpack.Encoder()
    streams = range(3, 2 * count + 3, 2)
    first = PREFACE + post(encoder)
    requests = [post(encoder, stream) for stream in streams]
    begun = BEGUN + head(answering) + data(*EVENTS)
    return first, requests, begun + b"".join(head(answering, stream=it) + data(*EVENTS, stream=it) for it in streams)


@pytest.mark.parametrize("first_read", [65_536, 30], ids=["one read", "a read within the first request"])
@pytest.mark.parametrize("made", [http1, http2])
def test_requests_that_wait_together(
    answers: Callable[[int], list[Answer]],
    sides: tuple[socket.socket, socket.socket],
    made: Callable[[int], tuple[bytes, Sequence[bytes], bytes]],
    first_read: int,
) -> None:
    """Of 5 requests that a busy server reads at once each began when it came, not when it was read."""
    client, server = sides
    first, requests, replies = made(5)
    client.sendall(first)  # the port is known after this
    server.recv(65_536)
    if made is http1:
        server.sendall(JSON)
    sent = []
    for request in requests:
        sent.append(time.monotonic())
        client.sendall(request)
        time.sleep(REST)
    sent.append(time.monotonic())
    server.recv(first_read)
    if first_read < 65_536:
        server.recv(65_536)
    read = time.monotonic()
    server.sendall(replies)
    waited = [it.queue or 0 for it in answers(6)[1:]]

    # Each came before the next one was sent.
    assert [] == [
        it for it, (at, later) in zip(waited, pairwise(sent), strict=True) if not sent[-1] - later <= it <= read - at
    ]


def test_more_arrivals_than_are_kept(
    answers: Callable[[int], list[Answer]], sides: tuple[socket.socket, socket.socket]
) -> None:
    """The first one's time is known whatever came after it, and those of the last; that of one between is not."""
    client, server = sides
    client.sendall(POST)
    server.recv(65_536)
    server.sendall(JSON)
    for _ in range(44):
        client.sendall(POST)
        time.sleep(0.01)
    server.recv(65_536)
    server.sendall(JSON * 44)
    waited = [it.queue for it in answers(45)[1:]]

    assert [True, *[False] * 12, *[True] * 31] == [it is not None for it in waited]
    assert 0.44 <= (waited[0] or 0) and 0.01 <= (waited[-1] or 0) <= (waited[-2] or 0)


def test_arrivals_go_with_their_connection(
    observed: Observed, answers: Callable[[int], list[Answer]], sides: tuple[socket.socket, socket.socket]
) -> None:
    """No row is left of a connection that has ended."""
    client, server = sides
    client.sendall(POST)
    server.recv(65_536)
    server.sendall(JSON)
    client.sendall(POST)
    server.recv(65_536)
    server.sendall(JSON)
    answers(2)
    maps = observed.object.maps
    own = {key for key, it in maps["connections"].items() if it.tgid == os.getpid()}
    assert own & {key for key, _ in maps["arrivals"].items()}
    client.close()
    server.close()
    until(lambda: not own & {key for key, _ in maps["arrivals"].items()}, "the rows are gone")
