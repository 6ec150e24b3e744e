"""Interpretation of records of requests: models, tokens and times, from untrusted bytes."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import Distribution, Span
from exporter.node import Clock
from exporter.serving import metrics
from exporter.serving.activity import MOST_MODELS, OTHER, Activity
from exporter.serving.answer import ENCODED, EVENT_STREAM, QUEUE_KNOWN, Answer, read
from exporter.serving.model_names import LONGEST_MODEL
from exporter.serving.routes import route
from exporter.serving.spans import span

SECOND = 10**9
TAIL = 512


class Record(ctypes.Structure):
    """struct request of bpf/serving/serving.h, with fewer gaps."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("kind", "stream")),
        *((name, ctypes.c_uint64) for name in ("connection", "start", "queue_ns", "first", "last", "end")),
        *((name, ctypes.c_uint64) for name in ("request_bytes", "response_bytes", "gap_ns")),
        ("gaps", ctypes.c_uint32 * 18),
        *((name, ctypes.c_uint32) for name in ("tgid", "messages", "begin_size", "unused")),
        *((name, ctypes.c_uint16) for name in ("tail_at", "tail_end", "status")),
        *((name, ctypes.c_uint8) for name in ("outcome", "flags")),
        ("traceparent", ctypes.c_char * 56),
        ("line", ctypes.c_char * 128),
        ("begin", ctypes.c_char * 512),
        ("tail", ctypes.c_char * 1024),
    ]


def record(line: bytes = b"POST /v1/completions HTTP/1.1", begin: bytes = b"", tail: bytes = b"", **fields: int) -> Any:
    made = Record(start=SECOND, end=3 * SECOND, status=200, outcome=1, line=line, begin=begin)
    made.begin_size = len(begin)
    written = 0
    while written < len(tail):  # as the kernel does, with what one call sent
        part = tail[written : written + 100]
        made.tail_at = made.tail_at & (TAIL - 1)
        where = Record.tail.offset + made.tail_at
        ctypes.memmove(ctypes.addressof(made) + where, part, len(part))
        after = made.tail_at + len(part)
        made.tail_end = after if after >= TAIL else max(made.tail_end, after)
        made.tail_at = 0 if after >= TAIL else after
        written += len(part)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_stream() -> None:
    """The model of the first event, tokens of the usage in the last, and the time per token between them."""
    begin = b'data: {"id":"cmpl-1","model":"meta/\\"x","choices":[]}'
    filler = b"12\r\n" + b"data: {}\n\n" * 100 + b"\r\n"
    end = b'5f\r\ndata: {"choices":[],"usage":{"prompt_tok\r\n10\r\nens":7,"completion_tokens": 5}}\n\n\r\n0\r\n\r\n'
    fields = {"first": 2 * SECOND, "last": 2 * SECOND + SECOND // 2, "flags": EVENT_STREAM | QUEUE_KNOWN}
    found = read(record(begin=begin, tail=filler + end, queue_ns=1000, **fields))

    assert ('meta/"x', "/v1/completions", {"input": 7, "output": 5}) == (found.model, found.route, found.tokens)
    assert (2.0, 1.0, 0.125, 1e-6) == (
        found.duration,
        found.time_to_first_token,
        found.time_per_output_token,
        found.queue,
    )


@pytest.mark.parametrize(
    ("tail", "tokens"),
    [
        (b'{"usage":{"input_tokens":3,"output_tokens":9,"output_tokens_details":{"reasoning_tokens":1}}}', (3, 9)),
        (b'{"details":{"finish_reason":"length","generated_tokens":20,"seed":1}}', (None, 20)),
        (b'{"done":true,"prompt_eval_count":26,"eval_count":290}', (26, 290)),
        (b'{"content":"\\"usage\\":{\\"completion_tokens\\":9}"}', (None, None)),
        (b'{"completion_tokens":99999999999999999999}', (None, None)),
        (b'{"usage":null}', (None, None)),
        (b'{"usage":{"prompt_tokens":1.5,"completion_tokens":1e3}}', (None, None)),
        (b'{"usage":{"prompt_tokens":-3,"completion_tokens":12.0}}', (None, None)),
        (
            b'{"usage":{"cache_read_input_tokens":63,"cache_creation_input_tokens":5,"input_tokens":1,"output_tokens":5}}',
            (69, 5),
        ),
        (b'{"usage":{"input_tokens":0,"output_tokens":0}}', (0, 0)),
        (
            b'{"choices":[],"timings":{"cache_n":63,"prompt_n":1,"prompt_ms":2.5,"predicted_n":3,"predicted_ms":4}}',
            (64, 3),
        ),
        (b'{"choices":[{"index":1}],"timings":{"cache_n":63,"prompt_n":1,"predicted_n":3}}', (None, None)),
        (
            b'{"usage":{"completion_tokens":7,"prompt_tokens":9},"timings":{"cache_n":1,"prompt_n":1,"predicted_n":3}}',
            (9, 7),
        ),
    ],
)
def test_tokens(tail: bytes, tokens: tuple[int | None, int | None]) -> None:
    """In the words of each engine; text that an answer quotes is none."""
    assert {"input": tokens[0], "output": tokens[1]} == read(record(tail=tail)).tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (
            b'{"usage":{"prompt_tokens":4,"completion_tokens":3},"choices":[{"parsed":{"completion_tokens":99}}]}',
            (4, 3),
        ),
        (
            b'{"usage":{"prompt_tokens":4,"details":{"x":1},"completion_tokens":3,"y":{}},"x":{"prompt_tokens":9}}',
            (4, 3),
        ),
        (b'{"usage":{"prompt_tokens":4},"data":[{"completion_tokens":99}]}', (4, None)),
        (
            b'{"usage":{"prompt_tokens":2,"completion_tokens":1}}\n{"usage":{"prompt_tokens":4,"completion_tokens":3}}',
            (4, 3),
        ),
        (b'{"usage":{"input_tokens":9,"output_tokens":1}}\n{"usage":{"output_tokens":12}}', (9, 12)),
        (b'{"usage":{"prompt_tokens":4,"completion_tokens":3,"x":{"y":{"z":[' + b"{" * 400, (4, 3)),
        (b'{"usage":null,"eval_count":3}', (None, 3)),
    ],
)
def test_tokens_beside_the_usage(text: bytes, tokens: tuple[int | None, int | None]) -> None:
    """Numbers in other objects, such as arguments of a tool, are no tokens where there is a usage."""
    assert {"input": tokens[0], "output": tokens[1]} == read(record(tail=text)).tokens


