"""Faults that NVIDIA's driver reports: Xids, SXids and GPUs lost from the bus, from the kernel log and NVML."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

from exporter import push
from exporter.bpf import events
from exporter.counters import Tally
from exporter.faults.xid import metrics
from exporter.faults.xid.catalog import IGNORE
from exporter.faults.xid.counts import DriverCounts
from exporter.faults.xid.decode import WORDS, FaultDecoder, xid
from exporter.faults.xid.directory import Directory
from exporter.faults.xid.duplicates import Duplicates
from exporter.faults.xid.report import DriverReport
from exporter.faults.xid.spans import FaultSpans, Occurrence, title
from exporter.kmsg.records import Record
from exporter.model import Metric, Sample, Unavailable
from exporter.node import Node
from exporter.nvml.snapshot import Event

METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
_DROPPED = "xid_rate_limit"
_NAMING_SECONDS = 30.0
"""Time after the start in which series wait for NVML to name the GPUs: new labels would make an alert fire again."""

log = logging.getLogger(__name__)


def create(node: Node) -> Xid:
    return Xid(node)


class Xid:
    """Reads both sources in the background; a scrape shows the faults counted so far."""

    name = "xid"

    def __init__(self, node: Node) -> None:
        self.node = node
        self._directory = Directory(node.gpus.snapshot)
        self._counts = DriverCounts(self._directory.labels)
        self._duplicates = Duplicates()
        self._decoder = FaultDecoder()
        self._dropped = Tally(push.SPANS_DROPPED, (_DROPPED,))
        self._spans = FaultSpans(node.processes, node.spans, lambda: self._dropped.add(_DROPPED))
        self._count_fault = node.faults.reading(self.name, node.kernel_log.path)
        self._kernel_log = node.kernel_log.subscribe(WORDS, self._read)
        self._boot = _boot_id(node.proc)
        self._named_by = 0.0

    def start(self) -> None:
        """Starts reading. Raises Unavailable when the kernel log cannot be read and there is no NVML either."""
        try:
            self._kernel_log.start()
        except Unavailable:
            if self.node.gpus.snapshot().state == "absent":
                raise
        self._named_by = time.monotonic() + _NAMING_SECONDS
        self._spans.start()
        self.node.gpus.listen(self._event)

    def collect(self) -> Iterator[Sample]:
        self._directory.refresh()
        for report, wall_time in self._duplicates.due(time.time()):
            self.node.faults.add(report.fault(wall_time, False))
            self._count(report, wall_time, "nvml", "", f"{report.device} {report.code} {wall_time}")
        if self.node.gpus.snapshot().state != "starting" or time.monotonic() >= self._named_by:
            yield from self._counts.samples()
        yield from self._dropped.samples()
        yield events.EVENTS_LOST.sample(self._kernel_log.lost, {"stream": "kmsg"})
        yield events.EVENTS_LOST.sample(self._duplicates.dropped, {"stream": "nvml_xids"})
        yield metrics.SOURCE.sample(int(not any(self.problems())), {"source": "kmsg"})
        yield metrics.SOURCE.sample(int(self.node.gpus.snapshot().state == "running"), {"source": "nvml"})

    def problems(self) -> Iterator[str]:
        """Yields the reason why the kernel log is not read, for the landing page; nothing while the log is read."""
        if problem := self._kernel_log.problem:
            yield problem

    def close(self) -> None:
        self.node.gpus.unlisten(self._event)
        self._kernel_log.close()
        self._spans.close()

    def _read(self, record: Record, wall_time: float) -> None:
        """Takes a record of the kernel log, in the reader's thread."""
        if owner := self._decoder.owner(record):
            self._directory.learn(*owner)
        elif report := self._decoder.report(record):
            self._duplicates.logged(report, wall_time)
            fault = report.fault(wall_time, record.replayed)
            self._count_fault(record.sequence, fault)
            self._count(report, wall_time, "kmsg", record.text, f"{self._boot} {record.sequence}", record.replayed)

    def _event(self, event: Event) -> None:
        """Takes an event of NVML, in a thread of the nvml collector."""
        if event.kind != "xid":
            return
        self._directory.refresh()
        self._duplicates.event(xid(self._directory.bus(event.uuid), event.data), event.time)

    def _count(
        self, report: DriverReport, wall_time: float, source: str, message: str, origin: str, replayed: bool = False
    ) -> None:
        gpu = self._directory.labels(report.device)
        if self._counts.add(report, wall_time, replayed):
            level = logging.INFO if report.action == IGNORE else logging.WARNING
            where = gpu.get("gpu_uuid") or report.device or "a device that is not named"
            log.log(level, "%s, on %s; to do: %s", title(report), where, report.action or "see docs/xid.md")
        self._spans.add(Occurrence(report, gpu, round(wall_time * 1e9), source, message, origin, replayed))


def _boot_id(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
