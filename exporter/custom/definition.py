"""The content of a site's YAML file, checked by parse.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from exporter.model import Metric

Decoding = Literal["number", "hex", "string", "enum", "pid", "cgroup"]
"""Conversion of a number or text of a map to a label value."""


@dataclass(frozen=True, slots=True)
class Uprobe:
    """A program of the C file, attached to a function of the files with a name that matches `library`.

    `library` is a shell pattern; `returns` makes it a uretprobe.
    """

    symbol: str
    library: str
    program: str
    returns: bool = False
    paired: bool = False
    """Marks an entry probe that only serves a return probe: it is attached only while return probes are allowed."""


@dataclass(frozen=True, slots=True)
class Usdt:
    """A program at a statically defined probe, `provider:name`, of the files with a name that matches `library`."""

    probe: str
    library: str
    program: str


@dataclass(frozen=True, slots=True)
class Tracepoint:
    """A kernel tracepoint, `group:event`. An empty `program` is TRACEPOINT_PROBE(group, event) in the C file."""

    event: str
    program: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A label or span attribute, and the field that gives its value. `field` is empty where the key is one number."""

    name: str
    field: str
    decode: Decoding
    values: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of a map's slots: with `log2` those of bcc's bpf_log2l(), else slot i ends at (i + 1) * width."""

    log2: bool
    slot: str
    buckets: int
    width: float
    sum_map: str
    sum_field: str


@dataclass(frozen=True, slots=True)
class MapReading:
    """A metric and the map that it is read from: the value's `field` (empty: the value is one number) times `scale`."""

    metric: Metric
    map: str
    field: str
    scale: float
    labels: tuple[Label, ...]
    histogram: Buckets | None = None


@dataclass(frozen=True, slots=True)
class SpanDefinition:
    """A span and the fields of a ring or perf buffer's record that it is made from.

    `error` names a field that is not 0 when the operation failed. Spans of `slow_ns` nanoseconds or more are marked as
    slow; 0 marks none.
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
    """One custom probe: `name`.yaml, which stands beside `name`.c."""

    name: str
    description: str
    uprobes: tuple[Uprobe, ...]
    usdt: tuple[Usdt, ...]
    tracepoints: tuple[Tracepoint, ...]
    readings: tuple[MapReading, ...]
    spans: tuple[SpanDefinition, ...]
    lost: str
    """The name of an array map with the count of what the C file could not keep in entry 0; empty: there is none."""

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of the programs that are attached to libraries, each once."""
        names = [uprobe.program for uprobe in self.uprobes] + [usdt.program for usdt in self.usdt]
        return tuple(dict.fromkeys(names))

    @property
    def maps(self) -> tuple[str, ...]:
        """Names of the maps that are read, each once."""
        names = [reading.map for reading in self.readings]
        names += [reading.histogram.sum_map for reading in self.readings if reading.histogram]
        return tuple(dict.fromkeys([*names, *([self.lost] if self.lost else [])]))