def test_tokens_before_a_long_end() -> None:
    """llama.cpp's /completion has them before its settings; Anthropic's stream names those of the prompt first."""
    begin = b'{"index":0,"content":"x","tokens_predicted":20,"tokens_evaluated":9,"generation_settings":{"seed":1'
    assert {"input": 9, "output": 20} == read(record(begin=begin, tail=b" " * TAIL)).tokens
    assert {"input": 9, "output": None} == read(record(begin=begin, tail=b" " * TAIL, flags=EVENT_STREAM)).tokens
    usage = b'"usage":{"cache_read_input_tokens":63,"input_tokens":1,"output_tokens":1}'
    begin = b'data: {"type":"message_start","message":{%s}}' % usage
    end = b'data: {"type":"message_delta","usage":{"output_tokens":5}}'
    assert {"input": 64, "output": 5} == read(record(begin=begin, tail=b" " * TAIL + end)).tokens
    assert {"input": 64, "output": None} == read(record(begin=begin, tail=b" " * TAIL)).tokens


def test_what_is_not_known_is_absent() -> None:
    """A request without an answer has no times, tokens and status."""
    found = read(record(status=0, outcome=2))

    assert ("none", "client_gone", {}) == (found.status, found.aborted, found.tokens)
    assert [None] * 4 == [found.duration, found.time_to_first_token, found.time_per_output_token, found.queue]


