"""Records of a custom probe's buffers as spans."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from exporter.custom.decode import attributes, number
from exporter.custom.definition import SpanOf
from exporter.model import Labels, Span
from exporter.node import Clock


def span(
    it: SpanOf, fields: Mapping[str, str], row: Sequence[Any], clock: Clock, process: Callable[[int], Labels]
) -> Span | None:
    """A record as its span, in a trace of its own; None where its times are none: the end before the start, or 0.

    Times are those of bpf_ktime_get_ns().
    """
    start, end = number(fields, it.start, row), number(fields, it.end, row)
    if not 0 < start <= end:
        return None
    failed = number(fields, it.error, row) if it.error else 0
    return Span(
        name=it.name,
        trace_id=secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        start_ns=clock.wall_ns(start),
        end_ns=clock.wall_ns(end),
        attributes=attributes(it.attributes, fields, row),
        process=process(number(fields, it.pid, row)) if it.pid else {},
        error=str(failed) if failed else "",
        slow=bool(it.slow_ns) and end - start >= it.slow_ns,
    )
