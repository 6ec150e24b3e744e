"""Samples and spans as the OpenTelemetry SDK's data, which its exporters send. Pure functions.

The SDK advises against building ReadableSpan by hand. That is the one way to give a span both its ids and both its
times, and tests/unit/views/test_otlp.py pins what the SDK's encoder makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from exporter import __version__, model, values
from exporter.exponential import bounded
from exporter.model import Distribution, Kind, Labels, Metric, Sample, Span
from exporter.resource import SCHEMA_URL, of_the_node
from exporter.starts import Starts
from exporter.views import otlp_histograms

ATTRIBUTES: Mapping[str, str] = {
    "pid": "process.pid",
    "comm": "process.executable.name",
    "container_id": "container.id",
    "pod": "k8s.pod.name",
    "namespace": "k8s.namespace.name",
    "container": "k8s.container.name",
    "gpu_uuid": "hw.id",
    "slurm_job_id": "slurm.job.id",
    "hw_type": "hw.type",
    "error_type": "error.type",
}
"""The exporter's labels by the semantic conventions' attribute names; the others keep their own."""
OF_METRICS: Mapping[str, Mapping[str, str]] = {
    "hw.status": {"state": "hw.state"},
    "hw.gpu.utilization": {"task": "hw.gpu.task"},
    "hw.gpu.io": {"direction": "network.io.direction"},
    "hw.temperature": {"sensor": "hw.sensor_location"},
    "hw.temperature.limit": {"limit": "hw.limit_type"},
    **dict.fromkeys(
        (
            "gen_ai.server.request.duration",
            "gen_ai.server.time_per_output_token",
            "gen_ai.server.time_to_first_token",
        ),
        {"model": "gen_ai.response.model", "route": "http.route"},
    ),
}
"""The same for labels that other metrics have too, in another meaning: by the metric's name."""
UP_DOWN_COUNTERS = frozenset({"hw.status", "hw.gpu.memory.limit", "hw.gpu.memory.usage"})
"""Gauges that are UpDownCounters in the conventions: sums that are not monotonic."""
UNITS: Mapping[str, str] = {"hw.status": "1"}
"""Units that Prometheus' names do without."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_INT, _MOST_COUNT = 2**63 - 1, 2**64 - 1
_SCOPE = InstrumentationScope("accel-exporter", __version__, SCHEMA_URL)
_UNNAMED = {"service.name": "unknown_service"}
"""The name that the specification gives a process without one."""

Attributes = dict[str, str | int | float | bool]


def attributes(labels: Labels, names: Mapping[str, str] = ATTRIBUTES) -> Attributes:
    """Labels as attributes: under these names, without the empty ones, valid UTF-8, the pid a number."""
    made: Attributes = {}
    for label, value in labels.items():
        if value:
            made[names.get(label, label)] = int(value) if label == "pid" and value.isdecimal() else _text(value)
    return made


def metrics(
    samples: Iterable[Sample],
    resource: Resource,
    starts: Starts,
    now: float,
    most: int = 1000,
    exponential: bool = False,
) -> Iterator[MetricsData]:
    """The samples as cumulative metrics, in requests of at most `most` points: 10,000 at once would take 40 MB.

    `starts` knows the readings before this one, of wall time `now` in seconds. Of two samples of one series the first
    is taken, as on /metrics. With `exponential` the histograms that may be exponential are.
    """
    starts.read(now)
    request: list[OtlpMetric] = []
    room = most
    for metric, group in _groups(samples):
        points: list[Any] = []
        for point in _points(metric, group, starts, int(now * 1e9), exponential):
            points.append(point)
            if len(points) == room:
                yield _request(resource, [*request, *_metrics(metric, points)])
                request, points, room = [], [], most
        if points:
            request += _metrics(metric, points)
            room -= len(points)
    if request:
        yield _request(resource, request)


class Resources:
    """The resource of each span: of an observed process what is known of it and its node, else the exporter, `own`."""

    MOST = 1024

    def __init__(self, own: Resource) -> None:
        self._own = _Hashed(dict(own.attributes))
        self._node = of_the_node(own.attributes)
        self._known: dict[tuple[Any, ...], Resource] = {}

    def of(self, span: Span) -> Resource:
        """The same object for the same process, as long as there are not too many."""
        if not span.process.get("pid"):  # a fault of a GPU is of no process
            return self._own
        return self.of_process(span.process, span.resource)

    def of_process(self, process: Labels, resource: Labels) -> Resource:
        """The resource of a process by its labels and its resource attributes that are not labels."""
        key = (*process.items(), None, *resource.items())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self.MOST:
                self._known.clear()
            given = {name: _text(value) for name, value in resource.items()}
            made = {**_UNNAMED, **given, **self._node, **attributes(process)}
            found = self._known[key] = _Hashed(made)
        return found


class _Hashed(Resource):
    """The SDK's encoder groups spans by the hash of their resource, which the SDK computes from JSON each time."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        super().__init__(attributes, SCHEMA_URL)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    __eq__ = Resource.__eq__


def spans(finished: Iterable[Span], resources: Resources) -> tuple[list[ReadableSpan], int]:
    """The spans in the SDK's form, and how many had to be left out because an id or a time is not one."""
    made: list[ReadableSpan] = []
    malformed = 0
    for span in finished:
        try:
            made.append(_span(span, resources.of(span)))
        except (TypeError, ValueError):
            malformed += 1
    return made, malformed