@pytest.mark.parametrize(
    ("fields", "abandoned"),
    [
        ({"outcome": 2, "status": 0}, True),
        ({"outcome": 2, "flags": EVENT_STREAM}, True),
        ({"outcome": 2, "flags": EVENT_STREAM, "first": 2 * SECOND}, False),
        ({"outcome": 2, "flags": EVENT_STREAM | ENCODED}, False),
        ({"outcome": 3, "status": 0}, False),
        ({"outcome": 1}, False),
    ],
)
def test_clients_that_leave_early(fields: dict[str, int], abandoned: bool) -> None:
    """A client has left before the first token if none was sent; of a compressed stream that is not known."""
    activity = Activity("vllm")
    activity.add(read(record(**fields)))
    counts = [value for metric, value, _ in activity.values() if metric is metrics.ABANDONED]

    assert [1] * abandoned == counts


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"POST /v1/chat/completions HTTP/1.1", "/v1/chat/completions"),
        (b"POST /openai/v1/completions?api-version=2 HTTP/1.1", "/v1/completions"),
        (b"POST http://x:8000/generate/ HTTP/1.1", "/generate"),
        (b"POST /v2/models/llama-3/generate_stream HTTP/1.1", "/v2/models/{model}/generate_stream"),
        (b"POST /v1/models/m:predict HTTP/1.1", "/v1/models/{model}:predict"),
        (b"POST /tokenize HTTP/1.1", ""),
        (b"GET /v1/completions HTTP/1.1", ""),
        (b"POST * HTTP/1.1", ""),
        (b"POST /v1/completions\xff", ""),
        (b"POST /v1/completions\xff/cancel", ""),
        (b"POST /" + b"x" * 100 + b"/v1/completions HTTP/1.1", "/v1/completions"),
        (b"POST /" + b"x" * 107 + b"/v1/completions", ""),  # all of 128 bytes, of which more may follow
        (b"POST HTTP://x/v1/completions", "/v1/completions"),
    ],
)
def test_routes(line: bytes, found: str) -> None:
    """Routes are the ends of paths, of a list that does not grow."""
    assert found == route(line)


@given(st.binary(max_size=64), st.binary(max_size=256), st.binary(max_size=2000))
def test_any_bytes(line: bytes, begin: bytes, tail: bytes) -> None:
    """Whatever a server sends is read, and names are short and printable."""
    found = read(record(line.replace(b"\0", b""), begin.replace(b"\0", b""), tail))
    assert found.model.isprintable() and len(found.model) <= LONGEST_MODEL


EVIL = b'"metadata":{"model":"evil","a":"}"}'


@pytest.mark.parametrize(
    ("begin", "tail", "model"),
    [
        (b'{"id":"r",' + EVIL + b',"model":"true","usage":{}}', b"", "true"),
        (b'data: {"type":"x","response":{"id":"r",' + EVIL + b',"model":"true"}}\n\n', b"", "true"),
        (b'data: {"type":"message_start","message":{"id":"r","model":"true"}}\n\n', b"", "true"),
        (b'{"id":"r",' + EVIL + b',"instructions":"' + b"x" * 99, b'xx",' + EVIL + b',"model":"true","n":{}}', "true"),
        (b'{"id":"r",' + EVIL, b'"}],' + EVIL + b',"o":[{"p":{}}],"model":"true","usage":{"n":1}}', "true"),
        (b'{"id":"r",' + EVIL, b'"text":"' + b"x" * 99 + b'"}', ""),
        (b'{"model":"meta-llama\\/L3"}', b"", "meta-llama/L3"),
        (b'{"model":"\\u4e2d\\u6587"}', b"", "\u4e2d\u6587"),
        (b'{"model":"a\\u0000b\\ud800\\n"}', b"", "a?b??"),
        (b'{"model":"a\\xb"}', b"", "a\\xb"),
        (b'[{"model":"true"},{"model":"other"}]', b"", "true"),
    ],
)
def test_models(begin: bytes, tail: bytes, model: str) -> None:
    """The model is the server's name of it, not one in what a client has the response repeat, and without escapes."""
    assert model == read(record(begin=begin, tail=tail)).model


