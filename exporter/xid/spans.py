"""Each fault as a span without length, with what the driver said and the process it named."""

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
from exporter.xid.faults import Attribute, Family, Fault

A_SECOND = 500
_WAITING = 1024
_MESSAGE = 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Telling:
    """A fault as one source told it: at wall time `time_ns`, `message` in its words, `origin` unlike any other's.

    `gpu` are the labels of its device.
    """

    fault: Fault
    gpu: Labels
    time_ns: int
    source: str
    message: str
    origin: str
    replayed: bool = False


class Spans:
    """Makes spans in a thread of its own: looking a process up may block where the driver hangs, counting must not.

    `dropped` is called for each span that found no room, or came after `A_SECOND` others of its second.
    """

    def __init__(self, processes: Processes, give: Callable[[Span], None], dropped: Callable[[], None]) -> None:
        self._processes, self._give, self._dropped = processes, give, dropped
        self._queue: queue.Queue[Telling | None] = queue.Queue(_WAITING)
        self._lock = threading.Lock()
        self._second = self._in_second = 0
        self._thread = threading.Thread(target=self._run, name="xid spans", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, telling: Telling) -> None:
        """Never blocks; safe from any thread."""
        if not self._in_time():
            self._dropped()
            return
        try:
            self._queue.put_nowait(telling)
        except queue.Full:
            self._dropped()

    def close(self) -> None:
        """Ends the thread, unless it is blocked; what waits is not told."""
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
            return self._in_second <= A_SECOND

    def _run(self) -> None:
        while telling := self._queue.get():
            try:
                self._give(span(telling, self._processes))
            except Exception:
                log.exception("a fault did not become a span")


def span(telling: Telling, processes: Processes) -> Span:
    """The span of a fault. Told again from the same record, also by a later run, it has the same ids."""
    fault = telling.fault
    digest = hashlib.blake2b(telling.origin.encode(), digest_size=24).hexdigest()
    kind = fault.family.value
    attributes: dict[str, Attribute] = {f"gpu.{kind}.{name}": it for name, it in fault.labels.items() if name != kind}
    if fault.family is not Family.BUS_LOSS:
        attributes[f"gpu.{kind}.code"] = fault.code
    if fault.recovery is not None:
        attributes["gpu.xid.recovery"] = fault.recovery
    attributes |= {**fault.details, "gpu.fault.text": fault.text, "gpu.fault.source": telling.source}
    if telling.message:
        attributes["log.record.original"] = printable(telling.message[:_MESSAGE].encode())
    if telling.replayed:
        attributes["gpu.fault.replayed"] = True
    gpu = dict(telling.gpu)
    if bus := gpu.pop("pci_bus_id", ""):
        attributes["gpu.pci_bus_id"] = bus
    harmless = fault.action == IGNORE or fault.labels["category"] == INFORMATION
    return Span(
        name=f"gpu.{kind}",
        trace_id=digest[:32],
        span_id=digest[32:],
        start_ns=telling.time_ns,
        end_ns=telling.time_ns,
        attributes=attributes,
        process={**_process(telling, processes), **gpu},
        error="" if harmless else title(fault),
    )


def title(fault: Fault) -> str:
    """`Xid 79: the GPU does not answer …`."""
    number = {Family.XID: f"Xid {fault.code}: ", Family.SXID: f"SXid {fault.code}: ", Family.BUS_LOSS: ""}
    return number[fault.family] + fault.text


def _process(telling: Telling, processes: Processes) -> Labels:
    """The process that the driver names, as it was when it did: long ago its pid may be another's."""
    fault = telling.fault
    if fault.pid is None:
        return {}
    named = {"pid": str(fault.pid)} | ({"comm": printable(fault.name.encode())} if fault.name else {})
    return named if telling.replayed else {**named, **processes.labels(fault.pid)}
