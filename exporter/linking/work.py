"""The newest spans of GPU work of each process."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from exporter.linking.obi import Context
from exporter.model import Attribute, Link, Span

PROCESSES, SPANS = 64, 256
_LATE_NS = 1_000_000_000
"""Spans of a process arrive in the order of their ends, except for so much."""
_OF_WORK = ("gpu.cuda.api", "nccl.api", "rdma.device")
"""Attributes of which each span of GPU work has one."""


KIND, SOURCE = "link.kind", "link.source"
OBI: Mapping[str, Attribute] = {KIND: "thread", SOURCE: "obi"}


@dataclass(frozen=True, slots=True)
class Reading:
    """A context that OBI had of a thread at a time after some work had ended, in wall time in nanoseconds."""

    context: Context
    read_ns: int
    since_ns: int
    """Time of the first of the last readings, which all had this context."""

    @property
    def link(self) -> Link:
        return Link(*self.context, OBI)

    def during(self, work: Work) -> bool:
        """Return whether the thread had the context before and after the work."""
        return self.since_ns <= work.start_ns and work.end_ns <= self.read_ns


@dataclass(frozen=True, slots=True)
class Work:
    """A span of GPU work. Times are wall time in nanoseconds; `tid` is 0 where it is not known."""

    pid: int
    tid: int
    start_ns: int
    end_ns: int
    trace_id: str
    span_id: str
    reading: Reading | None = None


def work_of(span: Span) -> Work | None:
    """Return what is needed of a span to link to it, None if it is not of the GPU work of a process."""
    pid, tid = span.process.get("pid", ""), span.attributes.get("thread.id", 0)
    if not pid.isdecimal() or not any(name in span.attributes for name in _OF_WORK):
        return None
    known = tid if isinstance(tid, int) else 0
    return Work(int(pid), known, span.start_ns, span.end_ns, span.trace_id, span.span_id)


class RecentWork:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[int, deque[Work]] = OrderedDict()

    def add(self, work: Work) -> None:
        with self._lock:
            self._of.setdefault(work.pid, deque(maxlen=SPANS)).append(work)
            self._of.move_to_end(work.pid)
            while len(self._of) > PROCESSES:
                self._of.popitem(last=False)

    def processes(self) -> Collection[int]:
        with self._lock:
            return list(self._of)

    def during(self, pid: int, start_ns: int, end_ns: int) -> list[Work]:
        """Return the work of a process that overlaps these times, the newest first."""
        found = []
        with self._lock:
            for it in reversed(self._of.get(pid, ())):
                if it.end_ns < start_ns - _LATE_NS:
                    break
                if it.start_ns < end_ns and it.end_ns > start_ns:
                    found.append(it)
        return found
