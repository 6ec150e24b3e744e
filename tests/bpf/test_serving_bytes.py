"""Requests of LLM servers: the forms that bytes may have between this process's sockets, and bytes of no form."""

from __future__ import annotations

import gzip
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from exporter.serving.answer import Answer
from tests.bpf.fixtures import once
from tests.bpf.serving_node import Observed, observe, request
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="stand-in")]

POST = request(tokens=1)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = STREAM + b"Transfer-Encoding: chunked\r\n\r\n"
USAGE = b'data: {"choices":[],"model":"tiny","usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
EVENTS = [b'data: {"model":"tiny","n":%d}\n\n' % number for number in range(3)] + [USAGE, b"data: [DONE]\n\n"]
WHOLE = b'{"model":"tiny","usage":{"prompt_tokens":7,"completion_tokens":3}}'
LINES = [b'{"model":"tiny","response":"%d","done":false}\n' % number for number in range(3)]
LAST_LINE = b'{"model":"tiny","done":true,"prompt_eval_count":7,"eval_count":3}\n'
NDJSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_%s","model":"tiny","role":"assistant",'
    b'"usage":{"input_tokens":7,"cache_read_input_tokens":4,"output_tokens":1}}}\n\n' % (b"x" * 300)
)
"""A first event of Anthropic's Messages, which has the prompt's tokens after its first 256 bytes."""
DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'
LONG_EVENTS = [LONG_START, *[DELTA] * 20, b'event: message_delta\ndata: {"usage":{"output_tokens":20}}\n\n']
LONG_END = (
    b'event: response.completed\ndata: {"response":{"output":["%s"],"usage":{"input_tokens":7,"output_tokens":3},%s'
    b'"sequence_number":18}}\n\n' % (b"word " * 1000, b'"kv_transfer_params":null,' * 35)
)
"""A last event as of vLLM's Responses: long, with the usage 900 bytes before its end."""
JSON = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(WHOLE), WHOLE)
Pieces = Sequence[bytes | list[bytes] | float]
"""Data to write, one call each: bytes, parts of one sendmsg, or a pause in seconds."""


def chunk(*events: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(b"".join(events)), b"".join(events))


observed = once(observe)


@pytest.fixture
def answers(observed: Observed) -> Callable[[int], list[Answer]]:
    """Exactly so many answers since the beginning of the test."""
    before = len(observed.of({os.getpid()}))

    def found() -> list[Answer]:
        return observed.of({os.getpid()})[before:]

    def exactly(count: int) -> list[Answer]:
        until(lambda: len(found()) >= count, lambda: f"{count} answers; there are {len(found())}")
        time.sleep(0.05)
        assert count == len(found())
        return found()

    return exactly


def exchange(requests: Pieces, answer: Pieces, end: bool = True) -> None:
    """Write a request to a server's socket, which reads each piece, and let the server write the answer."""
    client, server = socket.socketpair()
    with client, server:
        for piece in requests:
            if isinstance(piece, bytes):
                client.sendall(piece)
                server.recv(65_536)
        _write(server, client, answer)
        if end:
            server.close()
            while client.recv(65_536):
                pass


def _write(server: socket.socket, client: socket.socket, pieces: Pieces) -> None:
    client.settimeout(10)
    for piece in pieces:
        if isinstance(piece, float):
            time.sleep(piece)
        elif isinstance(piece, bytes):
            server.sendall(piece)
            client.recv(65_536)
        else:
            server.sendmsg(piece)
            client.recv(65_536)


def single(data: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in data]


