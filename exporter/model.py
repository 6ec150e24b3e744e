"""Samples of declared metrics, and spans: the output of collectors, which views convert to wire formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Protocol

Labels = Mapping[str, str]

PROCESS_LABELS = (
    "pid",
    "comm",
    "container_id",
    "pod",
    "namespace",
    "container",
    "slurm_job_id",
    "gpu",
    "gpu_uuid",
)
_FAULT_WORDS = frozenset(
    ("error", "errors", "last_error", "fault", "xid", "sxid", "loss", "losses", "missing", "failed", "failure")
    + (
        "recovery_action",
        "retired_pages",
        "remapped_rows",
        "row_remap",
        "critical_warning",
        "alarm",
        "exits",
        "replays",
    )
)


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation behind a histogram bucket: its value, wall time in seconds, and the span that has the details."""

    value: float
    time: float
    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """Counts per bucket, not cumulative (one more than bounds), and the sum of the observed values.

    `bounds` are inclusive upper bounds, ascending, in the metric's unit; `exemplars` are by the bucket's index.
    `shown` has the indices, ascending, of the bounds that are bounds of classic (explicit) buckets too, None for all:
    those take a series each, while a native (exponential) histogram with all bounds is one.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    exemplars: Mapping[int, Exemplar] = field(default_factory=dict)
    shown: tuple[int, ...] | None = None


Value = float | int | Distribution


@dataclass(frozen=True)
class Metric:
    """A metric by its OpenTelemetry name and UCUM unit; the Prometheus name derives from these (views/prometheus.py).

    `labels` names every label of the metric's samples besides the process labels, which `process` switches on.
    `identity` names those labels that identify short-lived objects such as queue pairs: beyond the collector's limit
    they are left out like the process labels (exporter/series.py).
    `literal` marks another exporter's metric: `name` is the exact Prometheus name, and the metric is not sent by OTLP.
    `classic` marks a histogram of which rules read buckets, sum or count: where Prometheus stores a native histogram,
    those are no series, and so it is never one.
    """

    name: str
    help: str
    kind: Kind
    unit: str = ""
    labels: tuple[str, ...] = ()
    process: bool = False
    identity: tuple[str, ...] = ()
    literal: bool = False
    classic: bool = False

    @cached_property
    def fault(self) -> bool:
        """Return whether the metric is of errors or faults, by the words of its name: a limit folds its series last."""
        return not self.name.startswith("accel_exporter") and not _FAULT_WORDS.isdisjoint(self.name.split("."))

    def sample(self, value: Value, labels: Labels | None = None) -> Sample:
        return Sample(self, labels or {}, value)


@dataclass(slots=True)
class Sample:
    """One value, never changed: not frozen, because that takes four times as long to make, thousands of times a scrape.

    The views leave out labels with an empty value.

    `start` is the wall time in seconds from which a counter or histogram counts; None stands for the exporter's start.
    """

    metric: Metric
    labels: Labels
    value: Value
    start: float | None = None


Attribute = str | int | float | bool
_NOTHING: Mapping[str, Attribute] = MappingProxyType({})


class Link(NamedTuple):
    """A linked span. `attributes` have what the link is based on, where that is not evident."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Attribute] = _NOTHING


@dataclass(frozen=True, slots=True)
class Served:
    """A request that a server has answered, or that was aborted. Times are monotonic nanoseconds."""

    pid: int
    tid: int
    """The thread that read the request's beginning and sent the answer's end; 0 if that was not one, or is unknown."""
    read_ns: int
    end_ns: int
    others: int = 0
    """Requests of the process that were in flight at `seen_ns`."""
    seen_ns: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """One finished operation. Times are wall time in nanoseconds, ids are lower-case hex (32 and 16 digits)."""

    name: str
    trace_id: str
    span_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute]
    process: Labels
    """Process labels (PROCESS_LABELS) of the observed process."""
    error: str = ""
    """Empty for success, else a short description: sets the span's status."""
    parent_id: str = ""
    """The span id of the parent in the same trace; empty for a root."""
    parent_remote: bool = False
    """True if the parent is a span of another process: this span is then the entry of its process into the trace."""
    links: tuple[Link | tuple[str, str], ...] = ()
    """Linked spans of other traces: trace id and span id of each."""
    links_dropped: int = 0
    """Links that were left out because there were too many."""
    slow: bool = False
    """True if the span is kept, like a failed span, when its trace is not sampled."""
    served: Served | None = None
    """The request that the span is of; whoever passes it on links it (exporter/linking/)."""
    resource: Labels = field(default_factory=dict)
    """OpenTelemetry resource attributes of the observed process, besides its labels; whoever passes it on sets them."""


class Unavailable(Exception):
    """The node lacks what a collector needs. Not a fault: logged once, and the other collectors run.

    `remedy` is a person's next step, empty when there is none.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


class Collector(Protocol):
    """A source of samples. `start` may raise Unavailable; what `collect` raises costs only its own samples."""

    name: str

    def start(self) -> None: ...

    def collect(self) -> Iterable[Sample]: ...

    def close(self) -> None: ...
