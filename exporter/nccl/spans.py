"""Single NCCL calls as spans: the records of `nccl_spans` in bpf/nccl.bpf.c."""

from __future__ import annotations

import secrets
from typing import Any

from exporter.model import Labels, Span
from exporter.nccl.codes import data_type, result
from exporter.nccl.samples import Kinds, comm_hash, function
from exporter.node import Clock

Attribute = str | int | float | bool
_FINE = (0, 7)
"""ncclSuccess, ncclInProgress."""


def span(record: Any, kinds: Kinds, clock: Clock, process: Labels) -> Span:
    """The span of one call, in a trace of its own."""
    error = "" if record.code in _FINE else result(record.code) or str(record.code)
    return Span(
        name=kinds.names[record.kind],
        trace_id=secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        start_ns=clock.wall_ns(record.start_ns),
        end_ns=clock.wall_ns(record.end_ns),
        attributes=_attributes(record, kinds, error),
        process=process,
        error=error,
    )


def _attributes(record: Any, kinds: Kinds, error: str) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "nccl.api": function(record.api).name,
        "nccl.group.depth": record.depth,
        "thread.id": record.tid,
        "thread.name": bytes(record.comm).split(b"\0")[0].decode("utf-8", "backslashreplace"),
    }
    if record.who.hash:
        attributes["nccl.comm"] = comm_hash(record.who.hash)
        attributes["nccl.rank"], attributes["nccl.nranks"] = record.who.rank, record.who.nranks
    if kinds.is_collective(record.kind):
        attributes["nccl.collective"] = kinds.names[record.kind]
        attributes["nccl.sequence"] = record.sequence
        attributes["nccl.captured"] = bool(record.captured)
        attributes["nccl.stream"] = f"{record.stream:#x}"
    if record.bytes:
        attributes["nccl.bytes"] = record.bytes
    if name := data_type(record.type):
        attributes["nccl.type"] = name
    if record.peer >= 0:
        attributes["nccl.peer"] = record.peer
    if record.code:
        attributes["nccl.code"] = record.code
    if error:
        attributes["error.type"] = error
    return attributes