FORMS: dict[str, tuple[Pieces, Pieces]] = {
    "one write": ([POST], [CHUNKED + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"]),
    "a write for each event": ([POST], [CHUNKED, *map(chunk, EVENTS), b"0\r\n\r\n"]),
    "a write for each byte": (single(POST), single(CHUNKED + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n")),
    "several events in a chunk": ([POST], [CHUNKED, chunk(*EVENTS[:2]), chunk(*EVENTS[2:]), b"0\r\n\r\n"]),
    "events over chunks": (
        [POST],
        [CHUNKED, *(chunk(EVENTS[0][:9]), chunk(EVENTS[0][9:])), *map(chunk, EVENTS[1:]), b"0\r\n\r\n"],
    ),
    "parts": ([POST], [CHUNKED, [b"%x\r\n" % len(b"".join(EVENTS)), *EVENTS, b"\r\n"], [b"0\r\n", b"\r\n"]]),
    "100 parts": ([POST], [single((CHUNKED + chunk(*EVENTS) + b"0\r\n\r\n")[:100]), CHUNKED[100:]])
    if len(CHUNKED) > 100
    else ([POST], [single(CHUNKED), chunk(*EVENTS) + b"0\r\n\r\n"]),
    "a part for each byte": ([POST], [single(CHUNKED + chunk(*EVENTS) + b"0\r\n\r\n")]),
    "extensions and trailers": (
        [POST],
        [CHUNKED, *(chunk(event).replace(b"\r\n", b";a=b\r\n", 1) for event in EVENTS), b"0\r\nX: y\r\n\r\n"],
    ),
    "until the connection ends": ([POST], [STREAM + b"\r\n", *EVENTS]),
    "length": ([POST], [JSON]),
    "after 100 Continue": ([POST], [b"HTTP/1.1 100 Continue\r\n\r\n", JSON]),
    "after other methods": (
        [b"GET / HTTP/1.1\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n" + POST],
        [b"HTTP/1.1 304 Not Modified\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", JSON],
    ),
    "a chunked request": (
        [
            POST.replace(b"Content-Length: 13", b"Transfer-Encoding: chunked")[:-13] + b"d\r\n",
            POST[-13:],
            b"\r\n0\r\n\r\n",
        ],
        [JSON],
    ),
    "comments between events": ([POST], [CHUNKED, chunk(b": ping\n\n"), *map(chunk, EVENTS), b"0\r\n\r\n"]),
    "events without a blank": (
        [POST],
        [CHUNKED, *(chunk(event.replace(b"data: ", b"data:")) for event in EVENTS), b"0\r\n\r\n"],
    ),
    "lines of JSON": ([POST], [NDJSON, *map(chunk, LINES), chunk(LAST_LINE), b"0\r\n\r\n"]),
    "no transfer encoding": ([POST], [JSON.replace(b"\r\n", b"\r\nTransfer-Encoding: identity\r\n", 1)]),
    "a request of small chunks": (
        [
            POST.replace(b"Content-Length: 13", b"Transfer-Encoding: chunked")[:-13]
            + b"1\r\nx\r\n" * 10_000
            + b"0\r\n\r\n"
        ],
        [JSON],
    ),
    "a long end after the usage": ([POST], [CHUNKED, *map(chunk, EVENTS[:3]), chunk(LONG_END), b"0\r\n\r\n"]),
    "events that end with CR LF": (
        [POST],
        [CHUNKED, *(chunk(event.replace(b"\n", b"\r\n")) for event in EVENTS), b"0\r\n\r\n"],
    ),
}


def test_traceparent(observed: Observed, answers: Callable[[int], list[Answer]]) -> None:
    """The trace context of a request is on its span, and not on that of the next one."""
    parent = f"00-{'1a' * 16}-{'2b' * 8}-01"
    with_parent = POST.replace(b"Host: x", b"Host: x\r\nTraceParent:  " + parent.encode())
    exchange([with_parent, POST], [JSON, JSON])
    answers(2)

    first, second = [it for it in observed.spans if it.process["pid"] == str(os.getpid())][-2:]
    assert ("1a" * 16, "2b" * 8, "") == (first.trace_id, first.parent_id, second.parent_id)


@pytest.mark.parametrize("form", FORMS)
def test_forms(answers: Callable[[int], list[Answer]], form: str) -> None:
    """Each form of a request and its answer is one request that came to its end, with its tokens."""
    exchange(*FORMS[form])
    [found] = answers(1)

    assert ("", "200", "tiny", {"input": 7, "output": 3}) == (found.aborted, found.status, found.model, found.tokens)
    assert bool(found.time_to_first_token) is (FORMS[form][1][-1] != JSON and form != "no transfer encoding")


@pytest.mark.parametrize(
    "before",
    [
        b"event: message_start\ndata: {}\n\nevent: content_block_start\ndata: {}\n\n",
        b"event: response.created\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n",
        b": ping - 2026-11-23\n\nevent: ping\ndata: {}\n\n",
        b'event: response.created\ndata: {"instructions":"%s"}\n\n' % (b"word " * 20_000),
    ],
)
@pytest.mark.parametrize("token", [b"data: {}\n\n", b"event: content_block_delta\ndata: {}\n\n"])
def test_events_before_tokens(answers: Callable[[int], list[Answer]], before: bytes, token: bytes) -> None:
    """Events that servers send before the first token are no first token."""
    exchange([POST], [CHUNKED, chunk(before), 0.05, chunk(token), b"0\r\n\r\n"])
    [found] = answers(1)

    assert 0.05 <= (found.time_to_first_token or 0)


@pytest.mark.parametrize("size", [1 << 20, 100, 1])
def test_a_long_first_event(answers: Callable[[int], list[Answer]], size: int) -> None:
    """Tokens of a prompt are read from a first event of 450 bytes, whatever the pieces in which it is sent."""
    sent = b"".join(LONG_EVENTS)
    parts = [sent[at : at + size] for at in range(0, len(sent), size)]
    exchange([POST], [CHUNKED, *map(chunk, parts), b"0\r\n\r\n"])
    [found] = answers(1)

    assert ({"input": 11, "output": 20}, "tiny") == (found.tokens, found.model)


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"error": {"message": "no"}}\n\n',
        b'data:{"error":"no","error_type":"generation"}\n\n',
        b'event: error\ndata: {"type":"error"}\n\n',
        b'error: {"code":400}\n\n',
    ],
)
def test_an_error_in_a_stream(answers: Callable[[int], list[Answer]], error: bytes) -> None:
    """A stream that begins with an error has no first token, and is counted."""
    exchange([POST], [CHUNKED, chunk(error), chunk(EVENTS[-1]), b"0\r\n\r\n"])
    [found] = answers(1)

    assert (True, None) == (found.stream_error, found.time_to_first_token)


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"zstd"])
def test_a_compressed_stream(answers: Callable[[int], list[Answer]], encoding: bytes) -> None:
    """A compressed stream is counted with its duration; first token, tokens and model are not known."""
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: " + encoding + b"\r\n\r\n")
    exchange([POST], [head, *(chunk(gzip.compress(event)) for event in EVENTS), b"0\r\n\r\n"])
    [found] = answers(1)

    assert (True, "200", "", "", None) == (
        *(found.inference, found.status, found.aborted, found.model),
        found.time_to_first_token,
    )
    assert (None, 0) == (found.tokens["output"], sum(found.gaps)) and found.duration


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_answers_without_a_body(answers: Callable[[int], list[Answer]], status: bytes) -> None:
    """Answers with these statuses end with their heads, whatever length those name: another answer follows."""
    exchange([POST, POST], [b"HTTP/1.1 " + status + b"\r\nContent-Length: 99\r\n\r\n", JSON])
    first, second = answers(2)

    assert (status[:3].decode(), "", "200", "tiny") == (first.status, first.aborted, second.status, second.model)


