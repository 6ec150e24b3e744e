"""Fields of HTTP/2: blocks of real encoders, with gaps between them, and blocks of strangers."""

from __future__ import annotations

import ctypes
from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.serving import http2
from exporter.serving.answer import LONGEST_FIELD, Answer, read
from exporter.serving.http2 import (
    ANSWER_FIELDS,
    CONNECTION_ENDED,
    MOST_CONNECTIONS,
    MOST_STREAMS,
    REQUEST_FIELDS,
    Fields,
    Streams,
)
from tests.unit.serving.test_answer import record

GENERATE = b"/vllm.grpc.engine.VllmEngine/Generate"
EVENT_STREAM, LINES, MESSAGES = 1, 16, 32


class Block(ctypes.Structure):
    """struct fields of bpf/serving/http2.h."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("kind", "stream")),
        ("connection", ctypes.c_uint64),
        ("order", ctypes.c_uint32),
        *((name, ctypes.c_uint16) for name in ("size", "cut")),
        ("block", ctypes.c_char * 4608),
    ]


def block(raw: bytes = b"", kind: int = REQUEST_FIELDS, order: int = 0, stream: int = 1, **more: int) -> Any:
    made = Block(kind=kind, stream=stream, order=order, size=len(raw), **{"connection": 1, **more})
    ctypes.memmove(ctypes.addressof(made) + Block.block.offset, raw, len(raw))
    return made


def fields_of(number: int) -> list[tuple[str, str]]:
    return [(":method", "POST"), (":path", f"/v1/{number % 3}"), ("traceparent", "00-ab-cd-01"), ("x-other", "y" * 50)]


def test_blocks_that_refer_to_earlier_ones() -> None:
    """23 requests and answers of one connection, of which most fields are in tables."""
    streams, client, server = Streams(), hpack.Encoder(), hpack.Encoder()
    for number in range(23):
        stream = 2 * number + 1
        streams.take(block(client.encode(fields_of(number)), order=number, stream=stream))
        answer = [(":status", "200"), ("content-type", "text/event-stream"), ("grpc-status", "8")]
        streams.take(block(server.encode(answer), ANSWER_FIELDS, number, stream))

    assert [Fields(b"POST", b"/v1/%d" % (number % 3), b"200", b"text/event-stream", b"", b"8", b"00-ab-cd-01")
            for number in range(23)] == [streams.pop(1, 2 * number + 1) for number in range(23)]  # fmt: skip
    assert streams.pop(1, 1) is None and streams.pop(2, 1) is None


def test_gaps() -> None:
    """Fields that refer to a lost block are unknown, and none is taken for another."""
    for lost in range(23):
        streams, client = Streams(), hpack.Encoder()
        for number in range(23):
            raw = client.encode(fields_of(number))
            if number == lost:
                continue
            streams.take(block(raw, order=number, stream=2 * number + 1))
        for number in range(23):
            found = streams.pop(1, 2 * number + 1) or Fields()
            assert found.path in ((b"/v1/%d" % (number % 3),) if number < lost else (b"", b"/v1/%d" % (number % 3)))
            assert found.method == (b"" if number == lost else b"POST")  # in the static table


def test_a_block_that_was_cut() -> None:
    """A block that was too long leaves a gap."""
    streams, client = Streams(), hpack.Encoder()
    streams.take(block(client.encode(fields_of(1)), cut=1))
    streams.take(block(client.encode(fields_of(1)), order=1, stream=3))

    assert (Fields(), Fields(method=b"POST")) == (streams.pop(1, 1), streams.pop(1, 3))


@given(st.lists(st.tuples(st.sampled_from((REQUEST_FIELDS, ANSWER_FIELDS)), st.binary(max_size=300)), max_size=20))
def test_blocks_of_strangers(raws: list[tuple[int, bytes]]) -> None:
    """No block makes it fail, or keeps more than a bounded text."""
    streams = Streams()
    for order, (kind, raw) in enumerate(raws):
        streams.take(block(raw, kind, order))
    found = streams.pop(1, 1) or Fields()
    assert all(len(getattr(found, name)) <= LONGEST_FIELD for name in Fields.__slots__)


@given(st.data())
def test_blocks_that_were_changed(data: st.DataObject) -> None:
    """A changed byte of a real block does no harm to other connections."""
    streams = Streams()
    raw = bytearray(hpack.Encoder().encode(fields_of(1)))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    streams.take(block(bytes(raw)))
    streams.take(block(hpack.Encoder().encode(fields_of(1)), connection=2))

    found = streams.pop(2, 1)
    assert found and found.path == b"/v1/1"


def test_bounds() -> None:
    """The oldest connections and streams are forgotten where there are too many, and those that have ended."""
    streams, raw = Streams(), hpack.Encoder().encode(fields_of(1))
    for number in range(MOST_CONNECTIONS + 1):
        streams.take(block(raw, connection=number))
    assert streams.pop(0, 1) is None and streams.pop(MOST_CONNECTIONS, 1)
    for number in range(MOST_STREAMS + 1):
        streams.take(block(raw, connection=7, order=number + 1, stream=number + 2))
    assert streams.pop(7, 1) is None and streams.pop(7, MOST_STREAMS + 2)
    streams.take(block(kind=CONNECTION_ENDED, connection=7))
    assert streams.pop(7, MOST_STREAMS + 1) is None


def test_fields_of_all_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are forgotten, the oldest first, where the tables of all have too many fields."""
    monkeypatch.setattr(http2, "MOST_ENTRIES", 10)
    streams, raw = Streams(), hpack.Encoder().encode([(":method", "POST"), ("a", "b"), ("c", "d"), ("e", "f")])
    for number in range(5):
        streams.take(block(raw, connection=number))
    assert [None, None] == [streams.pop(0, 1), streams.pop(1, 1)] and streams.pop(2, 1)
    for number in range(5):
        streams.take(block(kind=CONNECTION_ENDED, connection=number))
    for number in range(6, 9):
        streams.take(block(raw, connection=number))
    assert all(streams.pop(number, 1) for number in range(6, 9))


