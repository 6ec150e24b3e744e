"""GPUDirect Storage: bytes that jobs read and write, latency, errors by file system, from probes on libcufile."""

from __future__ import annotations

import re
from collections.abc import Iterator

from exporter.call_collector import ERRORS, CallCollector, Rows, distribution, sample
from exporter.cufile import metrics
from exporter.cufile.codes import error_name
from exporter.cufile.records import IO
from exporter.ledger import Process
from exporter.model import Metric, Sample
from exporter.node import Node
from exporter.series import limit_flag

METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
FLAGS = (limit_flag(10_000),)


def create(node: Node) -> Cufile:
    return Cufile(node)


class Cufile(CallCollector):
    """The probes of bpf/cufile.bpf.c."""

    name, api = "cufile", "cuFile"
    counted = (IO, ERRORS)
    # Setting up, polling and ending a batch moves nothing.
    coverable = re.compile(r"cuFile(Read|Write|Handle|Batch(?!IO(SetUp|GetStatus|Cancel|Destroy)))\w*")

    def _samples_of(self, process: Process[Rows]) -> Iterator[Sample]:
        for key, value in process.activity.of(IO):
            function = self._names[key.api]
            labels = {
                "operation": "write" if "Write" in function or key.opcode else "read",
                "api": function,
                "filesystem": key.filesystem.name.decode(errors="replace") or "unknown",
            }
            yield sample(process, metrics.REQUESTS, value.requests, labels)
            waits = not function.endswith(("Async", "Submit"))
            if value.succeeded:
                yield sample(process, metrics.IO if waits else metrics.SUBMITTED, value.bytes, labels)
            if any(value.took.slots):
                yield sample(process, metrics.DURATION, distribution(value.took), labels)
        yield from self._errors_of(process, metrics.ERRORS, metrics.LAST_ERROR, error_name)
