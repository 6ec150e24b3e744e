"""Requests of LLM servers: forms that are allowed and seldom seen, and bytes that only look like a request."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from exporter.bpf.libbpf import BpfError
from exporter.collectors import serving
from exporter.model import Unavailable
from exporter.serving.answer import Answer
from tests.bpf.fixtures import once
from tests.bpf.serving_node import Observed, observe
from tests.bpf.test_serving_bytes import CHUNKED, EVENTS, JSON, POST, STREAM, USAGE, WHOLE, answers, chunk, single
from tests.support import until

__all__ = ["answers"]
pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="stand-in")]

TOKEN, DONE = EVENTS[0], EVENTS[-1]
LINE = b"POST /v1/completions HTTP/1.1\r\n"
Sides = tuple[socket.socket, socket.socket]


@contextmanager
def following() -> Iterator[Observed]:
    """Follow this process alone: calls of other tests are not counted."""
    with observe("gpu") as observed:
        observed.follow({os.getpid()})
        yield observed


observed = once(following)


@contextmanager
def connected() -> Iterator[Sides]:
    """A client's and a server's end of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as server,
    ):
        server.settimeout(10)
        client.settimeout(10)
        yield client, server


@pytest.fixture
def sides() -> Iterator[Sides]:
    with connected() as both:
        yield both


def post(sides: Sides, request: bytes, answer: bytes = JSON) -> None:
    """Request something, and let the server read and answer it."""
    client, server = sides
    client.sendall(request)
    server.recv(65_536)
    server.sendall(answer)
    client.recv(65_536)


def number(observed: Observed, name: str) -> float:
    """The sum of a metric's values."""
    return sum(it.value for it in observed.collect() if it.metric.name == name and isinstance(it.value, int | float))


@pytest.mark.parametrize(
    ("middle", "end"),
    [
        ([TOKEN] * 2, single(DONE)),
        ([TOKEN] * 2, [DONE[:6], DONE[6:]]),
        ([b": ping\n\n" + TOKEN] * 2, [DONE]),
        ([b": ping\n\n: " + b"x" * 600 + b"\n\n" + TOKEN] * 2, [b": bye\r\n\r\n" + DONE]),
        ([DONE[:12], *[b"]\n\n" + TOKEN] * 1, TOKEN], [b":", b"\n\n"]),
    ],
    ids=["a byte each", "in two", "after a comment", "after long ones", "within a comment"],
)
def test_what_is_no_event(
    observed: Observed,
    answers: Callable[[int], list[Answer]],
    sides: Sides,
    middle: Sequence[bytes],
    end: Sequence[bytes],
) -> None:
    """[DONE] and comments are no events in whatever pieces they come, and hide none that is behind them."""
    _, server = sides
    post(sides, POST, CHUNKED)
    before = time.monotonic()
    server.sendall(chunk(TOKEN))
    for part in middle:
        time.sleep(0.01)
        server.sendall(chunk(part))
    after = time.monotonic()
    time.sleep(0.05)
    for part in end:
        server.sendall(chunk(part))
    server.sendall(b"0\r\n\r\n")
    [seen] = answers(1)

    assert 2 == sum(seen.gaps) and 0.02 <= seen.gap_seconds <= after - before


@pytest.mark.parametrize("size", [1, 2, 3, 7, 29, 30, 31, 32, 61, 700])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_events_over_writes(
    observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides, size: int, ends: bytes
) -> None:
    """An event was sent with the write that has its end, wherever in the write that is."""
    text = b"".join([TOKEN] * 9 + [b": " + b"x" * 50 + b"\n\n"] + [TOKEN] * 9).replace(b"\n", ends)
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    whole = [b"".join(parts[: count + 1]).count(b"}" + 2 * ends) for count in range(len(parts))]
    _, server = sides
    before = time.monotonic()
    post(sides, POST, CHUNKED + chunk(TOKEN))
    for part in parts:
        server.sendall(chunk(part))
    server.sendall(b"0\r\n\r\n")
    after = time.monotonic()
    [seen] = answers(1)

    assert len({count for count in whole if count}) == sum(seen.gaps) and seen.gap_seconds <= after - before


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 64, 65, 200, 505, 511, 512, 513])
def test_the_end_of_a_stream(
    observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides, size: int
) -> None:
    """The last bytes of a stream are kept, however many a write has, and what is older in front of them."""
    _, server = sides
    text = b"".join(map(chunk, [TOKEN] * 23 + [USAGE, DONE])) + b"0\r\n\r\n"
    post(sides, POST, CHUNKED)
    for at in range(0, len(text), size):
        server.sendall(text[at : at + size])
    [seen] = answers(1)

    assert ({"input": 7, "output": 3}, "tiny") == (seen.tokens, seen.model) and seen.duration


