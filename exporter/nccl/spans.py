"""Single NCCL calls as spans: the records of `nccl_spans` in bpf/nccl/nccl.bpf.c."""

from __future__ import annotations

from collections.abc import Callable

from exporter.model import Labels, Span
from exporter.nccl.codes import data_type, result
from exporter.nccl.recent_collectives import RecentCollectives
from exporter.nccl.records import NcclSpan
from exporter.nccl.samples import Kinds, comm_hash, function
from exporter.nccl.slow_calls import SlowCalls
from exporter.nccl.traces import ORIGINS, SpanContext, Traces
from exporter.push import PARTIAL

Attribute = str | int | float | bool
_FINE = (0, 7)
"""ncclSuccess, ncclInProgress."""


class Spans:
    """Makes spans of records. One thread at a time."""

    def __init__(
        self,
        kinds: Kinds,
        wall_ns: Callable[[int], int],
        traces: Traces,
        slow_calls: SlowCalls,
        collectives: RecentCollectives,
    ) -> None:
        self._kinds, self._wall_ns, self._traces, self._slow_calls, self._collectives = (
            kinds,
            wall_ns,
            traces,
            slow_calls,
            collectives,
        )

    def span(self, record: NcclSpan, process: Labels) -> Span | None:
        """Return the span of one call, in the trace that all its ranks compute alike where they can.

        Return None where the trace is not sampled, unless the call was slow or failed.
        """
        error = "" if record.code in _FINE else result(record.code) or str(record.code)
        slow = self._slow_calls.slow(record)
        if record.partial and not (error or slow):
            return None
        context = self._traces.context(record, self._kinds)
        if self._kinds.is_collective(record.kind):
            self._collectives.add(record.tgid, record.start_ns, (context.trace_id, context.span_id))
        return Span(
            name=self._kinds.names[record.kind],
            trace_id=context.trace_id,
            span_id=context.span_id,
            start_ns=self._wall_ns(record.start_ns),
            end_ns=self._wall_ns(record.end_ns),
            attributes=_attributes(record, self._kinds, context, error),
            process=process,
            error=error,
            parent_id=context.parent_id,
            parent_remote=context.parent_remote,
            links=context.links,
            slow=slow,
        )


def _attributes(record: NcclSpan, kinds: Kinds, context: SpanContext, error: str) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "nccl.api": function(record.api).name,
        "nccl.group.depth": record.depth,
        "nccl.trace_shared": context.not_shared is None,
        "thread.id": record.tid,
        "thread.name": bytes(record.comm).split(b"\0")[0].decode("utf-8", "backslashreplace"),
    }
    if context.not_shared:
        attributes["nccl.trace_alone"] = context.not_shared.value
    if record.who.hash:
        attributes["nccl.comm"] = comm_hash(record.who.hash)
        attributes["nccl.rank"], attributes["nccl.nranks"] = record.who.rank, record.who.nranks
    if kinds.is_collective(record.kind):
        attributes["nccl.collective"] = kinds.names[record.kind]
        attributes["nccl.sequence"] = record.sequence
        attributes["nccl.sequence.origin"] = ORIGINS[record.origin]
        attributes["nccl.captured"] = bool(record.captured)
        attributes["nccl.stream"] = f"{record.stream:#x}"
    if record.partial:
        attributes[PARTIAL] = True
    if record.bytes:
        attributes["nccl.bytes"] = record.bytes
    if type_ := data_type(record.type):
        attributes["nccl.type"] = type_
    if record.peer >= 0:
        attributes["nccl.peer"] = record.peer
    if record.code:
        attributes["nccl.code"] = record.code
    if error:
        attributes["error.type"] = error
    return attributes
