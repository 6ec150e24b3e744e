"""From what CUDA did in a process to samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from exporter.cuda import metrics
from exporter.cuda.activity import Activity, Counts, together
from exporter.cuda.codes import error_name
from exporter.cuda.functions import FUNCTIONS, CudaFunction
from exporter.cuda.names import Names
from exporter.cuda.spans import WAIT_FIRST
from exporter.durations import durations
from exporter.ledger import Process
from exporter.model import Exemplar, Labels, Metric, Sample, Value
from exporter.resolve.gpu import GpuDevice

MOST = (1 << 63) - 1
"""Largest integer that OTLP's 64 bits hold."""
_LABELS = tuple({"api_layer": it.layer, "api": it.name} for it in FUNCTIONS)
"""By the function's number in the kernel, less 1."""
ExemplarsOf = Callable[[int], Mapping[int, Exemplar]]


def function(api: int) -> CudaFunction:
    """The function with this number in the kernel."""
    return FUNCTIONS[api - 1]


def samples(
    process: Process[Activity],
    names: Names,
    wall_ns: Callable[[int], int],
    exemplars: ExemplarsOf,
    unseen: bool = False,
) -> Iterator[Sample]:
    """The samples of a process. `exemplars` gives those of a waiting function by bucket, of all its GPUs together.

    `unseen`: not all that it took and gave back since it was first seen is counted. The usage of a program that was
    replaced by another one is unknown too: first calls of the other one may be among its own.
    """
    unseen = unseen or process.replaced
    parts: dict[tuple[tuple[str, str], ...], list[Counts]] = defaultdict(list)
    for device, counts in process.activity.devices.items():
        parts[tuple(process.activity.gpus.get(device, {}).items())].append(counts)
    waited = sum(any(counts.waits for counts in counted) for counted in parts.values())
    for gpu, counted in parts.items():
        whole = counted[0] if len(counted) == 1 else together(counted)
        part = _Part({**process.labels, **dict(gpu)}, whole, process.since, unseen, process.ended)
        yield from part.samples(names, wall_ns, exemplars if waited <= 1 else _no_exemplars)


def held(activity: Activity, gpu: Labels, names: Names) -> int | None:
    """Bytes in use on one of a process's GPUs, as the probes on the driver saw it; None where that is not known."""
    parts = (counts for device, counts in activity.devices.items() if activity.gpus.get(device) == gpu)
    usages = [
        memory.usage
        for part in parts
        for (layer, kind), memory in part.memory.items()
        if names.layer[layer] == "driver" and names.memory[kind] != "pinned_host"
    ]
    known = [usage for usage in usages if usage is not None]
    return sum(known) if len(known) == len(usages) else None


def unattributed(
    process: Process[Activity], reported: Mapping[GpuDevice, int | None], names: Names
) -> Iterator[Sample]:
    """The bytes that NVML reports for a process on each GPU, beyond those that the probes on the driver saw."""
    for place, total in reported.items():
        if total is None or place.labels not in process.activity.gpus.values():
            continue
        seen = held(process.activity, place.labels, names)
        if seen is not None and total >= seen:  # less is memory that NVML has not seen yet, or does not count
            yield metrics.UNATTRIBUTED.sample(total - seen, {**process.labels, **place.labels})


def _no_exemplars(_: int) -> Mapping[int, Exemplar]:
    return {}


@dataclass(frozen=True, slots=True)
class _Part:
    """Activity of a process on one GPU, or on GPUs that are not known."""

    labels: Labels
    activity: Counts
    since: float
    unseen: bool
    ended: bool

    def samples(self, names: Names, wall_ns: Callable[[int], int], exemplars: ExemplarsOf) -> Iterator[Sample]:
        yield from self._calls()
        yield from self._launches(wall_ns)
        yield from self._errors(wall_ns)
        yield from self._memory(names)
        for (direction, host), copied in self.activity.copies.items():
            way = {"direction": names.direction[direction], "host_memory": names.host[host]}
            yield self._sample(metrics.COPIED, copied, way)
        for api, waits in self.activity.waits.items():
            waited = durations(waits.slots, waits.sum_ns, WAIT_FIRST, exemplars=exemplars(api))
            yield self._sample(metrics.WAITED, waited, _LABELS[api - 1])

    def _sample(self, metric: Metric, value: Value, own: Labels) -> Sample:
        if isinstance(value, int) and value > MOST:  # made up by a library of their own
            value = MOST
        return Sample(metric, {**self.labels, **own}, value, self.since)

    def _calls(self) -> Iterator[Sample]:
        launches = {api: it.calls for api, it in self.activity.launches.items() if it.calls}
        calls = self.activity.calls | launches
        for api, count in calls.items():
            yield self._sample(metrics.CALLS, count, _LABELS[api - 1])

    def _launches(self, wall_ns: Callable[[int], int]) -> Iterator[Sample]:
        counts: dict[tuple[str, str], int] = {}
        for api, launches in self.activity.launches.items():
            called = function(api)
            key = called.launches, called.layer
            if launches.calls:
                counts[key] = counts.get(key, 0) + launches.calls
        for (launched, layer), count in counts.items():
            metric = metrics.LAUNCHES if launched == "kernel" else metrics.GRAPH_LAUNCHES
            yield self._sample(metric, count, {"api_layer": layer})
        last = max((launches.last_ns for launches in self.activity.launches.values()), default=0)
        if last:
            yield self._sample(metrics.LAST_LAUNCH, wall_ns(last) / 1e9, {})

    def _errors(self, wall_ns: Callable[[int], int]) -> Iterator[Sample]:
        for (api, code), errors in self.activity.errors.items():
            called = function(api)
            labels = {**_LABELS[api - 1], "code": str(code), "error": error_name(called.layer, code)}
            yield self._sample(metrics.ERRORS, errors.calls, labels)
            yield self._sample(metrics.LAST_ERROR, wall_ns(errors.last_ns) / 1e9, labels)

    def _memory(self, names: Names) -> Iterator[Sample]:
        for (layer, kind), memory in self.activity.memory.items():
            labels = {"api_layer": names.layer[layer], "memory": names.memory[kind]}
            if memory.unmatched_frees:
                yield self._sample(metrics.UNMATCHED_FREES, memory.unmatched_frees, labels)
            if not memory.allocated:
                continue
            yield self._sample(metrics.ALLOCATED, memory.allocated, labels)
            yield self._sample(metrics.FREED, memory.freed, labels)
            yield self._sample(metrics.FREED, memory.implicit, {**labels, "implicit": "true"})
            usage = 0 if self.ended else memory.usage
            if usage is not None and not self.unseen:
                yield self._sample(metrics.USED, usage, labels)
            if memory.untracked:
                yield self._sample(metrics.UNTRACKED, memory.untracked, labels)
