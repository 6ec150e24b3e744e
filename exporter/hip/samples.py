"""From the rows of a process to samples, for each of its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from exporter import call_collector
from exporter.call_collector import ERRORS, Rows, distribution
from exporter.hip import metrics
from exporter.hip.codes import error_name
from exporter.hip.records import CALLS, COPIES, LAUNCHES, PROCESSES, TOTALS, WAITS
from exporter.ledger import Process
from exporter.model import Labels, Metric, Sample, Value


@dataclass(frozen=True, slots=True)
class Names:
    """The names of numbers in rows."""

    function: Callable[[int], str]
    memory: Mapping[int, str]
    direction: Mapping[int, str]


def samples(process: Process[Rows], names: Names, wall_ns: Callable[[int], int], unseen: bool) -> Iterator[Sample]:
    """Yield the samples of a process. `unseen`: a call on memory was not seen, or may have been made unseen."""
    for gpu, rows in parts(process.activity):
        part = _Part(process, gpu, rows, names)
        yield from part.calls()
        yield from part.launches(wall_ns)
        yield from part.errors(wall_ns)
        yield from part.waits_and_copies()
        yield from part.memory(unseen)


def sample(process: Process[Rows], metric: Metric, value: Value, labels: Labels) -> Sample:
    """Return a sample of a process, with its labels, those of the runtime and these."""
    return call_collector.sample(process, metric, value, {**metrics.RUNTIME, **labels})


def parts(rows: Rows) -> list[tuple[Labels, Rows]]:
    """Return the rows of each GPU, and of GPUs that are not known, without those of the process as a whole."""
    own = {name: held for name, held in rows.maps.items() if name != PROCESSES}
    devices = {key.device for held in own.values() for key, _ in held.values()}
    if len(devices) <= 1:
        return [(rows.gpus.get(next(iter(devices), 0), {}), Rows(own))]
    found: dict[tuple[tuple[str, str], ...], Rows] = {}
    for name, held in own.items():
        for key, value in held.values():
            gpu = tuple(rows.gpus.get(key.device, {}).items())
            alone = _without_device(key)
            found.setdefault(gpu, Rows()).absorb(Rows({name: {bytes(alone): (alone, value)}}))
    return [(dict(gpu), part) for gpu, part in found.items()]


def only_gpu(rows: Rows) -> Labels:
    """Return the labels of the GPU of all rows; empty where that is not known, or there are several."""
    gpus = list(rows.gpus.values())
    return gpus[0] if gpus and all(it == gpus[0] for it in gpus) else {}


def used_by_device(rows: Rows, kinds: Mapping[int, str]) -> Mapping[int, int]:
    """Return the bytes of GPU memory in use by device, as keys have it; 0 for devices that only have other rows."""
    devices = {key.device for name, of in rows.maps.items() if name != PROCESSES for key, _ in of.values()}
    sizes = dict.fromkeys(devices, 0)
    for key, it in rows.of(TOTALS):
        if kinds[key.memory] in ("device", "pool") and not it.resets:
            sizes[key.device] += max(0, it.allocated - it.freed - it.implicit)
    return sizes


def _without_device(key: Any) -> Any:
    alone = type(key).from_buffer_copy(key)
    alone.device = 0
    return alone


@dataclass(frozen=True, slots=True)
class _Part:
    """Activity of a process on one GPU, or on GPUs that are not known."""

    process: Process[Rows]
    gpu: Labels
    rows: Rows
    names: Names

    def calls(self) -> Iterator[Sample]:
        for key, calls in self.rows.of(CALLS):
            yield self._sample(metrics.CALLS, calls, {"api": self.names.function(key.api)})

    def launches(self, wall_ns: Callable[[int], int]) -> Iterator[Sample]:
        calls: dict[str, int] = {}
        launches: dict[Metric, int] = {}
        last = 0
        for key, value in self.rows.of(LAUNCHES):
            name = self.names.function(key.api)
            metric = metrics.GRAPH_LAUNCHES if "Graph" in name else metrics.LAUNCHES
            if value.calls:
                calls[name] = calls.get(name, 0) + value.calls
                launches[metric] = launches.get(metric, 0) + value.calls
            last = max(last, value.last_ns)
        for name, count in calls.items():
            yield self._sample(metrics.CALLS, count, {"api": name})
        for metric, count in launches.items():
            yield self._sample(metric, count, {})
        if last:
            yield self._sample(metrics.LAST_LAUNCH, wall_ns(last) / 1e9, {})

    def errors(self, wall_ns: Callable[[int], int]) -> Iterator[Sample]:
        for key, value in self.rows.of(ERRORS):
            labels = {"api": self.names.function(key.api), "code": str(key.code), "error": error_name(key.code)}
            yield self._sample(metrics.ERRORS, value.calls, labels)
            yield self._sample(metrics.LAST_ERROR, wall_ns(value.last_ns) / 1e9, labels)

    def waits_and_copies(self) -> Iterator[Sample]:
        for key, value in self.rows.of(WAITS):
            yield self._sample(metrics.WAITED, distribution(value), {"api": self.names.function(key.api)})
        for copy, copied in self.rows.of(COPIES):
            yield self._sample(metrics.COPIED, copied, {"direction": self.names.direction[copy.direction]})

    def memory(self, unseen: bool) -> Iterator[Sample]:
        ended, replaced = self.process.ended, self.process.replaced
        for key, it in self.rows.of(TOTALS):
            labels = {"memory": self.names.memory[key.memory]}
            if it.unmatched_frees:
                yield self._sample(metrics.UNMATCHED_FREES, it.unmatched_frees, labels)
            if not it.allocated:
                continue
            used = it.allocated - it.freed - it.implicit
            at_end = max(0, used - it.untracked) if ended else 0
            yield self._sample(metrics.ALLOCATED, it.allocated, labels)
            yield self._sample(metrics.FREED, it.freed, labels)
            yield self._sample(metrics.FREED, it.implicit + at_end, labels | {"implicit": "true"})
            if it.untracked:
                yield self._sample(metrics.UNTRACKED, it.untracked, labels)
            if ended and not replaced:
                yield self._sample(metrics.USED, 0, labels)
            elif not (unseen or it.untracked or it.resets):
                yield self._sample(metrics.USED, max(0, used), labels)

    def _sample(self, metric: Metric, value: Value, labels: Labels) -> Sample:
        return sample(self.process, metric, value, {**self.gpu, **labels})
