"""Requests of LLM servers over HTTP/2: the forms that frames may have between this process's sockets, and no form."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable

import hpack
import pytest

from exporter.serving.answer import Answer
from tests.bpf.serving_node import Observed
from tests.bpf.test_serving_bytes import (
    EVENTS,
    LAST_LINE,
    LINES,
    LONG_EVENTS,
    WHOLE,
    answers,
    exchange,
    found,
    observed,
    single,
)
from tests.support import until

__all__ = ["answers", "observed"]
pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="stand-in")]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, PRIORITIZED = 1, 4, 8, 32
EVENT_STREAM = "text/event-stream; charset=utf-8"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def data(*parts: bytes, stream: int = 1, end: bool = True) -> bytes:
    """Frames of these parts, of which the last ends the stream."""
    frames = [frame(DATA, 0, stream, part) for part in parts]
    return b"".join(frames) + (frame(DATA, END_STREAM, stream) if end else b"")


def post(encoder: hpack.Encoder, stream: int = 1, body: bytes = b"{}") -> bytes:
    """A request with fields that refer to those of earlier ones."""
    fields = [(":method", "POST"), (":path", "/v1/chat/completions"), (":scheme", "http"), (":authority", "x")]
    return frame(HEADERS, END_HEADERS, stream, encoder.encode(fields)) + frame(DATA, END_STREAM, stream, body)


def head(encoder: hpack.Encoder, kind: str = EVENT_STREAM, status: str = "200", stream: int = 1) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, encoder.encode([(":status", status), ("content-type", kind)]))


REQUEST = PREFACE + frame(SETTINGS, 0, 0) + post(hpack.Encoder())
BLOCK = hpack.Encoder().encode([(":status", "200"), ("content-type", EVENT_STREAM)])
HEAD = head(hpack.Encoder())
FIELDS = post(hpack.Encoder())[9:-11]
BEGUN = frame(SETTINGS, 0, 0) + frame(SETTINGS, 1, 0)
STREAM = BEGUN + HEAD + data(*EVENTS)
UPGRADE = b"POST /v1/chat/completions HTTP/1.1\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}"

FORMS: dict[str, tuple[list[bytes], list[bytes]]] = {
    "one write": ([REQUEST], [STREAM]),
    "a write for each frame": ([PREFACE, REQUEST[24:]], [BEGUN, HEAD, *(data(it, end=False) for it in EVENTS), data()]),
    "a write for each byte": (single(REQUEST), single(STREAM)),
    "events over frames": ([REQUEST], [BEGUN + HEAD + data(*single(b"".join(EVENTS)))]),
    "all events in a frame": ([REQUEST], [BEGUN + HEAD + frame(DATA, END_STREAM, 1, b"".join(EVENTS))]),
    "padding": (
        [
            PREFACE
            + frame(HEADERS, END_HEADERS | PADDED | PRIORITIZED, 1, b"\7" + bytes(5) + FIELDS + bytes(7))
            + data()
        ],
        [HEAD + b"".join(frame(DATA, PADDED, 1, b"\5" + it + b"{\n\n\0\0") for it in EVENTS), data()],
    ),
    "continuations": (
        [
            PREFACE + frame(HEADERS, END_STREAM, 1, FIELDS[:3]),
            frame(CONTINUATION, 0, 1, FIELDS[3:5]) + frame(CONTINUATION, END_HEADERS, 1, FIELDS[5:]),
        ],
        [frame(HEADERS, 0, 1, BLOCK[:1]) + frame(CONTINUATION, END_HEADERS, 1, BLOCK[1:]), data(*EVENTS)],
    ),
    "trailers": (
        [REQUEST],
        [HEAD + data(*EVENTS, end=False) + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\1x\1y")],
    ),
    "frames of no meaning": (
        [REQUEST + frame(WINDOW, 0, 0, bytes(4)) + frame(PING, 0, 0, bytes(8)) + frame(200, 255, 5, bytes(999))],
        [BEGUN + frame(PRIORITY, 0, 1, bytes(5)) + HEAD + frame(PING, 1, 0, bytes(8)) + data(*EVENTS)],
    ),
    "a promise": (
        [REQUEST],
        [frame(PUSH, END_HEADERS, 1, b"\0\0\0\2" + FIELDS) + data(b"pushed", stream=2) + HEAD + data(*EVENTS)],
    ),
    "an informational answer": (
        [REQUEST],
        [frame(HEADERS, END_HEADERS, 1, hpack.Encoder().encode([(":status", "103")])) + HEAD + data(*EVENTS)],
    ),
    "GOAWAY after this stream": ([REQUEST], [HEAD, frame(GOAWAY, 0, 0, b"\0\0\0\1" + bytes(9)), data(*EVENTS)]),
    "an upgrade": (
        [UPGRADE],
        [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n" + BEGUN, HEAD + data(*EVENTS)],
    ),
    "lines of JSON": ([REQUEST], [head(hpack.Encoder(), "application/x-ndjson") + data(*LINES, LAST_LINE)]),
    "whole": ([REQUEST], [head(hpack.Encoder(), "application/json") + data(WHOLE[:9], WHOLE[9:] + b"\n")]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(answers: Callable[[int], list[Answer]], form: str) -> None:
    """Each form of a request and its answer is one request that came to its end, with its tokens."""
    exchange(*FORMS[form])
    [seen] = answers(1)

    assert ("", "200", "tiny", {"input": 7, "output": 3}) == (seen.aborted, seen.status, seen.model, seen.tokens)
    assert ("/v1/chat/completions", form != "whole") == (seen.route, bool(seen.time_to_first_token))


@pytest.mark.parametrize(
    ("requests", "reply", "reason"),
    [
        ([REQUEST], HEAD + data(*EVENTS[:2], end=False) + frame(RST, 0, 1, bytes(4)), "unterminated"),
        ([REQUEST], HEAD + data(*EVENTS[:2], end=False) + frame(GOAWAY, 0, 0, bytes(8)), "unterminated"),
        ([REQUEST], HEAD + data(*EVENTS[:2], end=False) + frame(CONTINUATION, 0, 1, b""), "unreadable"),
        ([REQUEST + frame(RST, 0, 1, bytes(4))], HEAD, "client_gone"),
        ([REQUEST], HEAD + data(*EVENTS[:2], end=False), "unterminated"),
    ],
)
def test_streams_that_break(
    answers: Callable[[int], list[Answer]], requests: list[bytes], reply: bytes, reason: str
) -> None:
    """The reason is that of the side which broke the stream off."""
    exchange(requests, [reply])
    [seen] = answers(1)

    assert reason == seen.aborted


@pytest.mark.parametrize("size", [1 << 20, 100, 1])
def test_a_long_first_event(answers: Callable[[int], list[Answer]], size: int) -> None:
    """Tokens of a prompt are read from a first event of 450 bytes, whatever the frames in which it is sent."""
    sent = b"".join(LONG_EVENTS)
    exchange([REQUEST], [HEAD + data(*(sent[at : at + size] for at in range(0, len(sent), size)))])
    [seen] = answers(1)

    assert ({"input": 11, "output": 20}, "tiny") == (seen.tokens, seen.model)


def test_fields_of_earlier_requests(answers: Callable[[int], list[Answer]]) -> None:
    """Fields that refer to those of earlier requests are read; what another method requests is no request here."""
    client, server = hpack.Encoder(), hpack.Encoder()
    get = frame(HEADERS, END_HEADERS | END_STREAM, 3, client.encode([(":method", "GET"), (":path", "/health")]))
    requests = [PREFACE + get, *(post(client, stream) for stream in range(5, 19, 2))]
    exchange(requests, [head(server, stream=stream) + data(*EVENTS, stream=stream) for stream in range(3, 19, 2)])

    assert [("200", "/v1/chat/completions", 3)] * 7 == [(it.status, it.route, it.tokens["output"]) for it in answers(7)]


def test_messages_of_grpc(answers: Callable[[int], list[Answer]]) -> None:
    """Messages are counted whatever frames they are in: one is a whole answer, several are a stream."""
    messages = b"".join(b"\0" + struct.pack(">I", size) + b"x" * size for size in (0, 3, 70_000, 1))
    kind = "application/grpc"
    trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, hpack.Encoder().encode([("grpc-status", "0")]))
    for cut in (1, 7, 16_384):
        parts = [messages[at : at + cut] for at in range(0, len(messages), cut)][:3000]
        whole = (
            parts
            if cut > 16_000
            else [messages[:70_000], messages[70_000:]]
            if cut == 7
            else single(messages[:8]) + [messages[8:]]
        )
        exchange([REQUEST], [head(hpack.Encoder(), kind) + data(*whole, end=False) + trailers])
    exchange([REQUEST], [head(hpack.Encoder(), kind) + data(messages[5:13], end=False) + trailers])
    seen = answers(4)

    assert ["OK"] * 4 == [it.status for it in seen]
    assert [True] * 3 + [False] == [bool(it.time_to_first_token) for it in seen]


def test_more_streams_than_are_followed(observed: Observed, answers: Callable[[int], list[Answer]]) -> None:
    """Of 300 streams that are open at once 256 are followed; the others are counted as lost."""
    client, server = hpack.Encoder(), hpack.Encoder()
    lost = observed.object.globals()["streams_lost"]
    streams = range(1, 601, 2)
    exchange(
        [PREFACE, *(post(client, stream) for stream in streams)],
        [head(server, stream=stream) + data(*EVENTS, stream=stream) for stream in streams],
    )

    assert {("200", "", 3)} == {(it.status, it.aborted, it.tokens["output"]) for it in answers(256)}
    assert 44 == observed.object.globals()["streams_lost"] - lost


def test_1000_connections_of_no_form(observed: Observed) -> None:
    """Frames that were changed at random break nothing: whole ones count, and none stays in flight."""
    seeded = random.Random(23)
    for _ in range(1000):
        wrong = [bytearray(REQUEST), bytearray(STREAM)]
        for _ in range(seeded.randrange(1, 9)):
            text = wrong[seeded.randrange(2)]
            text[seeded.randrange(24 if text is wrong[0] else 0, len(text))] = seeded.choice(b"\0\1\2\4\7\x08\x09\xff")
        exchange([bytes(wrong[0])], [bytes(wrong[1])])
    assert {"": 0} == observed.numbers({os.getpid()}, "gen_ai.server.requests.in_flight")
    until(lambda: _again(5) or found(observed, 5), "the records before these were read: the buffer has room again")
    for _ in range(23):
        _again(4)

    until(lambda: len(found(observed, 4)) >= 23, lambda: f"23 answers; there are {len(found(observed, 4))}")
    assert [""] * 23 == found(observed, 4)
    until(lambda: not left(observed), lambda: left(observed))


def left(observed: Observed) -> list[object]:
    """Return this process's connections, and streams of connections that are over: other tests have theirs."""
    maps = observed.object.maps
    connections = {key: it.tgid == os.getpid() for key, it in maps["connections"].items()}
    own = [key for key, is_own in connections.items() if is_own]
    tables = [key for key, _ in maps["http2_connections"].items()]
    streams = [key.connection for key, _ in maps["streams"].items()]
    return own + [key for key in tables + streams if key not in connections]


def _again(tokens: int) -> None:
    """A stream with so many tokens (one digit)."""
    exchange([REQUEST], [STREAM.replace(b'_tokens":3}', b'_tokens":%d}' % tokens)])
