"""Requests of LLM servers as spans, in the trace of their client where the request names one (W3C traceparent)."""

from __future__ import annotations

import re
import secrets

from exporter.model import Labels, Served, Span
from exporter.node import Clock
from exporter.serving.answer import GRPC_STATUSES, Answer, RequestRecord

SLOW_SECONDS = 10.0
"""A first token, or without one a whole answer, that takes longer makes a span that is kept where it is not sampled."""
_PARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
TRACEPARENT = 55
"""Bytes of a traceparent; of later versions what follows is not read."""
_SAMPLED = 1
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/api/chat": "chat",
    "/v1/completions": "text_completion",
    "/completions": "text_completion",
    "/completion": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
    "/embed": "embeddings",
    "/embeddings": "embeddings",
}
"""Values of gen_ai.operation.name by route; of others it is generate_content."""


def served(record: RequestRecord, in_flight: int, seen_ns: int) -> Served:
    """Return what links need of a request; `in_flight` are the requests of its process at `seen_ns`, after its end."""
    return Served(record.tgid, record.tid, record.start + record.queue_ns, record.end, in_flight, seen_ns)


def span(
    record: RequestRecord,
    answer: Answer,
    engine: str,
    clock: Clock,
    process: Labels,
    request: Served | None = None,
) -> Span | None:
    """Return the span of a request; None where its client decided that the trace is not sampled, and nothing failed."""
    parent = _PARENT.fullmatch(record.traceparent)
    error = answer.error
    seconds = answer.time_to_first_token or answer.duration or 0.0
    slow = seconds > SLOW_SECONDS
    if parent and not int(parent[3], 16) & _SAMPLED and not error and not slow:
        return None
    operation = _OPERATIONS.get(answer.route, "generate_content")
    return Span(
        name=f"{operation} {answer.model}".rstrip(),
        trace_id=parent[1].decode() if parent else secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        start_ns=clock.wall_ns(record.start),
        end_ns=clock.wall_ns(record.end),
        attributes=_attributes(answer, engine, operation, error),
        process=process,
        error=error,
        parent_id=parent[2].decode() if parent else "",
        parent_remote=bool(parent),
        slow=slow,
        served=request,
    )


def _attributes(answer: Answer, engine: str, operation: str, error: str) -> dict[str, str | int | float | bool]:
    known = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": engine,
        "gen_ai.response.model": answer.model or None,
        "gen_ai.usage.input_tokens": answer.tokens.get("input"),
        "gen_ai.usage.output_tokens": answer.tokens.get("output"),
        "gen_ai.response.time_to_first_chunk": answer.time_to_first_token,
        "http.request.method": "POST",
        "http.route": answer.route,
        "http.response.status_code": int(answer.status) if answer.status.isdecimal() else None,
        "rpc.response.status_code": answer.status if answer.status in GRPC_STATUSES else None,
        "http.request.size": answer.request_bytes,
        "http.response.size": answer.response_bytes,
        "llm.socket.queue": answer.queue,
        "error.type": error or None,
    }
    return {name: value for name, value in known.items() if value is not None}
