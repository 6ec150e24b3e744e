"""Records of a custom probe's buffers as spans."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from exporter.custom.decode import attributes, number
from exporter.custom.definition import SpanDefinition
from exporter.model import Labels, Span
from exporter.node import Clock


def span(
    definition: SpanDefinition,
    fields: Mapping[str, str],
    row: Sequence[Any],
    clock: Clock,
    process: Callable[[int], Labels],
) -> Span | None:
    """Return the span of a record, in a trace of its own; None if the start is 0 or after the end.

    The record's times are nanoseconds of bpf_ktime_get_ns(). `process` returns the labels of a pid.
    """
    start, end = number(fields, definition.start, row), number(fields, definition.end, row)
    if not 0 < start <= end:
        return None
    failed = number(fields, definition.error, row) if definition.error else 0
    return Span(
        name=definition.name,
        trace_id=secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        start_ns=clock.wall_ns(start),
        end_ns=clock.wall_ns(end),
        attributes=attributes(definition.attributes, fields, row),
        process=process(number(fields, definition.pid, row)) if definition.pid else {},
        error=str(failed) if failed else "",
        slow=bool(definition.slow_ns) and end - start >= definition.slow_ns,
    )
