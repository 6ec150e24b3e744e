"""The metrics of the requests that LLM servers answer. docs/serving.md has what begins and ends each clock."""

from __future__ import annotations

from exporter.model import Kind, Metric

_MODEL = ("model", "route", "engine")

REQUEST_DURATION = Metric(
    "gen_ai.server.request.duration",
    "Time from the arrival of a request's first byte in the server's socket to the write of its answer's last byte, "
    "for requests that were answered completely.",
    Kind.HISTOGRAM,
    "s",
    labels=_MODEL,
    process=True,
)
TIME_TO_FIRST_TOKEN = Metric(
    "gen_ai.server.time_to_first_token",
    "Time from the arrival of a request's first byte in the server's socket to the write of the first event that may "
    "have a token. Time in the socket and in front of the engine is included. Only for event streams with status 200.",
    Kind.HISTOGRAM,
    "s",
    labels=_MODEL,
    process=True,
)
TIME_PER_OUTPUT_TOKEN = Metric(
    "gen_ai.server.time_per_output_token",
    "Time from the first event with a token to the last event, divided by the tokens after the first. Only for "
    "complete streams that report their number of tokens (usage).",
    Kind.HISTOGRAM,
    "s",
    labels=_MODEL,
    process=True,
)
REQUESTS = Metric(
    "gen_ai.server.requests",
    "Requests that ended, by status of the answer; none: the connection ended before an answer. For gRPC: the name of "
    "the gRPC status (OK, UNAVAILABLE); unknown where the fields of an HTTP/2 connection could not be decoded, or if "
    "the status is no number from 100 to 599.",
    Kind.COUNTER,
    labels=(*_MODEL, "status"),
    process=True,
)
ABORTED = Metric(
    "gen_ai.server.requests.aborted",
    "Requests without a complete answer, by reason: client_gone (the client closed or reset the connection), "
    "server_gone (the process ended), unterminated (the server closed the connection in the middle of the answer), "
    "unreadable (bytes that are not HTTP/1.1 or HTTP/2, or that the exporter could not read), unknown (over TLS and "
    "Unix sockets, where neither a shutdown nor the end of a socket was seen).",
    Kind.COUNTER,
    labels=(*_MODEL, "reason"),
    process=True,
)
ABANDONED = Metric(
    "gen_ai.server.requests.abandoned",
    "Requests that the client left (client_gone) before it had a token: before the first event of a stream that may "
    "have one, or before the end of another response.",
    Kind.COUNTER,
    labels=_MODEL,
    process=True,
)
STREAM_ERRORS = Metric(
    "gen_ai.server.stream.errors",
    "Event streams with status 200 that began with an error instead of a token.",
    Kind.COUNTER,
    labels=_MODEL,
    process=True,
)
IN_FLIGHT = Metric(
    "gen_ai.server.requests.in_flight",
    "POST requests that were read and have no complete answer yet. Requests that are no inference are included, and "
    "for HTTP/2 requests of other methods.",
    Kind.GAUGE,
    process=True,
)
TOKENS = Metric(
    "gen_ai.server.tokens",
    "Tokens that answers report in their usage, by type (input, output).",
    Kind.COUNTER,
    labels=(*_MODEL, "type"),
    process=True,
)
REQUEST_BYTES = Metric(
    "gen_ai.server.request.size",
    "Bytes read of the requests that ended, heads included. For HTTP/2: as compressed, without frame headers.",
    Kind.COUNTER,
    "By",
    labels=_MODEL,
    process=True,
)
RESPONSE_BYTES = Metric(
    "gen_ai.server.response.size",
    "Bytes of answers that sockets accepted, for requests that ended, heads included. For HTTP/2: as compressed, "
    "without frame headers.",
    Kind.COUNTER,
    "By",
    labels=_MODEL,
    process=True,
)
EVENT_GAP = Metric(
    "llm.stream.event.gap",
    "Time between two events of a stream, from the first event with a token on. Events sent at once count as one. "
    "Observed when the stream ends.",
    Kind.HISTOGRAM,
    "s",
    labels=_MODEL,
    process=True,
)
SOCKET_QUEUE = Metric(
    "llm.socket.queue",
    "Time from the arrival of a request's first byte to the server's read of it: the server was busy with other work. "
    "Without the first request of a port that the exporter has not seen before, the first request of a Unix "
    "connection, and requests among many read at once, with an arrival time that is not kept.",
    Kind.HISTOGRAM,
    "s",
    labels=_MODEL,
    process=True,
    classic=True,
)
OTHER_REQUESTS = Metric(
    "llm.http.requests.other",
    "POST requests to followed processes that are no inference: unknown route, and no stream, model or usage in the "
    "answer.",
    Kind.COUNTER,
    process=True,
)
UNCOUNTED = Metric(
    "llm.serving.requests.lost",
    "Requests that ended and are in no other metric, because more ended at once than the exporter could read (the "
    "ring buffer was full). For HTTP/2, requests of methods other than POST are included.",
    Kind.COUNTER,
)
STREAMS_LOST = Metric(
    "llm.serving.streams.lost",
    "HTTP/2 requests that were not followed: more than 256 were open on their connection, or 16,384 on the node.",
    Kind.COUNTER,
)
FOLLOWED = Metric("llm.serving.processes", "Processes with followed sockets.", Kind.GAUGE)
UNREADABLE = Metric(
    "llm.serving.connections.unreadable",
    "Connections no longer followed: the bytes are not HTTP/1.1 or HTTP/2 (also after an upgrade to WebSocket), more "
    "than 64 requests were sent ahead of their answers, or memory could not be read.",
    Kind.COUNTER,
)
UNREAD_CALLS = Metric(
    "llm.serving.socket.calls.unread",
    "Socket calls of followed processes with unread bytes: sendfile, splice, recvmmsg of several messages with a "
    "timeout, and calls by io_uring that are not followed.",
    Kind.COUNTER,
)
_OF_ENGINE = ("model", "engine")
ENGINE_WAITING = Metric(
    "llm.engine.requests.waiting",
    "Requests waiting in the engine, from the engine's own metrics.",
    Kind.GAUGE,
    labels=_OF_ENGINE,
    process=True,
)
ENGINE_RUNNING = Metric(
    "llm.engine.requests.running",
    "Requests that the engine is processing, from the engine's own metrics.",
    Kind.GAUGE,
    labels=_OF_ENGINE,
    process=True,
)
ENGINE_CACHE = Metric(
    "llm.engine.kv_cache.utilization",
    "Share of the KV cache in use, from the engine's own metrics; with several caches, the fullest one.",
    Kind.GAUGE,
    "1",
    labels=_OF_ENGINE,
    process=True,
)
ENGINE_FIRST_TOKEN = Metric(
    "llm.engine.time_to_first_token",
    "Time to first token, from the engine's own metrics. Without the time in front of the engine.",
    Kind.HISTOGRAM,
    "s",
    labels=_OF_ENGINE,
    process=True,
    classic=True,
)
ENGINE_READS = Metric(
    "llm.serving.engine.metrics.reads",
    "Readings of the /metrics of inference engines, by result (read, failed: of an engine that was read before).",
    Kind.COUNTER,
    labels=("result",),
)