def test_64_requests_ahead(answers: Callable[[int], list[Answer]]) -> None:
    """As many as 64 requests may wait for their answers."""
    exchange([POST * 64], [JSON] * 64)

    assert [("200", "", 3)] * 64 == [(it.status, it.aborted, it.tokens["output"]) for it in answers(64)]


def test_a_refused_head(answers: Callable[[int], list[Answer]]) -> None:
    """A server that answers before the end of the head has answered; what else comes of the request is nothing."""
    begin = b"POST /v1/chat/completions HTTP/1.1\r\nX-Long: " + b"x" * 5000
    exchange([begin], [b"HTTP/1.1 431 Too Large\r\ncontent-length: 0\r\n\r\n"])
    [found] = answers(1)

    assert ("431", "") == (found.status, found.aborted)


def test_a_server_that_dies(observed: Observed) -> None:
    """A Unix connection ends with its server, although the client does not read the end."""
    client, server = socket.socketpair()
    child = os.fork()
    if not child:
        server.recv(65_536)
        server.sendall(CHUNKED)
        time.sleep(60)
    server.close()
    with client:
        client.sendall(POST)
        assert client.recv(65_536)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        until(lambda: list(observed.collect()) and observed.of({child}), "the request has ended")
        assert ["server_gone"] == [it.aborted for it in observed.of({child})]