def test_trailers_of_a_request() -> None:
    """Trailers of a client change neither the method nor the path of its request."""
    streams, encoder = Streams(), hpack.Encoder()
    for order, path in enumerate(("/v1/completions", "/other")):
        fields = [(":method", "GET" if order else "POST"), (":path", path), ("traceparent", str(order))]
        streams.take(block(encoder.encode(fields), order=order))
    assert Fields(b"POST", b"/v1/completions", traceparent=b"0") == streams.pop(1, 1)


def of(fields: Fields | None, **values: int) -> Answer:
    found = read(record(b"", **{"stream": 1, "status": 0, "response_bytes": 9, **values}), fields)
    assert found
    return found


@pytest.mark.parametrize(
    ("number", "outcome", "status", "error"),
    [
        (b"0", 1, "OK", ""),
        (b"14", 1, "UNAVAILABLE", "UNAVAILABLE"),
        (b"17", 1, "unknown", ""),
        (b"x", 1, "unknown", ""),
        (b"", 1, "unknown", ""),
        (b"", 2, "none", "client_gone"),
    ],
)
def test_statuses_of_grpc(number: bytes, outcome: int, status: str, error: str) -> None:
    """The name of a status in the trailers; one that did not come is none, one that is not known unknown."""
    fields = Fields(b"POST", GENERATE, b"200", b"application/grpc+proto", grpc_status=number)
    found = of(fields, outcome=outcome, messages=2, flags=MESSAGES, first=2 * 10**9)

    assert (status, error, GENERATE.decode()) == (found.status, found.error, found.route)
    assert (1.0 if error in ("", "client_gone") else None) == found.time_to_first_token


def test_what_is_not_known() -> None:
    """Without fields there is no route and no status, and a stream is what begins like one."""
    unknown = of(None, flags=EVENT_STREAM, first=2 * 10**9)
    assert ("other", "unknown", True) == (unknown.route, unknown.status, unknown.inference)
    assert "none" == of(None, outcome=2, response_bytes=0).status
    assert not of(None, flags=EVENT_STREAM | LINES).inference


def test_a_body_that_its_type_contradicts() -> None:
    """A body that looks like lines is no stream if declared a document; other methods are no requests."""
    fields = Fields(b"POST", b"/v1/completions", b"200", b"application/json")
    whole = of(fields, flags=EVENT_STREAM | LINES, first=2 * 10**9, gap_ns=5)
    assert (None, ()) == (whole.time_to_first_token, whole.gaps)
    assert of(Fields(b"POST", b"/x", b"200", b"application/x-ndjson"), flags=EVENT_STREAM | LINES).inference
    assert read(record(b"", stream=1), Fields(b"GET", b"/", b"200")) is None
    assert read(record(b"GET / HTTP/1.1", stream=1), None) is None


@pytest.mark.parametrize(("path", "inference"), [(b"/x.Y/Generate", True), (b"/grpc.health.v1.Health/Watch", False)])
def test_streams_of_other_services(path: bytes, inference: bool) -> None:
    """Streams of gRPC are inference, but not those of its own services."""
    fields = Fields(b"POST", path, b"200", b"application/grpc", grpc_status=b"0")
    assert inference is of(fields, messages=3, flags=MESSAGES).inference
    assert not of(fields, messages=1, flags=MESSAGES).inference


@pytest.mark.parametrize(("encoding", "seconds"), [(b"br", None), (b"identity", 1.0)])
def test_an_encoded_stream(encoding: bytes, seconds: float | None) -> None:
    """Bytes of a compressed stream may look like events: its first token and its gaps are not known."""
    fields = Fields(b"POST", b"/v1/completions", b"200", b"text/event-stream", encoding)
    found = of(fields, flags=EVENT_STREAM, first=2 * 10**9, last=3 * 10**9, gap_ns=5)

    assert (True, seconds, bool(seconds)) == (found.inference, found.time_to_first_token, bool(found.gaps))
