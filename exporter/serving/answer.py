"""What a record of a request means: its route, model, tokens and times. All bytes are those of strangers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from exporter.serving.routes import route

EVENT_STREAM, ENCODED, QUEUE_KNOWN, FAILED_IN_STREAM = 1, 2, 4, 8
"""Flags of bpf/serving/serving.h."""
COMPLETE = 1
_ABORTED = {2: "client_gone", 3: "server_gone", 4: "unterminated", 5: "unreadable"}
"""Values of its enum outcome."""
LONGEST_MODEL = 96
NO_STATUS = "none"
_MODEL = re.compile(rb'(?<=[{,\s])"model"\s*:\s*"((?:[^"\\\x00-\x1f]|\\.){1,256})"')
_INPUT = re.compile(
    rb'(?<=[{,\s])"(?:prompt_tokens|input_tokens|prompt_eval_count|tokens_evaluated)"\s*:\s*(\d{1,12})(?!\d)'
)
_OUTPUT = re.compile(
    rb'(?<=[{,\s])"(?:completion_tokens|output_tokens|generated_tokens|eval_count|tokens_predicted)"\s*:\s*(\d{1,12})(?!\d)'
)
_CHUNK_LINES = re.compile(rb"\r\n(?:[0-9A-Fa-f]{1,8}\r\n)?")


class Record(Protocol):
    """struct request of bpf/serving/serving.h."""

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
    begin_size: int
    tail_at: int
    tail_end: int
    status: int
    outcome: int
    flags: int
    traceparent: bytes
    line: bytes
    begin: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that ended. Times are in seconds, None where there is none or it is not known."""

    inference: bool
    route: str
    model: str
    status: str
    aborted: str
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


def read(record: Record) -> Answer:
    """Return the meaning of a record."""
    complete, succeeded = record.outcome == COMPLETE, record.status == 200
    stream = bool(record.flags & EVENT_STREAM)
    begin, end = raw(record, "begin")[: record.begin_size], tail(record)
    model = _model(begin) or _model(end)
    known, tokens = route(raw(record, "line")), _tokens(begin, end) if complete and succeeded else {}
    return Answer(
        inference=bool(known or stream or model or tokens.get("output") is not None),
        route=known or "other",
        model=model,
        status=str(record.status) if 200 <= record.status < 600 else NO_STATUS,
        aborted=_ABORTED.get(record.outcome, ""),
        stream_error=bool(record.flags & FAILED_IN_STREAM),
        tokens=tokens,
        duration=_seconds(record.start, record.end) if complete else None,
        time_to_first_token=_seconds(record.start, record.first) if succeeded else None,
        time_per_output_token=_per_token(record, tokens.get("output")) if complete and succeeded else None,
        queue=record.queue_ns / 1e9 if record.flags & QUEUE_KNOWN else None,
        request_bytes=record.request_bytes,
        response_bytes=record.response_bytes,
        gaps=tuple(record.gaps),
        gap_seconds=record.gap_ns / 1e9,
    )


def tail(record: Record) -> bytes:
    """Return the last bytes of the answer, without the lines between chunks: the ring, from the oldest byte on."""
    ring = raw(record, "tail")
    return _CHUNK_LINES.sub(b"", ring[record.tail_at : record.tail_end] + ring[: record.tail_at])


def raw(record: Record, name: str) -> bytes:
    """Return all bytes of a field; ctypes ends the text of one at its first zero."""
    field = getattr(type(record), name)
    return bytes(record)[field.offset : field.offset + field.size]  # type: ignore[call-overload,no-any-return]


def _seconds(since: int, until: int) -> float | None:
    return (until - since) / 1e9 if until and until >= since else None


def _per_token(record: Record, tokens: int | None) -> float | None:
    seconds = _seconds(record.first, record.last) if record.first else None
    return seconds / (tokens - 1) if seconds is not None and tokens and tokens > 1 else None


def _model(text: bytes) -> str:
    found = _MODEL.search(text)
    return _printable(found[1]) if found else ""


def _tokens(begin: bytes, end: bytes) -> dict[str, int | None]:
    return {"input": _last(_INPUT, end) or _last(_INPUT, begin), "output": _last(_OUTPUT, end)}


def _last(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    found = pattern.findall(text)
    return int(found[-1]) if found else None


def _printable(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "?" for char in text)[:LONGEST_MODEL]
