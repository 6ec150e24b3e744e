"""Interpretation of the record of a request: route, model, tokens and times. All bytes are untrusted input."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from exporter.serving.model_names import model_name
from exporter.serving.routes import route, streams_answers

if TYPE_CHECKING:
    from exporter.serving.http2 import FieldBlock, Fields

EVENT_STREAM, ENCODED, QUEUE_KNOWN, FAILED_IN_STREAM, LINES, MESSAGES = 1, 2, 4, 8, 16, 32
"""Flags of bpf/serving/serving.h."""
REQUEST = 0
"""Of its enum kind."""
COMPLETE, CLIENT_CLOSED = 1, 2
_ABORTED = {CLIENT_CLOSED: "client_gone", 3: "server_gone", 4: "unterminated", 5: "unreadable", 6: "unknown"}
"""Values of its enum outcome."""
LONGEST_FIELD = 256
"""Bytes of a field of HTTP/2 that are kept (exporter.serving.http2)."""
NO_STATUS, UNKNOWN_STATUS = "none", "unknown"
GRPC_STATUSES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
"""Names of gRPC's statuses by number (doc/statuscodes.md of grpc)."""
_INPUT = re.compile(
    rb'(?<=[{,\s])"(?:prompt_tokens|input_tokens|prompt_eval_count|tokens_evaluated)"\s*:\s*(\d{1,12})(?![\d.eE])'
)
_OUTPUT = re.compile(
    rb'(?<=[{,\s])"(?:completion_tokens|output_tokens|generated_tokens|eval_count|tokens_predicted)"\s*:\s*(\d{1,12})(?![\d.eE])'
)
_CACHED = tuple(
    re.compile(rb'(?<=[{,\s])"cache_%s_input_tokens"\s*:\s*(\d{1,12})(?![\d.eE])' % name)
    for name in (b"read", b"creation")
)
"""Tokens that `input_tokens` does not have where an answer names these: Anthropic's Messages, "Prompt caching"."""
_USAGE = re.compile(rb'(?<=[{,\s])"usage"\s*:\s*(\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\})')
"""An object of counts, with objects of their details."""
_EARLY_OUTPUT = re.compile(rb'(?<=[{,\s])"tokens_predicted"\s*:\s*(\d{1,12})(?![\d.eE])')
"""Before the settings of llama.cpp's /completion, which are longer than the end of an answer that is kept."""
_TIMED_INPUT = re.compile(rb'(?<=[{,\s])"cache_n"\s*:\s*(\d{1,9})\s*,\s*"prompt_n"\s*:\s*(\d{1,9})(?![\d.eE])')
_TIMED_OUTPUT = re.compile(rb'(?<=[{,\s])"predicted_n"\s*:\s*(\d{1,12})(?![\d.eE])')
"""Of the `timings` of one choice, which llama.cpp adds to every answer (tools/server/README.md of llama.cpp)."""
_FURTHER_CHOICE = re.compile(rb'(?<=[{,\s])"index"\s*:\s*[1-9]')
_TRAILERS = re.compile(rb"\r\n0+(?:[ \t]*;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)+\r\n\Z")
"""After the last chunk of an answer."""
_CHUNK_LINES = re.compile(rb"\r\n(?:[0-9A-Fa-f]{1,8}\r\n)?")


class RequestRecord(Protocol):
    """struct request of bpf/serving/serving.h."""

    kind: int
    stream: int
    connection: int
    start: int
    queue_ns: int
    first: int
    last: int
    end: int
    request_bytes: int
    response_bytes: int
    gap_ns: int
    gaps: Sequence[int]
    tgid: int
    messages: int
    begin_size: int
    tid: int
    tail_at: int
    tail_end: int
    status: int
    outcome: int
    flags: int
    traceparent: bytes
    line: bytes
    begin: bytes
    tail: bytes