def test_a_byte_order_mark(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """The first event is the first one behind a byte order mark, too."""
    _, server = sides
    before = time.monotonic()
    post(sides, POST, CHUNKED + chunk(b"\xef\xbb\xbf" + TOKEN))
    after = time.monotonic()
    time.sleep(0.01)
    server.sendall(chunk(TOKEN) + b"0\r\n\r\n")
    [seen] = answers(1)

    assert seen.time_to_first_token is not None and seen.time_to_first_token <= after - before
    assert 1 == sum(seen.gaps)


@pytest.mark.parametrize("closes", ["its side", "all", "all, in the answer"])
def test_a_client_that_closes(
    observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides, closes: str
) -> None:
    """An answer that ends with the connection is whole if the client closed only its side of it, after its request."""
    client, server = sides
    client.sendall(POST)
    server.recv(65_536)
    if closes == "all, in the answer":
        server.sendall(STREAM + b"\r\n" + TOKEN)
        client.recv(65_536)
    if closes == "its side":
        client.shutdown(socket.SHUT_WR)
    else:
        client.close()
    assert b"" == server.recv(1)
    if closes != "all, in the answer":
        with suppress(OSError):
            server.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            server.sendall(WHOLE)
    server.close()
    [seen] = answers(1)

    assert ("" if closes == "its side" else "client_gone") == seen.aborted
    assert closes == "all" or "200" == seen.status


@pytest.mark.parametrize("line", [b" Content-Length: 5000", b"\tTransfer-Encoding: chunked", b" "])
def test_lines_that_continue_a_header(
    observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides, line: bytes
) -> None:
    """A line that begins with a blank is of the header before it, whatever it looks like."""
    for _ in range(3):
        post(sides, LINE + b"Content-Length: 2\r\nX: y\r\n" + line + b"\r\n\r\n{}")
    assert [("200", "/v1/completions")] * 3 == [(it.status, it.route) for it in answers(3)]


@pytest.mark.parametrize("blanks", [b"\r\n ", b"\n\t", b" \r\n \r\n\t "])
def test_values_on_the_next_line(
    observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides, blanks: bytes
) -> None:
    """The value of a header may be on the line after its name, in requests and in their answers."""
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    length, chunked = b"Content-Length:" + blanks + b"27\r\n", b"Transfer-Encoding:" + blanks + b"chunked\r\n"
    stream = b"HTTP/1.1 200 OK\r\n" + chunked + b"Content-Type:" + blanks + b"text/event-stream\r\n\r\n"
    for _ in range(3):
        post(sides, LINE + length + b"traceparent:" + blanks + trace + b"\r\n\r\n" + b"x" * 27)
        post(sides, LINE + b"X:\r\n" + chunked + b"\r\n2\r\n{}\r\n0\r\n\r\n", stream + chunk(TOKEN) + b"0\r\n\r\n")
        post(sides, LINE + b"\r\n", b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + b"x" * 27)
    seen = answers(9)

    assert [("200", "/v1/completions", "")] * 9 == [(it.status, it.route, it.aborted) for it in seen]
    assert [False, True, False] * 3 == [bool(it.time_to_first_token) for it in seen]


def test_long_paths(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """The end of a path of 100 bytes is known, and no end that was cut off is one."""
    for path in (b"/" + b"x" * 84 + b"/v1/completions", b"/" + b"x" * 107 + b"/v1/completions/cancel"):
        post(sides, b"POST " + path + b" HTTP/1.1\r\n\r\n")
    assert ["/v1/completions", "other"] == [it.route for it in answers(2)]


def test_another_protocol(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """Bytes after an upgrade to WebSocket are no request; the connection is counted as not followed."""
    _, server = sides
    before = number(observed, "llm.serving.connections.unreadable")
    post(sides, b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n\x81\0")
    for _ in range(3):
        post(sides, POST)
        server.sendmsg([JSON, JSON])
    with connected() as others:
        post(others, POST)
    answers(1)

    assert before + 1 == number(observed, "llm.serving.connections.unreadable")


def test_statuses(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """A status that is none is unknown, not the status of no answer."""
    for status in (b"601", b"2x0", b"", b"503"):
        post(sides, POST, JSON.replace(b"200 OK", status + b" x", 1))
    assert ["unknown", "unknown", "unknown", "503"] == [it.status for it in answers(4)]


def test_a_request_that_is_not_read_to_its_end(
    observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides
) -> None:
    """The bytes of a request are those that were read when it ended."""
    client, server = sides
    head = LINE + b"Content-Length: 5000\r\n\r\n"
    post(sides, head + bytes(700))
    post(sides, bytes(4300) + LINE + b"\r\n")
    client.sendall(head + bytes(900))
    server.recv(65_536)
    client.close()
    assert b"" == server.recv(1)
    server.close()

    assert [len(head) + 700, len(LINE) + 2, len(head) + 900] == [it.request_bytes for it in answers(3)]


def test_datagrams(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """Datagrams are no requests, and nothing is kept of their sockets."""
    for family in (socket.AF_INET, socket.AF_UNIX):
        with socket.socket(family, socket.SOCK_DGRAM) as one, socket.socket(family, socket.SOCK_DGRAM) as other:
            for it in (one, other):
                it.bind(("127.0.0.1", 0) if family == socket.AF_INET else "")
            one.connect(other.getsockname())
            other.connect(one.getsockname())
            for _ in range(3):
                post((one, other), POST)
    post(sides, POST)
    answers(1)

    assert 0 == number(observed, "gen_ai.server.requests.in_flight")


def test_times_of_what_was_sent(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """A server's own bytes, which it reads back with the times when they were sent, are nothing from the client."""
    _, server = sides
    before = number(observed, "llm.serving.connections.unreadable")
    server.setsockopt(socket.SOL_SOCKET, 37, 1 << 1 | 1 << 4)  # SO_TIMESTAMPING: sent, in software
    for _ in range(3):
        post(sides, POST)
        read: list[bytes] = []
        until(lambda read=read: _own_bytes(server, read), "what was sent")  # type: ignore[misc]
        assert JSON in read[0]
    assert ["200"] * 3 == [it.status for it in answers(3)]

    assert before == number(observed, "llm.serving.connections.unreadable")


def _own_bytes(server: socket.socket, read: list[bytes]) -> bool:
    with suppress(BlockingIOError):
        read.append(server.recvmsg(65_536, 1024, socket.MSG_ERRQUEUE)[0])
    return bool(read)


def test_unix_sockets_without_a_last_call(observed: Observed) -> None:
    """Connections that both sides close without another call are forgotten at a scrape, and their requests ended."""
    before = len(observed.of({os.getpid()}))
    pairs = [socket.socketpair() for _ in range(23)]
    for client, server in pairs:
        client.send(POST)
        server.recv(65_536)
    assert 23 == number(observed, "gen_ai.server.requests.in_flight")
    for _, server in pairs[:3]:
        server.send(STREAM + b"\r\n" + TOKEN)
    for client, server in pairs:
        client.close()
        server.close()
    until(
        lambda: number(observed, "gen_ai.server.requests.in_flight") == 0,
        lambda: f"the end of all; there are {[*observed.object.maps['connections'].items()]}",
    )
    ended = observed.of({os.getpid()})[before:]

    assert not [*observed.object.maps["connections"].items()]
    assert {("200", "unknown", None), ("none", "unterminated", None)} == {
        (it.status, it.aborted, it.duration) for it in ended
    }


def test_calls_with_flags(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """Bytes of preadv2 and pwritev2 are read."""
    client, server = sides
    before = number(observed, "llm.serving.socket.calls.unread")
    server.setblocking(True)
    for _ in range(3):
        client.sendall(POST)
        os.preadv(server.fileno(), [bytearray(7), bytearray(65_536)], -1, os.RWF_HIPRI)
        assert len(JSON) == os.pwritev(server.fileno(), [JSON[:9], JSON[9:]], -1, os.RWF_DSYNC)
        client.recv(65_536)
    assert [("200", "tiny")] * 3 == [(it.status, it.model) for it in answers(3)]

    assert before == number(observed, "llm.serving.socket.calls.unread")


def test_a_reset_by_the_server(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """A server that resets its connection has ended it."""
    _, server = sides
    post(sides, POST, CHUNKED + chunk(TOKEN))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    [seen] = answers(1)

    assert "unterminated" == seen.aborted


def test_a_kernel_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason of a kernel without a tracepoint names the version that has it; other failures do not."""

    def fail(reason: str) -> Callable[..., None]:
        def refuse(*_: object, **__: object) -> None:
            raise BpfError(errno.ESRCH, f"load serving.bpf.o: No such process\n{reason}")

        return refuse

    named = []
    for reason in ("prog 'on_data': failed to find kernel BTF type ID of 'sk_data_ready': -3", "no kernel BTF"):
        monkeypatch.setattr(serving, "Object", fail(reason))
        with pytest.raises(Unavailable) as raised, observe():
            pass
        named.append("(Linux 6.3 can)" in str(raised.value))

    assert [True, False] == named
