"""KV cache transfers of NIXL: bytes, time, errors, those in flight, by backend and peer, from probes on libnixl."""

from __future__ import annotations

import re
from collections.abc import Iterator

from exporter.bpf.hook import Hook
from exporter.call_collector import ERRORS, CallCollector, Rows, distribution, sample
from exporter.ledger import Process
from exporter.model import Metric, Sample
from exporter.nixl import metrics, names
from exporter.nixl.codes import error_name
from exporter.nixl.records import DURATIONS, TRANSFERS, Operation
from exporter.node import Node
from exporter.probe_collector import Table
from exporter.series import limit_flag

METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
FLAGS = (limit_flag(10_000),)
OPERATIONS = ("read", "write")
ENDS = (("succeeded", "success"), ("failed", "error"), ("released", "released"), ("unseen", "unseen"))
"""Fields of `struct transfers`, and the statuses that they count."""


def create(node: Node) -> Nixl:
    return Nixl(node)


class Nixl(CallCollector):
    """The probes of bpf/nixl.bpf.c."""

    name, api = "nixl", "NIXL"
    counted = (TRANSFERS, DURATIONS, ERRORS)
    coverable = re.compile(
        r"_ZNK9nixlAgent\d+(postXferReq|getXferStatus|releaseXferReq)E\w+|_ZNK\d+nixl\w+Engine8postXferE\w+"
    )

    def _table(self) -> Table:
        return {
            symbol: [Hook("on_post", number)] if names.backend(symbol) else hooks
            for (symbol, hooks), number in zip(super()._table().items(), self._functions.values(), strict=True)
        }

    def _function(self, api: int) -> str:
        return names.function(self._names[api])

    def _samples_of(self, process: Process[Rows]) -> Iterator[Sample]:
        for key, value in process.activity.of(TRANSFERS):
            labels = self._of(key) | {"peer": key.peer.decode(errors="replace") or "unknown"}
            for field, status in ENDS:
                if count := getattr(value, field):
                    yield sample(process, metrics.TRANSFERS, count, labels | {"status": status})
            if value.succeeded > value.unsized:
                yield sample(process, metrics.BYTES, value.bytes, labels)
            if value.unsized:
                yield sample(process, metrics.UNSIZED, value.unsized, labels)
            if not process.ended:
                in_flight = value.begun - sum(getattr(value, field) for field, _ in ENDS)
                yield sample(process, metrics.IN_FLIGHT, max(0, in_flight), labels)
        for operation, took in process.activity.of(DURATIONS):
            yield sample(process, metrics.DURATION, distribution(took), self._of(operation))
        yield from self._errors_of(process, metrics.ERRORS, metrics.LAST_ERROR, error_name)

    def _of(self, key: Operation) -> dict[str, str]:
        operation = OPERATIONS[key.operation] if key.operation < len(OPERATIONS) else "unknown"
        return {"operation": operation, "backend": names.backend(self._names.get(key.backend, "")) or "unknown"}
