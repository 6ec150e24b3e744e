"""Single NCCL calls as spans: the records of `nccl_spans` in bpf/nccl.bpf.c."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exporter.model import Labels, Span
from exporter.nccl.codes import data_type, result
from exporter.nccl.pace import Pace
from exporter.nccl.recent import Recent
from exporter.nccl.samples import Kinds, comm_hash, function
from exporter.nccl.traces import ORIGINS, Name, Traces
from exporter.push import PARTIAL

Attribute = str | int | float | bool
_FINE = (0, 7)
"""ncclSuccess, ncclInProgress."""


class Spans:
    """From records to spans. One thread at a time."""

    def __init__(self, kinds: Kinds, wall_ns: Callable[[int], int], traces: Traces, pace: Pace, recent: Recent) -> None:
        self._kinds, self._wall_ns, self._traces, self._pace, self._recent = kinds, wall_ns, traces, pace, recent

    def span(self, record: Any, process: Labels) -> Span | None:
        """The span of one call, in the trace that all its ranks name alike where they can.

        None of a call whose trace is not sampled, if it was neither slow nor failed.
        """
        error = "" if record.code in _FINE else result(record.code) or str(record.code)
        slow = self._pace.slow(record)
        if record.partial and not (error or slow):
            return None
        name = self._traces.name(record, self._kinds)
        if self._kinds.is_collective(record.kind):
            self._recent.add(record.tgid, record.start_ns, (name.trace_id, name.span_id))
        return Span(
            name=self._kinds.names[record.kind],
            trace_id=name.trace_id,
            span_id=name.span_id,
            start_ns=self._wall_ns(record.start_ns),
            end_ns=self._wall_ns(record.end_ns),
            attributes=_attributes(record, self._kinds, name, error),
            process=process,
            error=error,
            parent_id=name.parent_id,
            parent_remote=name.parent_remote,
            links=name.links,
            slow=slow,
        )


def _attributes(record: Any, kinds: Kinds, name: Name, error: str) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "nccl.api": function(record.api).name,
        "nccl.group.depth": record.depth,
        "nccl.trace_shared": name.alone is None,
        "thread.id": record.tid,
        "thread.name": bytes(record.comm).split(b"\0")[0].decode("utf-8", "backslashreplace"),
    }
    if name.alone:
        attributes["nccl.trace_alone"] = name.alone.value
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