class RingRecord(Protocol):
    """union record of bpf/serving/http2.h: what the ring buffer carries."""

    @property
    def request(self) -> RequestRecord: ...
    @property
    def fields(self) -> FieldBlock: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that ended. Times are in seconds, None where there is none or it is not known.

    `abandoned`: the client left before the first event of a stream, or before the end of another response.
    """

    inference: bool
    route: str
    model: str
    status: str
    error: str
    aborted: str
    abandoned: bool
    stream_error: bool
    tokens: Mapping[str, int | None]
    duration: float | None
    time_to_first_token: float | None
    time_per_output_token: float | None
    queue: float | None
    request_bytes: int
    response_bytes: int
    gaps: Sequence[int]
    gap_seconds: float


@dataclass(frozen=True, slots=True)
class _Head:
    """Parsed heads of a request and its response. `stream`: a stream of events; `clear`: no content encoding."""

    line: bytes
    status: int
    label: str
    stream: bool
    succeeded: bool
    clear: bool = True


def read(record: RequestRecord, fields: Fields | None = None) -> Answer | None:
    """Return the meaning of a record, with its fields if it is one of HTTP/2; None where it is no POST request."""
    head = _of_http2(record, fields) if record.stream else _of_http1(record)
    if head is None:
        return None
    complete = record.outcome == COMPLETE
    whole, stream = complete and head.succeeded, head.succeeded and head.stream and head.clear
    begin, end = raw(record, "begin")[: record.begin_size], tail(record)
    model = model_name(begin, end)
    known, tokens = route(head.line), _tokens(begin, end, head.stream) if whole else {}
    aborted = _ABORTED.get(record.outcome, "")
    return Answer(
        inference=bool(known or head.stream or model or tokens.get("output") is not None),
        route=known or "other",
        model=model,
        status=head.label,
        error=aborted or (head.label if head.status >= 500 or (head.status == 200 and not head.succeeded) else ""),
        aborted=aborted,
        abandoned=record.outcome == CLIENT_CLOSED and not record.first and (head.clear or not head.stream),
        stream_error=bool(record.flags & FAILED_IN_STREAM),
        tokens=tokens,
        duration=_seconds(record.start, record.end) if complete else None,
        time_to_first_token=_seconds(record.start, record.first) if stream else None,
        time_per_output_token=_per_token(record, tokens.get("output")) if stream and complete else None,
        queue=record.queue_ns / 1e9 if record.flags & QUEUE_KNOWN else None,
        request_bytes=record.request_bytes,
        response_bytes=record.response_bytes,
        gaps=tuple(record.gaps) if head.stream and head.clear else (),
        gap_seconds=record.gap_ns / 1e9 if head.stream and head.clear else 0.0,
    )


def _of_http1(record: RequestRecord) -> _Head:
    status = record.status
    label = str(status) if 100 <= status < 600 else UNKNOWN_STATUS if status else NO_STATUS
    stream, clear = bool(record.flags & EVENT_STREAM), not record.flags & ENCODED
    return _Head(raw(record, "line"), status, label, stream, status == 200, clear)


def _of_http2(record: RequestRecord, fields: Fields | None) -> _Head | None:
    line = raw(record, "line").rstrip(b"\0")  # of a request that was upgraded
    method, path, status = (fields.method, fields.path, _number(fields.status)) if fields else (b"", b"", 0)
    if (method or line.partition(b" ")[0] or b"POST") != b"POST":
        return None
    kind = fields.content_type if fields else b""
    grpc = kind.startswith(b"application/grpc") if kind else bool(record.flags & MESSAGES)
    no_status = UNKNOWN_STATUS if record.response_bytes else NO_STATUS
    label = str(status) if 200 <= status < 600 else no_status
    succeeded = status == 200
    if grpc and (succeeded or label == UNKNOWN_STATUS):
        label = _grpc_status(record, fields.grpc_status if fields else b"")
        succeeded = label in (GRPC_STATUSES[0], NO_STATUS, UNKNOWN_STATUS)
    stream = _is_stream(record, kind, path if grpc else None)
    clear = not fields or fields.encoding in (b"", b"identity")
    return _Head(line or b"POST " + path + b" " * (len(path) < LONGEST_FIELD), status, label, stream, succeeded, clear)


def _grpc_status(record: RequestRecord, number: bytes) -> str:
    """Return the name of a status in the trailers: none where the answer did not come that far."""
    if number:
        code = _number(number)
        return GRPC_STATUSES[code] if 0 <= code < len(GRPC_STATUSES) else UNKNOWN_STATUS
    return UNKNOWN_STATUS if record.outcome == COMPLETE else NO_STATUS


def _is_stream(record: RequestRecord, kind: bytes, path: bytes | None) -> bool:
    """Return whether a response is a stream. For gRPC (`path` set), a complete response of one message is no stream."""
    if path is not None:
        return record.messages > (record.outcome == COMPLETE) and streams_answers(path)
    if kind.startswith((b"application/x-ndjson", b"application/jsonl")):
        return True
    return kind.startswith(b"text/event-stream") if kind else record.flags & (EVENT_STREAM | LINES) == EVENT_STREAM


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 5 else -1


def tail(record: RequestRecord) -> bytes:
    """Return the last bytes of the body, without the lines between chunks: the ring, from the oldest byte on."""
    ring = raw(record, "tail")
    return _CHUNK_LINES.sub(b"", _TRAILERS.sub(b"", ring[record.tail_at : record.tail_end] + ring[: record.tail_at]))


def raw(record: RequestRecord, name: str) -> bytes:
    """Return all bytes of a field; ctypes ends the text of one at its first zero."""
    field = getattr(type(record), name)
    return bytes(record)[field.offset : field.offset + field.size]  # type: ignore[call-overload,no-any-return]


def _seconds(since: int, until: int) -> float | None:
    return (until - since) / 1e9 if until and until >= since else None


def _per_token(record: RequestRecord, tokens: int | None) -> float | None:
    seconds = _seconds(record.first, record.last) if record.first else None
    return seconds / (tokens - 1) if seconds is not None and tokens and tokens > 1 else None


def _tokens(begin: bytes, end: bytes, stream: bool) -> dict[str, int | None]:
    timed = b"" if _FURTHER_CHOICE.search(begin) or _FURTHER_CHOICE.search(end) else end
    usage = next(reversed(_USAGE.findall(end)), b"")
    return {
        "input": _known(_input(usage), _input(end), _input(begin), _timed_input(timed)),
        "output": _known(
            _last(_OUTPUT, usage or end), _last(_TIMED_OUTPUT, timed), None if stream else _last(_EARLY_OUTPUT, begin)
        ),
    }


def _input(text: bytes) -> int | None:
    """Return the tokens of a prompt, cached ones included."""
    found = _last(_INPUT, text)
    return None if found is None else found + sum(_last(it, text) or 0 for it in _CACHED)


def _timed_input(text: bytes) -> int | None:
    found = _TIMED_INPUT.findall(text)
    return sum(map(int, found[-1])) if found else None


def _known(*values: int | None) -> int | None:
    """Return the first that is not 0, which engines write where they do not know yet; 0 if there is no other."""
    return next((it for it in values if it), 0 if 0 in values else None)


def _last(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    found = pattern.findall(text)
    return int(found[-1]) if found else None