def test_gaps(answers: Callable[[int], list[Answer]]) -> None:
    """Gaps are between events that are sent one after the other; [DONE] is no event."""
    pieces = [piece for event in EVENTS[:3] for piece in (chunk(event), 0.02)]
    began = time.monotonic()
    exchange([POST], [CHUNKED, *pieces, chunk(EVENTS[-1]), b"0\r\n\r\n"])
    took = time.monotonic() - began
    [found] = answers(1)

    assert 2 == sum(found.gaps) and 0.04 <= found.gap_seconds <= took - 0.02  # without the pause before [DONE]


def test_50000_events(answers: Callable[[int], list[Answer]]) -> None:
    """A stream of 50,000 events as fast as they go has as many gaps between them."""
    client, server = socket.socketpair()
    with client, server, ThreadPoolExecutor(1) as pool:
        client.sendall(POST)
        server.recv(65_536)
        reader = pool.submit(_drain, client)
        server.sendall(STREAM + b"\r\n")
        for _ in range(50_000):
            server.sendall(EVENTS[0])
        server.sendall(USAGE)
        server.close()
        reader.result(60)
    [seen] = answers(1)

    assert (50_000, "", 3) == (sum(seen.gaps), seen.aborted, seen.tokens["output"])


def _drain(client: socket.socket) -> None:
    client.settimeout(60)
    while client.recv(65_536):
        pass


def test_10000_streams_of_no_form(observed: Observed) -> None:
    """Bytes that were changed at random break nothing: whole ones count, and none stays in flight."""
    seeded = random.Random(23)
    whole = CHUNKED + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"
    for _ in range(10_000):
        wrong = bytearray(POST * seeded.choice((1, 2, 20)) if seeded.random() < 0.5 else whole)
        for _ in range(seeded.randrange(1, 9)):
            wrong[seeded.randrange(len(wrong))] = seeded.choice(b"\0\r\n 0f{:\xff") if seeded.random() < 0.8 else 65
        exchange([bytes(wrong) if seeded.random() < 0.5 else POST], [bytes(wrong)])
    assert {"": 0} == observed.numbers({os.getpid()}, "gen_ai.server.requests.in_flight")
    until(lambda: _again(5) or found(observed, 5), "the records before these were read: the buffer has room again")
    for _ in range(23):
        _again(4)

    until(lambda: len(found(observed, 4)) >= 23, lambda: f"23 answers; there are {len(found(observed, 4))}")
    assert [""] * 23 == found(observed, 4)


def _again(tokens: int) -> None:
    """A stream with so many tokens (one digit)."""
    marked = b"".join(map(chunk, EVENTS)).replace(b'_tokens":3}', b'_tokens":%d}' % tokens)
    exchange([POST], [CHUNKED + marked + b"0\r\n\r\n"])


def found(observed: Observed, tokens: int) -> list[str]:
    """Return the ends of the streams with so many tokens."""
    return [it.aborted for it in observed.of({os.getpid()}) if it.tokens.get("output") == tokens]
