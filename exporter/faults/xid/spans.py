"""Spans of faults, without duration, with the driver's message and the process that the driver named."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from exporter.faults.xid.catalog import IGNORE, INFORMATION
from exporter.faults.xid.report import Attribute, DriverReport, Family
from exporter.model import Labels, Span
from exporter.node import Processes
from exporter.resolve.process import printable

MOST_PER_SECOND = 500
_MOST_WAITING = 1024
_MOST_CHARACTERS = 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A report with its time and source.

    `gpu` are the labels of the device, `time_ns` is wall time in nanoseconds, `message` the source's own text, `origin`
    an identifier that no other occurrence has.
    """

    report: DriverReport
    gpu: Labels
    time_ns: int
    source: str
    message: str
    origin: str
    replayed: bool = False


class FaultSpans:
    """A thread that makes spans: resolving a process may block where the driver hangs, and counting must not block.

    `dropped` is called for each span beyond the room of the queue, or beyond `MOST_PER_SECOND`.
    """

    def __init__(self, processes: Processes, give: Callable[[Span], None], dropped: Callable[[], None]) -> None:
        self._processes, self._give, self._dropped = processes, give, dropped
        self._queue: queue.Queue[Occurrence | None] = queue.Queue(_MOST_WAITING)
        self._lock = threading.Lock()
        self._second = self._in_second = 0
        self._thread = threading.Thread(target=self._run, name="xid spans", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, occurrence: Occurrence) -> None:
        """Queues an occurrence. Never blocks; thread-safe."""
        if not self._in_time():
            self._dropped()
            return
        try:
            self._queue.put_nowait(occurrence)
        except queue.Full:
            self._dropped()

    def close(self) -> None:
        """Ends the thread, unless the thread is blocked; queued occurrences are dropped."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(1)

    def _in_time(self) -> bool:
        second = int(time.monotonic())
        with self._lock:
            self._in_second = self._in_second + 1 if second == self._second else 1
            self._second = second
            return self._in_second <= MOST_PER_SECOND

    def _run(self) -> None:
        while occurrence := self._queue.get():
            try:
                self._give(span(occurrence, self._processes))
            except Exception:
                log.exception("a fault did not become a span")


def span(occurrence: Occurrence, processes: Processes) -> Span:
    """Returns the span of a fault. The ids are the same for the same record, also in a later run."""
    report = occurrence.report
    digest = hashlib.blake2b(occurrence.origin.encode(), digest_size=24).hexdigest()
    kind = report.family.value
    attributes: dict[str, Attribute] = {
        f"gpu.{kind}.{key}": value for key, value in report.labels.items() if key != kind
    }
    if report.family is not Family.BUS_LOSS:
        attributes[f"gpu.{kind}.code"] = report.code
    if report.recovery is not None:
        attributes["gpu.xid.recovery"] = report.recovery
    attributes |= {**report.details, "gpu.fault.text": report.text, "gpu.fault.source": occurrence.source}
    if occurrence.message:
        attributes["log.record.original"] = printable(occurrence.message[:_MOST_CHARACTERS].encode())
    if occurrence.replayed:
        attributes["gpu.fault.replayed"] = True
    gpu = dict(occurrence.gpu)
    if bus := gpu.pop("pci_bus_id", ""):
        attributes["gpu.pci_bus_id"] = bus
    harmless = report.action == IGNORE or report.labels["category"] == INFORMATION
    return Span(
        name=f"gpu.{kind}",
        trace_id=digest[:32],
        span_id=digest[32:],
        start_ns=occurrence.time_ns,
        end_ns=occurrence.time_ns,
        attributes=attributes,
        process={**_process(occurrence, processes), **gpu},
        error="" if harmless else title(report),
    )


def title(report: DriverReport) -> str:
    """Returns a title such as `Xid 79: the GPU does not answer …`."""
    number = {Family.XID: f"Xid {report.code}: ", Family.SXID: f"SXid {report.code}: ", Family.BUS_LOSS: ""}
    return number[report.family] + report.text


def _process(occurrence: Occurrence, processes: Processes) -> Labels:
    """Returns the labels of the process that the driver names; pid and name alone for a replayed fault, because
    another process may have the pid by now.
    """
    report = occurrence.report
    if report.pid is None:
        return {}
    named = {"pid": str(report.pid)} | ({"comm": printable(report.name.encode())} if report.name else {})
    return named if occurrence.replayed else {**named, **processes.labels(report.pid)}
