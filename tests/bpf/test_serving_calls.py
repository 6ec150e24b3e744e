"""Requests of LLM servers that write from files or without copies: bytes that are read, and bytes that are not."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from exporter.serving.answer import Answer
from tests.bpf.fixtures import once
from tests.bpf.serving_node import Observed, observe
from tests.bpf.test_serving_bytes import CHUNKED, EVENTS, JSON, POST, WHOLE, answers, chunk

__all__ = ["answers"]
pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="stand-in")]

SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
TOKENS = {"input": 7, "output": 3}


@contextmanager
def following() -> Iterator[Observed]:
    """Follow this process alone: calls of other tests are not counted."""
    with observe("gpu") as observed:
        observed.follow({os.getpid()})
        yield observed


observed = once(following)


@pytest.fixture
def sides() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's and a server's end of a TCP connection, on which the server has read a request."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as server,
    ):
        client.sendall(POST)
        server.recv(65_536)
        yield client, server


def unread(observed: Observed) -> float:
    [value] = [it.value for it in observed.collect() if it.metric.name == "llm.serving.socket.calls.unread"]
    return value


def test_zerocopy(
    observed: Observed, answers: Callable[[int], list[Answer]], sides: tuple[socket.socket, socket.socket]
) -> None:
    """The bytes of calls with MSG_ZEROCOPY are read."""
    client, server = sides
    server.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    before = unread(observed)
    for part in (CHUNKED, *map(chunk, EVENTS), b"0\r\n\r\n"):
        assert len(part) == server.send(part, MSG_ZEROCOPY)
    for _ in range(22):
        client.sendall(POST)
        server.recv(65_536)
        assert len(JSON) == server.sendmsg([JSON[:20], JSON[20:]], [], MSG_ZEROCOPY)
    seen = answers(23)

    assert [("200", "tiny", TOKENS, "")] * 23 == [(it.status, it.model, it.tokens, it.aborted) for it in seen]
    assert [True, *[False] * 22] == [bool(it.time_to_first_token) for it in seen] and before == unread(observed)


def test_sendfile(
    observed: Observed, answers: Callable[[int], list[Answer]], sides: tuple[socket.socket, socket.socket]
) -> None:
    """A body of known length that is sent from a file has a status and an end, and no model; the call is counted."""
    _, server = sides
    before = unread(observed)
    with tempfile.TemporaryFile() as file:
        file.write(WHOLE)
        file.flush()
        server.sendall(JSON[: -len(WHOLE)])
        assert len(WHOLE) == os.sendfile(server.fileno(), file.fileno(), 0, len(WHOLE))
    [seen] = answers(1)

    assert ("200", "", "", None) == (seen.status, seen.model, seen.aborted, seen.tokens["output"])
    assert before + 1 == unread(observed)


def test_a_stream_from_a_file(
    observed: Observed, answers: Callable[[int], list[Answer]], sides: tuple[socket.socket, socket.socket]
) -> None:
    """A stream that is sent from a file cannot be followed: its request ends as unreadable."""
    _, server = sides
    with tempfile.TemporaryFile() as file:
        file.write(chunk(EVENTS[0]))
        file.flush()
        server.sendall(CHUNKED)
        os.sendfile(server.fileno(), file.fileno(), 0, 4096)
    [seen] = answers(1)

    assert ("200", "unreadable") == (seen.status, seen.aborted)