def _groups(samples: Iterable[Sample]) -> Iterable[tuple[Metric, list[Sample]]]:
    """The samples of each name, less those that reuse it for another kind and those in another exporter's names."""
    by_name: dict[str, tuple[Metric, list[Sample]]] = {}
    for sample in samples:
        if sample.metric.literal:
            continue
        first, group = by_name.setdefault(sample.metric.name, (sample.metric, []))
        if sample.metric.kind is first.kind:
            group.append(sample)
    return by_name.values()


def _points(metric: Metric, group: Iterable[Sample], starts: Starts, now: int, exponential: bool) -> Iterator[Any]:
    seen: set[int] = set()
    names = {**ATTRIBUTES, **OF_METRICS.get(metric.name, {})}
    for sample in group:
        labels = attributes(sample.labels, names)
        # The hash stands for the labels, which would take a kilobyte a series; two of a million are equal once in 10^7.
        series = hash((metric.name, frozenset(labels.items())))
        if series in seen or (value := _valid(metric, sample.value)) is None:
            continue
        seen.add(series)
        start = None if sample.start is None else starts.within(sample.start)
        if start is None and metric.kind is not Kind.GAUGE:
            start = starts.of(series, sum(value.counts) if isinstance(value, Distribution) else value)
        times = int((start or 0) * 1e9), now
        if not isinstance(value, Distribution):
            yield NumberDataPoint(labels, 0 if metric.kind is Kind.GAUGE else times[0], now, value)
        elif exponential and not metric.classic and (made := bounded(value)):
            yield otlp_histograms.exponential(value, made, labels, *times)
        else:
            yield otlp_histograms.explicit(values.classic(value), labels, *times)


def _valid(metric: Metric, value: object) -> Distribution | int | float | None:
    """The value in the form that the metric's kind has on the wire; None where it has none."""
    if metric.kind is Kind.HISTOGRAM:
        return value if isinstance(value, Distribution) and _countable(value) else None
    if not isinstance(value, int | float):
        return None
    return float(value) if isinstance(value, int) and abs(value) > _MOST_INT else value


def _countable(value: Distribution) -> bool:
    """Return whether there is a count for each bucket, and all of them together fit into 64 bits."""
    return len(value.counts) == len(value.bounds) + 1 and min(value.counts) >= 0 and sum(value.counts) <= _MOST_COUNT


def _metrics(metric: Metric, points: list[Any]) -> Iterator[OtlpMetric]:
    """Yield the metric, or two of the name if some of its histograms are exponential and others have other bounds."""
    exponential = [point for point in points if isinstance(point, ExponentialHistogramDataPoint)]
    if exponential:
        yield _metric(metric, ExponentialHistogram(exponential, AggregationTemporality.CUMULATIVE))
        points = [point for point in points if not isinstance(point, ExponentialHistogramDataPoint)]
    if points:
        yield _metric(metric, _data(metric, points))


def _data(metric: Metric, points: list[Any]) -> Sum | Gauge | Histogram:
    if metric.kind is Kind.COUNTER:
        return Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    if metric.name in UP_DOWN_COUNTERS:
        return Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=False)
    if metric.kind is Kind.GAUGE:
        return Gauge(points)
    return Histogram(points, AggregationTemporality.CUMULATIVE)


def _metric(metric: Metric, data: Sum | Gauge | Histogram | ExponentialHistogram) -> OtlpMetric:
    return OtlpMetric(metric.name, metric.help, UNITS.get(metric.name, metric.unit), data)


def _request(resource: Resource, metrics: list[OtlpMetric]) -> MetricsData:
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(_SCOPE, metrics, SCHEMA_URL)], SCHEMA_URL)])


def _span(span: Span, resource: Resource) -> ReadableSpan:
    context = _context(span.trace_id, span.span_id)
    if not 0 < span.start_ns <= span.end_ns < 1 << 63:
        raise ValueError("times have to be in range")
    given = {key: _text(value) if isinstance(value, str) else value for key, value in _sendable(span.attributes)}
    return ReadableSpan(
        _text(span.name),
        context=context,
        parent=_context(span.trace_id, span.parent_id, span.parent_remote) if span.parent_id else None,
        links=_links(span),
        resource=resource,
        attributes=attributes(span.process) | given,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, _text(span.error)) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _links(span: Span) -> BoundedList[Link]:
    linked = [model.Link(*link) for link in span.links]
    links = [Link(_context(it.trace_id, it.span_id), dict(it.attributes)) for it in linked]
    made = BoundedList.from_seq(len(links), links)
    made.dropped = span.links_dropped
    return made


def _sendable(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes without numbers that OTLP has no room for: the SDK would log each with a traceback."""
    return ((key, value) for key, value in given.items() if not isinstance(value, int) or abs(value) <= _MOST_INT)


def _context(trace_id: str, span_id: str, remote: bool = False) -> SpanContext:
    """Raises ValueError when an id is not one."""
    trace, span = int(trace_id, 16), int(span_id, 16)
    if not 0 < trace < 1 << 128 or not 0 < span < 1 << 64:
        raise ValueError("ids have to be in range")
    return SpanContext(trace, span, is_remote=remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _text(value: str) -> str:
    """Protobuf takes valid UTF-8 only; a lone surrogate stands for a byte that was not."""
    return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
