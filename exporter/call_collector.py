"""Collectors of probes on bpf/call.bpf.h: functions are the object's `enum api`, counts are rows by process."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from exporter.bpf.ends import forget
from exporter.bpf.hook import Hook
from exporter.bpf.percpu import Combiner
from exporter.durations import durations
from exporter.ledger import Process
from exporter.model import Distribution, Labels, Metric, Sample, Value
from exporter.probe_collector import ProbeCollector, Table

MOST = (1 << 63) - 1
"""The greatest integer of OTLP."""


K = TypeVar("K")
V = TypeVar("V")


class CountedMap(str, Generic[K, V]):
    """The name of a map with a `tgid` in its keys (K) and 64-bit fields in its values (V), or integers as values."""


class Function(Protocol):
    """struct api_key, or another key of a process and a function, a number of `enum api`."""

    tgid: int
    api: int


class ErrorKey(Protocol):
    """struct error_key."""

    api: int
    code: int
    device: int


class Error(Protocol):
    """struct error: calls that failed with one code."""

    calls: int
    last_ns: int


class Duration(Protocol):
    """struct duration: a sum in nanoseconds, and a count for each power of two of them."""

    sum_ns: int

    @property
    def slots(self) -> Sequence[int]: ...


ERRORS = CountedMap[ErrorKey, Error]("errors")


@dataclass(slots=True)
class Rows:
    """The counts of one process: rows of maps, by the map's name and the key's bytes, each with key and value."""

    maps: dict[str, dict[bytes, tuple[Any, Any]]] = field(default_factory=dict)
    gpus: Mapping[int, Labels] = field(default_factory=dict)
    """Labels of the GPUs of the devices that keys have, in a probe that follows devices."""

    def of(self, name: CountedMap[K, V]) -> Iterable[tuple[K, V]]:
        """Return the keys and values of one map."""
        return self.maps.get(name, {}).values()

    def ended(self) -> None:
        """Do nothing: counts outlive their process."""

    def absorb(self, late: Rows) -> None:
        """Add counts from after these rows were read."""
        for name, rows in late.maps.items():
            known = self.maps.setdefault(name, {})
            for raw, (key, value) in rows.items():
                known[raw] = key, _sum(known[raw][1], value) if raw in known else value


class CallCollector(ProbeCollector[Rows]):
    """A collector of an object with bpf/call.bpf.h: on_enter and on_return run at every function of its `enum api`.

    A subclass gives `counted` and `_samples_of`, which yields the samples of one process.
    """

    counted: ClassVar[tuple[CountedMap[Any, Any], ...]] = (ERRORS,)
    coverable: ClassVar[re.Pattern[str] | None] = None
    """The names of functions that should be in `enum api`: those which are not are reported."""

    def _samples(self) -> Iterator[Sample]:
        for process in self.ledger.processes():
            yield from self._samples_of(process)

    def _function(self, api: int) -> str:
        """Return the value of the label `api` of a function."""
        return self._names[api]

    def _errors_of(
        self, process: Process[Rows], calls: Metric, last: Metric, name: Callable[[int], str]
    ) -> Iterator[Sample]:
        """Yield the failed calls of a process, and when each code was last returned; `name` is that of a code."""
        for key, value in process.activity.of(ERRORS):
            labels = {"api": self._function(key.api), "code": str(key.code), "error": name(key.code)}
            yield sample(process, calls, value.calls, labels)
            yield sample(process, last, self.node.clock.wall_ns(value.last_ns) / 1e9, labels)

    def _prepare(self) -> None:
        self._functions = self.object.types.enum("api")
        self._names = {number: name for name, number in self._functions.items()}

    def _table(self) -> Table:
        return {
            name: [Hook("on_enter", api, numbered=True), Hook("on_return", api, returns=True, numbered=True)]
            for name, api in self._functions.items()
        }

    def _options(self) -> Mapping[str, Any]:
        return {"coverable": self.coverable, "returning": self.object.maps["returning"]}

    def _read(self) -> Mapping[int, Rows]:
        return _by_process({name: self.object.maps[name].items() for name in self.counted})

    def costs(self, pids: Collection[int]) -> Mapping[int, float]:
        costs = dict.fromkeys(pids, 0.0)
        for key, calls in self.object.maps["process_hits"].items():
            if key.tgid in costs and key.api in self._names:
                costs[key.tgid] += calls * (self.probes.price(self._names[key.api]) or 0.0)
        return costs

    def _take(self, pids: Collection[int]) -> Mapping[int, Rows]:
        taken = _by_process({name: self.object.maps[name].take(pids) for name in self.counted})
        self.object.maps["process_hits"].take(pids)
        forget(self.object, pids)
        return taken

    def _hits(self) -> Mapping[str, int]:
        counted = self.object.maps["hits"].sums()
        return {self._names[api]: calls for api, calls in counted.items() if calls and api in self._names}


def sample(process: Process[Rows], metric: Metric, value: Value, labels: Labels) -> Sample:
    """Return a sample of a process, with its labels and these. A number above that of OTLP becomes the greatest."""
    return Sample(
        metric, {**process.labels, **labels}, min(value, MOST) if isinstance(value, int) else value, process.since
    )


def distribution(duration: Duration) -> Distribution:
    """Return a `struct duration` of bpf/call.bpf.h in seconds."""
    return durations(duration.slots, duration.sum_ns)


def _by_process(maps: Mapping[str, Iterable[tuple[Any, Any]]]) -> dict[int, Rows]:
    seen: dict[int, Rows] = {}
    for name, rows in maps.items():
        for key, value in rows:
            seen.setdefault(key.tgid, Rows()).maps.setdefault(name, {})[bytes(key)] = key, value
    return seen


def _sum(a: Any, b: Any) -> Any:
    """Return two values of one type as one: the sum of each field, of `last_…` fields the greater one."""
    return a + b if isinstance(a, int) else Combiner(type(a), 2)(memoryview(bytes(a) + bytes(b)))