def test_tokens_of_trailers() -> None:
    """Trailers after the last chunk are no part of the body."""
    usage = b'{"usage":{"prompt_tokens":3,"completion_tokens":5}}\r\n0;x\r\n'
    trailers = b'X-Usage: {"completion_tokens":77}\r\nX: y\r\n\r\n'
    assert {"input": 3, "output": 5} == read(record(tail=usage + trailers)).tokens


def test_statuses() -> None:
    """A status is what an answer has, unknown where that is no status, and none without an answer."""
    found = [read(record(status=status)).status for status in (0, 101, 200, 599, 600, 1000)]
    assert ["none", "101", "200", "599", "unknown", "unknown"] == found


def test_models_are_bounded() -> None:
    """A client that invents models gets series for some of them; the rest are one, and nothing is lost."""
    activity = Activity("vllm")
    activity.add(read(record()))
    for number in range(100):
        activity.add(read(record(begin=b'{"model":"m%d"}' % number)))
    counts = {labels["model"]: value for metric, value, labels in activity.values() if metric is metrics.REQUESTS}

    assert MOST_MODELS + 2 == len(counts)  # one had no name
    assert (100 - MOST_MODELS, 101) == (counts[OTHER], sum(int(str(it)) for it in counts.values()))


def test_other_requests_are_no_inference() -> None:
    """A POST to an unknown route, answered by what is no model, is counted apart."""
    activity = Activity("unknown")
    activity.add(read(record(b"POST /tokenize HTTP/1.1", begin=b'{"tokens":[1]}')))

    assert [(metrics.OTHER_REQUESTS, 1, {})] == list(activity.values())


def test_late_counts_are_added() -> None:
    """Counts that end after a process was read are added to its counts."""
    first, late = Activity("vllm"), Activity("vllm")
    answer: Answer = read(record(first=2 * SECOND, flags=EVENT_STREAM))
    first.add(answer)
    late.add(answer)
    first.absorb(late)
    [value] = [value for metric, value, _ in first.values() if metric is metrics.TIME_TO_FIRST_TOKEN]

    assert isinstance(value, Distribution) and (2, 2.0) == (sum(value.counts), value.sum)


def labelled(made: Span | None) -> Span:
    assert made
    return made


def test_span_in_the_client_s_trace() -> None:
    """A request with a traceparent is a child of the client's span; without one it has a trace of its own."""
    made = record(begin=b'{"model":"tiny"}')
    made.traceparent = f"00-{'a' * 32}-{'b' * 16}-01".encode()
    child = labelled(span(made, read(made), "vllm", Clock(), {"pid": "7"}))
    alone = labelled(span(record(), read(record()), "vllm", Clock(), {"pid": "7"}))

    assert ("a" * 32, "b" * 16, True) == (child.trace_id, child.parent_id, child.parent_remote)
    assert ("text_completion tiny", 2 * SECOND) == (child.name, child.end_ns - child.start_ns)
    assert (200, "tiny") == (child.attributes["http.response.status_code"], child.attributes["gen_ai.response.model"])
    assert ("", False) == (alone.parent_id, alone.parent_remote) and alone.trace_id != child.trace_id


@pytest.mark.parametrize("text", ["00-" + "0" * 32 + "-" + "b" * 16 + "-01", "zz", "00-" + "a" * 32 + "-" + "b" * 16])
def test_invalid_traces_are_ignored(text: str) -> None:
    """Text that is no traceparent is no parent."""
    made = record()
    made.traceparent = text.encode()
    assert "" == labelled(span(made, read(made), "vllm", Clock(), {})).parent_id


def test_unsampled_traces_are_kept_where_they_failed() -> None:
    """The client's decision counts, but for requests that failed or were slow."""
    parent = f"00-{'a' * 32}-{'b' * 16}-00".encode()
    fine, failed, slow = record(), record(outcome=4), record(end=30 * SECOND)
    for it in (fine, failed, slow):
        it.traceparent = parent
    found = [span(it, read(it), "vllm", Clock(), {}) for it in (fine, failed, slow)]

    assert [None, "unterminated", ""] == [it and it.error for it in found]
    assert labelled(found[2]).slow
