"""From what NCCL did in a process to samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from exporter.durations import durations
from exporter.ledger import Process
from exporter.model import Metric, Sample, Value
from exporter.nccl import metrics
from exporter.nccl.activity import Activity
from exporter.nccl.codes import result
from exporter.nccl.functions import FUNCTIONS, NcclFunction

MOST = (1 << 63) - 1
_WITHOUT_BYTES = ("Signal", "WaitSignal")


class Types(Protocol):
    """The part of exporter.bpf.btf.Btf that is used here."""

    def enum(self, name: str) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of bpf/nccl/nccl.h: names by number. Those up to GroupEnd are collectives."""

    names: Mapping[int, str]
    group_end: int
    none: int

    @classmethod
    def of(cls, types: Types) -> Kinds:
        numbers = types.enum("kind")
        names = {number: constant.removeprefix("kind_") for constant, number in numbers.items()}
        return cls(names, numbers["kind_GroupEnd"], numbers["kind_none"])

    def is_collective(self, kind: int) -> bool:
        return kind < self.group_end


def function(api: int) -> NcclFunction:
    """The function with this number in the kernel."""
    return FUNCTIONS[api - 1]


def comm_hash(number: int) -> str:
    """Return the hash of a communicator as NCCL prints hashes."""
    return f"{number:016x}"


def samples(process: Process[Activity], kinds: Kinds, wall_ns: Callable[[int], int], returns: bool) -> Iterator[Sample]:
    """Yield what one process did. `returns`: its calls are seen to return, so those in flight are known."""
    return _Samples(process, kinds, wall_ns).all(returns)


@dataclass(frozen=True, slots=True)
class _Samples:
    process: Process[Activity]
    kinds: Kinds
    wall_ns: Callable[[int], int]

    def all(self, returns: bool) -> Iterator[Sample]:
        yield from self._calls()
        yield from self._durations()
        yield from self._errors()
        activity = self.process.activity
        for it in activity.communicators:
            labels = {"comm_hash": comm_hash(it.hash), "rank": str(it.rank), "nranks": str(it.nranks)}
            device = str(it.device) if it.device >= 0 else ""
            yield self._sample(metrics.COMMUNICATOR, 1, **labels, cuda_device=device)
        if returns and activity.in_flight is not None:
            yield self._sample(metrics.IN_FLIGHT, activity.in_flight)
        if last := max((it.last_ns for it in activity.calls.values()), default=0):
            yield self._sample(metrics.LAST_CALL, self.wall_ns(last) / 1e9)

    def _sample(self, metric: Metric, value: Value, **own: str) -> Sample:
        if isinstance(value, int):  # what a library of their own makes up has to fit the 64 bits of OTLP
            value = min(value, MOST)
        return Sample(metric, {**self.process.labels, **own}, value, self.process.since)

    def _calls(self) -> Iterator[Sample]:
        for kind, it in self.process.activity.calls.items():
            if not it.calls:
                continue
            if not self.kinds.is_collective(kind):
                yield self._sample(metrics.GROUPS, it.calls)
                continue
            collective = self.kinds.names[kind]
            yield self._sample(metrics.CALLS, it.calls, collective=collective)
            if it.calls > it.unsized and collective not in _WITHOUT_BYTES:
                yield self._sample(metrics.BYTES, it.bytes, collective=collective)
                if not it.anonymous:
                    yield self._sample(metrics.BUS_BYTES, it.bus_bytes, collective=collective)
            if it.unsized:
                yield self._sample(metrics.UNSIZED, it.unsized, collective=collective)
            if it.anonymous:
                yield self._sample(metrics.ANONYMOUS, it.anonymous, collective=collective)

    def _durations(self) -> Iterator[Sample]:
        for kind, it in self.process.activity.durations.items():
            took = durations(it.slots, it.sum_ns)
            name = self.kinds.names[kind]
            if kind <= self.kinds.group_end:
                yield self._sample(metrics.ENQUEUE, took, collective=name)
            else:
                yield self._sample(metrics.OPERATION, took, operation=name)

    def _errors(self) -> Iterator[Sample]:
        for (api, code), it in self.process.activity.errors.items():
            labels = {"api": function(api).name, "code": str(code), "error": result(code)}
            yield self._sample(metrics.ERRORS, it.calls, **labels)
            yield self._sample(metrics.LAST_ERROR, self.wall_ns(it.last_ns) / 1e9, **labels)
