"""What a site's YAML file says, once it is known to be sound (parse.py makes it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from exporter.model import Metric

As = Literal["number", "hex", "string", "enum", "pid", "cgroup"]


@dataclass(frozen=True, slots=True)
class Hooked:
    """A program of the C file at a function of the files whose name matches `library` (a shell pattern)."""

    symbol: str
    library: str
    program: str
    returns: bool = False
    paired: bool = False
    """An entry probe that only serves a return probe: attached while return probes may be."""


@dataclass(frozen=True, slots=True)
class Usdt:
    """A program at a statically defined probe, `provider:name`, of the files whose name matches `library`."""

    probe: str
    library: str
    program: str


@dataclass(frozen=True, slots=True)
class Tracepoint:
    """`group:event` of the kernel; without a program it is TRACEPOINT_PROBE(group, event) in the C file."""

    event: str
    program: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """What becomes of a field of a map's key. `field` is empty where the key is one number."""

    name: str
    field: str
    decode: As
    values: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How the slots of a map are buckets: `log2` is bcc's bpf_log2l(), else slot i ends at (i + 1) * width."""

    log2: bool
    slot: str
    buckets: int
    width: float
    sum_map: str
    sum_field: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric and how it is read from a map: the value field (empty: the value is one number) times `scale`."""

    metric: Metric
    map: str
    field: str
    scale: float
    labels: tuple[Label, ...]
    histogram: Histogram | None = None


@dataclass(frozen=True, slots=True)
class SpanOf:
    """How a record of a ring or perf buffer is a span. `error` names a field that is not 0 when the operation failed;
    `slow_ns` is the length from which a span is worth keeping (0: none is).
    """

    buffer: str
    name: str
    start: str
    end: str
    pid: str
    error: str
    slow_ns: int
    attributes: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """One probe: the YAML file of this name beside a C file of this name."""

    name: str
    description: str
    hooks: tuple[Hooked, ...]
    usdt: tuple[Usdt, ...]
    tracepoints: tuple[Tracepoint, ...]
    readings: tuple[Reading, ...]
    spans: tuple[SpanOf, ...]
    lost: str
    """An array map whose entry 0 counts what the C file could not keep; empty if there is none."""

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that are attached to libraries, each once."""
        return tuple(dict.fromkeys([*(it.program for it in self.hooks), *(it.program for it in self.usdt)]))

    @property
    def maps(self) -> tuple[str, ...]:
        """The maps that are read, each once."""
        read = [it.map for it in self.readings]
        read += [it.histogram.sum_map for it in self.readings if it.histogram]
        return tuple(dict.fromkeys([*read, *([self.lost] if self.lost else [])]))
