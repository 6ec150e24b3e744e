"""Compression and decompression by processes with libbz2, from probes on the library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from exporter.call_collector import ERRORS, CallCollector, CountedMap, Duration, Function, Rows, distribution, sample
from exporter.ledger import Process
from exporter.model import Kind, Metric, Sample
from exporter.node import Node
from exporter.series import limit_flag

CALLS = Metric("bzip2.calls", "Calls, by function.", Kind.COUNTER, labels=("api",), process=True)
OUTPUT = Metric("bzip2.output", "Bytes that calls put out.", Kind.COUNTER, "By", labels=("api",), process=True)
DURATION = Metric("bzip2.duration", "Time in calls.", Kind.HISTOGRAM, "s", labels=("api",), process=True)
FAILED = Metric("bzip2.errors", "Calls that failed, by the result.", Kind.COUNTER, labels=("api", "code"), process=True)
FLAGS = (limit_flag(1_000),)


class Work(Protocol):
    """struct work."""

    calls: int
    bytes: int
    took: Duration


WORK = CountedMap[Function, Work]("work")


def create(node: Node) -> Bzip2:
    return Bzip2(node)


class Bzip2(CallCollector):
    """The probes of bpf/bzip2.bpf.c."""

    name, api = "bzip2", "libbz2"
    counted = (WORK, ERRORS)
    coverable = re.compile(r"BZ2_bzBuffToBuff\w+")

    def _samples_of(self, process: Process[Rows]) -> Iterator[Sample]:
        for key, value in process.activity.of(WORK):
            labels = {"api": self._names[key.api]}
            yield sample(process, CALLS, value.calls, labels)
            yield sample(process, OUTPUT, value.bytes, labels)
            yield sample(process, DURATION, distribution(value.took), labels)
        for error, failed in process.activity.of(ERRORS):
            yield sample(process, FAILED, failed.calls, {"api": self._names[error.api], "code": str(error.code)})
