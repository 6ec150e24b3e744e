"""Spans of faults, without duration, with the driver's message and the process that the driver named."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from exporter.model import Labels, Span
from exporter.node import Processes
from exporter.resolve.process import printable
from exporter.xid.catalog import IGNORE, INFORMATION
from exporter.xid.fault import Attribute, DriverFault, Family

MOST_PER_SECOND = 500
_MOST_WAITING = 1024
_MOST_CHARACTERS = 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FaultReport:
    """A report of a fault by one source.

    `gpu` are the labels of the device, `time_ns` is wall time in nanoseconds, `message` the source's own text, `origin`
    an identifier that no other report has.
    """

    fault: DriverFault
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
        self._queue: queue.Queue[FaultReport | None] = queue.Queue(_MOST_WAITING)
        self._lock = threading.Lock()
        self._second = self._in_second = 0
        self._thread = threading.Thread(target=self._run, name="xid spans", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, report: FaultReport) -> None:
        """Queues a report. Never blocks; thread-safe."""
        if not self._in_time():
            self._dropped()
            return
        try:
            self._queue.put_nowait(report)
        except queue.Full:
            self._dropped()

    def close(self) -> None:
        """Ends the thread, unless the thread is blocked; queued reports are dropped."""
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
        while report := self._queue.get():
            try:
                self._give(span(report, self._processes))
            except Exception:
                log.exception("a fault did not become a span")


def span(report: FaultReport, processes: Processes) -> Span:
    """Returns the span of a fault. The ids are the same for the same record, also in a later run."""
    fault = report.fault
    digest = hashlib.blake2b(report.origin.encode(), digest_size=24).hexdigest()
    kind = fault.family.value
    attributes: dict[str, Attribute] = {
        f"gpu.{kind}.{key}": value for key, value in fault.labels.items() if key != kind
    }
    if fault.family is not Family.BUS_LOSS:
        attributes[f"gpu.{kind}.code"] = fault.code
    if fault.recovery is not None:
        attributes["gpu.xid.recovery"] = fault.recovery
    attributes |= {**fault.details, "gpu.fault.text": fault.text, "gpu.fault.source": report.source}
    if report.message:
        attributes["log.record.original"] = printable(report.message[:_MOST_CHARACTERS].encode())
    if report.replayed:
        attributes["gpu.fault.replayed"] = True
    gpu = dict(report.gpu)
    if bus := gpu.pop("pci_bus_id", ""):
        attributes["gpu.pci_bus_id"] = bus
    harmless = fault.action == IGNORE or fault.labels["category"] == INFORMATION
    return Span(
        name=f"gpu.{kind}",
        trace_id=digest[:32],
        span_id=digest[32:],
        start_ns=report.time_ns,
        end_ns=report.time_ns,
        attributes=attributes,
        process={**_process(report, processes), **gpu},
        error="" if harmless else title(fault),
    )


def title(fault: DriverFault) -> str:
    """Returns a title such as `Xid 79: the GPU does not answer …`."""
    number = {Family.XID: f"Xid {fault.code}: ", Family.SXID: f"SXid {fault.code}: ", Family.BUS_LOSS: ""}
    return number[fault.family] + fault.text


def _process(report: FaultReport, processes: Processes) -> Labels:
    """Returns the labels of the process that the driver names; pid and name alone for a replayed fault, because
    another process may have the pid by now.
    """
    fault = report.fault
    if fault.pid is None:
        return {}
    named = {"pid": str(fault.pid)} | ({"comm": printable(fault.name.encode())} if fault.name else {})
    return named if report.replayed else {**named, **processes.labels(fault.pid)}
