"""Calls of UCX: sends, remote reads and writes, bytes and errors, from probes on libucp; costs time at each call."""

from __future__ import annotations

import re
from collections.abc import Iterator

from exporter.call_collector import ERRORS, CallCollector, Rows, sample
from exporter.ledger import Process
from exporter.model import Metric, Sample
from exporter.node import Node
from exporter.series import limit_flag
from exporter.ucx import metrics
from exporter.ucx.codes import error_name
from exporter.ucx.records import CALLS

DEFAULT = False
METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
FLAGS = (limit_flag(10_000),)
RESULTS = (("completed", "completed"), ("pending", "pending"), ("failed", "error"), ("unseen", "unknown"))
"""Fields of `struct calls`, and the results that they count."""
_MOVING = re.compile(r"ucp_(put|get|\w+_send(_sync)?)_nbx")


def create(node: Node) -> Ucx:
    return Ucx(node)


class Ucx(CallCollector):
    """The probes of bpf/ucx.bpf.c."""

    name, api = "ucx", "UCX"
    counted = (CALLS, ERRORS)
    # Atomic operations move a word.
    coverable = re.compile(r"ucp_(?!atomic)\w+_nbx")

    def _samples_of(self, process: Process[Rows]) -> Iterator[Sample]:
        for key, value in process.activity.of(CALLS):
            function = self._names[key.api]
            labels = {"api": function}
            for field, result in RESULTS:
                if count := getattr(value, field):
                    yield sample(process, metrics.CALLS, count, labels | {"result": result})
            if not _MOVING.fullmatch(function):
                continue
            if value.completed + value.pending > value.unsized:
                direction = {"direction": "receive" if function == "ucp_get_nbx" else "transmit"}
                yield sample(process, metrics.IO, value.bytes, labels | direction)
            if value.unsized:
                yield sample(process, metrics.UNSIZED, value.unsized, labels)
        yield from self._errors_of(process, metrics.ERRORS, metrics.LAST_ERROR, error_name)
