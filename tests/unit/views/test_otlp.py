"""Samples and spans on the OTLP wire, as the SDK's own encoder writes them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.semconv._incubating import attributes as _incubating
from opentelemetry.semconv._incubating.metrics import hw_metrics

from exporter.model import Distribution, Exemplar, Kind, Link, Metric, Sample, Span
from exporter.resource import SCHEMA_URL
from exporter.starts import Starts
from exporter.views import otlp
from tests.metric_names import metrics

CALLS = Metric("gpu.cuda.api.calls", "Calls.", Kind.COUNTER, "{call}", labels=("api",), process=True)
USAGE = Metric("gpu.cuda.memory.usage", "Bytes.", Kind.GAUGE, "By", process=True)
WAIT = Metric("gpu.cuda.sync_wait", "Waits.", Kind.HISTOGRAM, "s", process=True)
PROCESS = {
    "pid": "4711",
    "comm": "python3",
    "container_id": "c0ffee",
    "pod": "train-0",
    "namespace": "ml",
    "container": "main",
    "slurm_job_id": "17",
    "gpu": "0",
    "gpu_uuid": "GPU-1",
}
RESOURCE = Resource({"service.name": "accel-exporter", "service.instance.id": "n1", "host.name": "n1"})
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
DURATIONS = tuple(2.0**exponent for exponent in range(-20, 17))
COUNTS = (23, *range(36), 5)


def encoded(*samples: Sample, most: int = 2000, exponential: bool = False) -> list[Any]:
    """The metrics of every request, through the SDK's encoder."""
    requests = otlp.metrics(samples, RESOURCE, Starts(100.5), 200.25, most, exponential)
    return [encode_metrics(request).resource_metrics[0].scope_metrics[0].metrics for request in requests]


def attributes(message: Any) -> dict[str, object]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in message.attributes}


def test_counter_is_a_cumulative_monotonic_sum_with_its_start() -> None:
    """A counter starts at its sample's start, else with the exporter; its labels have the conventions' names."""
    [[metric]] = encoded(Sample(CALLS, PROCESS | {"api": "cuLaunchKernel"}, 23, start=150.0), CALLS.sample(1))

    first, second = metric.sum.data_points
    assert ("gpu.cuda.api.calls", "Calls.", "{call}") == (metric.name, metric.description, metric.unit)
    assert (True, 2) == (metric.sum.is_monotonic, metric.sum.aggregation_temporality)
    assert (23, 150_000_000_000, 200_250_000_000) == (first.as_int, first.start_time_unix_nano, first.time_unix_nano)
    assert 100_500_000_000 == second.start_time_unix_nano
    assert {
        "process.pid": 4711,
        "process.executable.name": "python3",
        "container.id": "c0ffee",
        "k8s.pod.name": "train-0",
        "k8s.namespace.name": "ml",
        "k8s.container.name": "main",
        "slurm.job.id": "17",
        "gpu": "0",
        "hw.id": "GPU-1",
        "api": "cuLaunchKernel",
    } == attributes(first)
    assert {} == attributes(second)


def test_start_is_never_after_the_time_of_its_point() -> None:
    """After the wall clock was set back, neither the start of a point nor the exporter's start is after the point."""
    starts = Starts(100.0)
    samples = [Sample(CALLS, {"api": "a"}, 5, start=150.0), CALLS.sample(5, {"api": "b"})]

    seen = []
    for at in (200.0, 50.0, 160.0):
        [request] = otlp.metrics(samples, RESOURCE, starts, at)
        [calls] = encode_metrics(request).resource_metrics[0].scope_metrics[0].metrics
        seen.append([point.start_time_unix_nano / 1e9 for point in calls.sum.data_points])

    assert [[150, 100], [50, 50], [50, 50]] == seen


def test_counter_that_fell_has_a_new_start() -> None:
    """The start of a counter or histogram that fell, and of no other, moves to the reading before."""
    starts = Starts(100.0)
    readings = [
        [CALLS.sample(5, {"api": "a"}), CALLS.sample(5, {"api": "b"}), WAIT.sample(Distribution((0.1,), (3, 4), 1.0))],
        [CALLS.sample(2, {"api": "a"}), CALLS.sample(6, {"api": "b"}), WAIT.sample(Distribution((0.1,), (6, 0), 1.0))],
        [CALLS.sample(3, {"api": "a"}), CALLS.sample(6, {"api": "b"}), WAIT.sample(Distribution((0.1,), (7, 0), 1.0))],
    ]

    seen = []
    for at, samples in zip((200.0, 300.0, 400.0), readings, strict=True):
        [request] = otlp.metrics(samples, RESOURCE, starts, at)
        calls, wait = encode_metrics(request).resource_metrics[0].scope_metrics[0].metrics
        points = [*calls.sum.data_points, *wait.histogram.data_points]
        seen.append([point.start_time_unix_nano / 1e9 for point in points])

    assert [[100, 100, 100], [200, 100, 200], [200, 100, 200]] == seen


def test_labels_have_the_conventions_names_where_they_mean_the_same() -> None:
    """`state` of hw.status is hw.state; elsewhere it keeps its name. Every name is one of the conventions' or ours."""
    status = Metric("hw.status", "Status.", Kind.GAUGE, labels=("state",))
    links = Metric("rdma.port.state", "State.", Kind.GAUGE, labels=("state",))
    sent = [attributes(it.sum.data_points[0]) for it in encoded(status.sample(1, {"state": "ok"}))[0]]
    sent += [attributes(it.gauge.data_points[0]) for it in encoded(links.sample(1, {"state": "active"}))[0]]

    assert [{"hw.state": "ok"}, {"state": "active"}] == sent
    named = set(otlp.ATTRIBUTES.values()).union(*(it.values() for it in otlp.OF_METRICS.values()))
    assert {"slurm.job.id"} == named - conventions()


def conventions() -> set[str]:
    """The attribute names of the package of the semantic conventions."""
    modules = pkgutil.iter_modules(_incubating.__path__, f"{_incubating.__name__}.")
    found = [vars(importlib.import_module(it.name)).values() for it in modules]
    return {value for values in found for value in values if isinstance(value, str)}


OURS = {"hw.gpu.info"}
"""Metrics in the conventions' namespace for hardware that these do not have."""
_DECLARED = re.compile(r'^[A-Z0-9_]+: Final = "([a-z0-9_.]+)"\n"""\n(.*?)"""', re.DOTALL | re.MULTILINE)


def instruments() -> dict[str, tuple[str, str]]:
    """Instrument and unit of the hardware metrics, from the package that is generated from the conventions' model."""
    found = {}
    for name, text in _DECLARED.findall(inspect.getsource(hw_metrics)):
        stated = dict(re.findall(r"^(Instrument|Unit): (\S+)$", text, re.MULTILINE))
        found[name] = stated["Instrument"], stated["Unit"]
    return found


def test_hardware_metrics_are_those_of_the_conventions() -> None:
    """Each name in their namespace is one of theirs, with its instrument and unit, as it is sent."""
    wanted, sent = instruments(), {}
    for metric in metrics():
        if metric.name.startswith("hw.") and metric.name not in OURS:
            [[it]] = encoded(metric.sample(1, {}))
            kind = it.WhichOneof("data")
            if kind == "sum":
                kind = "counter" if it.sum.is_monotonic else "updowncounter"
            sent[it.name] = kind, it.unit
    assert len(sent) > 10
    assert {name: wanted[name] for name in sent} == sent


OWN_ATTRIBUTES = {"gpu", "lifetime"}
"""Attributes of hardware metrics besides those of the conventions."""
OF_MODEL = {
    "hw.errors": {"hw.type", "error.type"},
    "hw.gpu.io": {"network.io.direction"},
    "hw.gpu.utilization": {"hw.gpu.task"},
    "hw.status": {"hw.type", "hw.state"},
    "hw.temperature": {"hw.sensor_location"},
    "hw.temperature.limit": {"hw.sensor_location", "hw.limit_type"},
    **dict.fromkeys(("hw.energy", "hw.power"), {"hw.type"}),
}
"""Attributes of hardware metrics besides hw.id, from model/hardware/*-metrics.yaml of the conventions, because the
package has no attributes of metrics.
"""
REQUIRED = {"hw.type", "hw.state", "network.io.direction"}
"""Attributes that the model requires of each metric of OF_MODEL that may have them."""


def test_hardware_metrics_have_the_attributes_of_the_model() -> None:
    """Each attribute of a hardware metric is one of the model's for it, and those that the model requires are sent."""
    strange, lacking = {}, {}
    for metric in metrics():
        if metric.name.startswith("hw.") and metric.name not in OURS:
            [[it]] = encoded(metric.sample(1, dict.fromkeys(metric.labels, "x")))
            sent = {*attributes(getattr(it, it.WhichOneof("data")).data_points[0])} - OWN_ATTRIBUTES
            known = OF_MODEL.get(it.name, set())
            strange[it.name] = sent - known - {"hw.id", "hw.type"}  # of a GPU, hw.type is that of each metric
            lacking[it.name] = (known & REQUIRED | {"hw.id"}) - sent
    assert OF_MODEL.keys() <= strange.keys()
    assert ({}, {}) == tuple({name: names for name, names in it.items() if names} for it in (strange, lacking))


def test_metrics_that_are_renamed_exist() -> None:
    """The labels that are renamed for one metric are labels of that metric."""
    declared = {metric.name: metric.labels for metric in metrics()}
    assert {name: set(names) <= set(declared[name]) for name, names in otlp.OF_METRICS.items()} == dict.fromkeys(
        otlp.OF_METRICS, True
    )


def test_gauge_has_no_start_and_keeps_its_type() -> None:
    """A gauge's point is integer or double as its value is; what no int64 holds becomes a double."""
    [[metric]] = encoded(*(USAGE.sample(value, {"pid": str(n)}) for n, value in enumerate((5, 0.5, 2**64 - 1))))

    points = metric.gauge.data_points
    assert [("as_int", 5), ("as_double", 0.5), ("as_double", 2.0**64)] == [
        (point.WhichOneof("value"), getattr(point, point.WhichOneof("value"))) for point in points
    ]
    assert [0, 0, 0] == [point.start_time_unix_nano for point in points]


def test_histogram_keeps_buckets_and_exemplars() -> None:
    """Counts per bucket, bounds and sum arrive as they are, the exemplar with its ids, value and time."""
    exemplar = Exemplar(0.25, 199.5, TRACE, SPAN)
    [[metric]] = encoded(WAIT.sample(Distribution((0.1, 1.0), (1, 2, 4), 9.5, {1: exemplar}), {"pid": "1"}))

    [point] = metric.histogram.data_points
    assert 2 == metric.histogram.aggregation_temporality
    assert ([1, 2, 4], [0.1, 1.0], 9.5, 7) == (
        list(point.bucket_counts),
        list(point.explicit_bounds),
        point.sum,
        point.count,
    )
    assert (False, False) == (point.HasField("min"), point.HasField("max"))
    [sent] = point.exemplars
    assert (0.25, 199_500_000_000, TRACE, SPAN) == (
        sent.as_double,
        sent.time_unix_nano,
        sent.trace_id.hex(),
        sent.span_id.hex(),
    )


def test_explicit_buckets_are_the_shown_ones() -> None:
    """Buckets are those of /metrics, by default also of a histogram that may be exponential."""
    waits = Distribution(DURATIONS, COUNTS, 9.5, {4: Exemplar(0.25, 199.5, TRACE, SPAN)}, shown=(10, 20))
    [[metric]] = encoded(WAIT.sample(waits))
    [point] = metric.histogram.data_points
    assert [2.0**-10, 1.0] == list(point.explicit_bounds)
    assert [sum(COUNTS[:11]), sum(COUNTS[11:21]), sum(COUNTS[21:])] == list(point.bucket_counts)
    assert [0.25] == [it.as_double for it in point.exemplars]


def test_exponential_histogram() -> None:
    """Scale 0 has all counts between its bounds; up to the first bound is zero. Bucket i ends at 2^(i+1)."""
    waits = Distribution(DURATIONS, (*COUNTS[:-1], 0), 9.5, {4: Exemplar(0.25, 199.5, TRACE, SPAN)}, shown=(10, 20))
    [[metric]] = encoded(WAIT.sample(waits, {"pid": "1"}), exponential=True)
    [point] = metric.exponential_histogram.data_points
    assert 2 == metric.exponential_histogram.aggregation_temporality
    assert (0, 23, sum(COUNTS[:-1]), 9.5) == (point.scale, point.zero_count, point.count, point.sum)
    assert (-20, list(COUNTS[1:-1])) == (point.positive.offset, list(point.positive.bucket_counts))
    assert {-20: 2.0**-19, 15: 2.0**16} == {it: 2.0 ** (it + 1) for it in (-20, point.positive.offset + 35)}
    assert point.count == point.zero_count + sum(point.positive.bucket_counts)
    assert not point.negative.bucket_counts
    assert (100_500_000_000, 200_250_000_000) == (point.start_time_unix_nano, point.time_unix_nano)
    assert (False, False) == (point.HasField("min"), point.HasField("max"))
    assert [0.25] == [it.as_double for it in point.exemplars]


@pytest.mark.parametrize("step", [1, 2, 4, 8, 16])
def test_what_is_above_the_last_bound_has_a_bucket_of_the_coarsest_scale(step: int) -> None:
    """Days are in the bucket from 18 hours to 136 years: no narrower one is known to hold them."""
    bounds = tuple(2.0**exponent for exponent in range(-16, 17, step))
    counts = tuple(range(1, len(bounds) + 2))
    [[metric]] = encoded(WAIT.sample(Distribution(bounds, counts, 9.5)), exponential=True)
    [point] = metric.exponential_histogram.data_points
    up_to_a_second = sum(counts[1 : bounds.index(1.0) + 1])
    assert (-4, -1, 1) == (point.scale, point.positive.offset, point.zero_count)
    assert [up_to_a_second, sum(counts[1:-1]) - up_to_a_second, counts[-1]] == list(point.positive.bucket_counts)


def test_other_bounds_stay_explicit() -> None:
    """A histogram with bounds of a convention, or open above, stays explicit beside exponential ones of its name."""
    open_above = WAIT.sample(Distribution((0.5, 1.0), (1, 2, 3), 9.5), {"pid": "1"})
    fine = WAIT.sample(Distribution(DURATIONS, COUNTS, 9.5), {"pid": "2"})
    conventional = WAIT.sample(Distribution((0.1, 1.0), (1, 2, 3), 9.5), {"pid": "3"})
    [[exponential, explicit]] = encoded(open_above, fine, conventional, exponential=True)
    [[classic]] = encoded(replace(WAIT, classic=True).sample(fine.value), exponential=True)
    assert [*DURATIONS] == list(classic.histogram.data_points[0].explicit_bounds)
    assert 1 == len(exponential.exponential_histogram.data_points)
    assert [[0.5, 1.0], [0.1, 1.0]] == [list(it.explicit_bounds) for it in explicit.histogram.data_points]


def test_requests_are_bounded() -> None:
    """Ten points in requests of at most four are three requests that hold each point once, in order."""
    samples = [USAGE.sample(n, {"pid": str(n)}) for n in range(6)] + [
        CALLS.sample(n, {"pid": str(n)}) for n in range(4)
    ]

    requests = encoded(*samples, most=4)

    points = [[p.as_int for m in metrics for p in (m.gauge or m.sum).data_points] for metrics in requests]
    points = [
        [p.as_int for m in metrics for p in (m.gauge if m.HasField("gauge") else m.sum).data_points]
        for metrics in requests
    ]
    assert [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3]] == points


def test_series_given_twice_is_sent_once() -> None:
    """The first of two samples of one series is sent, as on /metrics; so is the first kind of a name."""
    other = Metric(USAGE.name, "Other.", Kind.COUNTER, "By")

    [[metric]] = encoded(USAGE.sample(1, {"pid": "1", "pod": ""}), USAGE.sample(2, {"pid": "1"}), other.sample(3))

    assert [1] == [point.as_int for point in metric.gauge.data_points]


def test_other_exporters_names_are_left_out() -> None:
    """Metrics of /metrics in another exporter's names, for compatibility, have no OpenTelemetry name to send."""
    foreign = Metric("DCGM_FI_DEV_GPU_TEMP", "Temperature.", Kind.GAUGE, literal=True)

    assert [] == encoded(foreign.sample(40))
    assert [[USAGE.name]] == [[it.name for it in sent] for sent in encoded(foreign.sample(40), USAGE.sample(1))]


def test_values_of_no_valid_form_are_left_out() -> None:
    """A histogram without its last bucket and a text as value cost themselves only."""
    [[metric]] = encoded(USAGE.sample("7", {"pid": "1"}), USAGE.sample(7), most=9)  # type: ignore[arg-type]
    assert [7] == [point.as_int for point in metric.gauge.data_points]

    assert [] == encoded(WAIT.sample(Distribution((0.1,), (1,), 0.1)))


@pytest.mark.parametrize("counts", [(1 << 63, 1 << 63), (0, 10**300), (-1, 2)])
def test_counts_beyond_64_bits_are_left_out(counts: tuple[int, int]) -> None:
    """A histogram that does not fit into its fields costs itself only."""
    fits = WAIT.sample(Distribution((0.1,), ((1 << 64) - 2, 1), 0.1), {"pid": "1"})
    [[metric]] = encoded(WAIT.sample(Distribution((0.1,), counts, 0.1), {"pid": "2"}), fits)
    assert [(1 << 64) - 1] == [point.count for point in metric.histogram.data_points]


def test_hostile_text_becomes_valid_utf8() -> None:
    """Bytes that were no UTF-8 reach the wire as U+FFFD, in metrics and spans."""
    [[metric]] = encoded(USAGE.sample(1, {"comm": "a\udcffb\n"}))
    assert {"process.executable.name": "a\ufffdb\n"} == attributes(metric.gauge.data_points[0])

    made, malformed = otlp.spans([span(name="n\udc80", error="e\udc81", attributes={"k": "v\udc82"})], resources())
    [sent] = encode_spans(made).resource_spans[0].scope_spans[0].spans
    assert ("n\ufffd", "e\ufffd", 0) == (sent.name, sent.status.message, malformed)
    assert "v\ufffd" == attributes(sent)["k"]


def resources() -> otlp.Resources:
    return otlp.Resources(RESOURCE)


def span(**changes: Any) -> Span:
    words: dict[str, Any] = {
        "name": "cuMemAlloc",
        "trace_id": TRACE,
        "span_id": SPAN,
        "start_ns": 1_700_000_000_123_456_789,
        "end_ns": 1_700_000_000_123_956_789,
        "attributes": {"gpu.cuda.bytes": 1 << 40, "gpu.cuda.ratio": 0.5, "gpu.cuda.async": True},
        "process": PROCESS,
    }
    return Span(**(words | changes))


def test_span_keeps_ids_times_and_attributes() -> None:
    """Ids, nanoseconds, attributes with their types and the process arrive unchanged; no error is status unset."""
    made, malformed = otlp.spans([span(resource={"service.name": "train"})], resources())
    [group] = encode_spans(made).resource_spans
    [sent] = group.scope_spans[0].spans

    assert 0 == malformed
    expected = {"service.name": "train", "host.name": "n1"} | otlp.attributes(PROCESS)
    assert expected == attributes(group.resource)
    assert [SCHEMA_URL] * 2 == [group.schema_url, group.scope_spans[0].schema_url]
    assert (TRACE, SPAN, b"") == (sent.trace_id.hex(), sent.span_id.hex(), sent.parent_span_id)
    assert (1_700_000_000_123_456_789, 500_000) == (
        sent.start_time_unix_nano,
        sent.end_time_unix_nano - sent.start_time_unix_nano,
    )
    assert otlp.attributes(PROCESS) | {
        "gpu.cuda.bytes": 1 << 40,
        "gpu.cuda.ratio": 0.5,
        "gpu.cuda.async": True,
    } == attributes(sent)
    assert 0 == sent.status.code


def test_error_sets_the_status() -> None:
    """A span's error is status ERROR with its text."""
    [made], _ = otlp.spans([span(error="CUDA_ERROR_OUT_OF_MEMORY")], resources())
    [sent] = encode_spans([made]).resource_spans[0].scope_spans[0].spans

    assert (2, "CUDA_ERROR_OUT_OF_MEMORY") == (sent.status.code, sent.status.message)


def test_numbers_beyond_64_bits_are_left_out() -> None:
    """A job may name any size: the encoder would refuse the attribute, and log a traceback for each span."""
    sizes = {"least": -(2**63) + 1, "most": 2**63 - 1, "more": 2**63, "less": -(2**64)}
    [made], malformed = otlp.spans([span(attributes={**sizes, "ratio": 1e300, "on": True})], resources())
    assert 0 == malformed and made.attributes
    assert {"least", "most", "ratio", "on"} == made.attributes.keys() & {*sizes, "ratio", "on"}


def test_malformed_spans_are_counted_and_left_out() -> None:
    """An id that is no id, or an end before the start, costs that span only."""
    broken = [
        span(trace_id="xyz"),
        span(span_id=""),
        span(span_id="0" * 16),
        span(end_ns=1),
        span(trace_id="f" * 33),
        span(parent_id="x"),
        span(links=((TRACE, "0"),)),
    ]

    made, malformed = otlp.spans([*broken, span()], resources())

    assert (1, 7) == (len(made), malformed)


def test_parent_and_links() -> None:
    """The parent is of the span's own trace, a link names the trace of its own."""
    made, _ = otlp.spans([span(parent_id="a" * 16, links=(("b" * 32, "c" * 16),))], resources())
    [sent] = encode_spans(made).resource_spans[0].scope_spans[0].spans

    assert "a" * 16 == sent.parent_span_id.hex()
    assert [("b" * 32, "c" * 16)] == [(link.trace_id.hex(), link.span_id.hex()) for link in sent.links]


def test_attributes_of_a_link() -> None:
    """A link has the attributes of what it is based on, and a span the number of links that were left out."""
    link = Link("b" * 32, "c" * 16, {"link.kind": "concurrent", "link.same_thread": True})
    made, _ = otlp.spans([span(links=(link, (TRACE, SPAN)), links_dropped=23)], resources())
    [sent] = encode_spans(made).resource_spans[0].scope_spans[0].spans

    assert 23 == sent.dropped_links_count
    assert [("link.kind", "concurrent"), ("link.same_thread", "")] == [
        (it.key, it.value.string_value) for it in sent.links[0].attributes
    ]
    assert sent.links[0].attributes[1].value.bool_value
    assert not sent.links[1].attributes


def test_one_resource_a_process() -> None:
    """Spans are grouped by process; what it claims to be does not replace what is known of it and of the node."""
    named = {"service.name": "a", "team": "nlp", "host.name": "elsewhere", "process.pid": "1", "bad": "\udc80"}
    own = span(process={}, resource={})
    made, _ = otlp.spans([span(resource=named), own, span(resource=named), span(process={"pid": "7"})], resources())
    first, second, third = encode_spans(made).resource_spans

    assert [2, 1, 1] == [len(group.scope_spans[0].spans) for group in (first, second, third)]
    known = {"service.name": "a", "team": "nlp", "bad": "\ufffd", "host.name": "n1"} | otlp.attributes(PROCESS)
    assert known == attributes(first.resource)
    assert dict(RESOURCE.attributes) == attributes(second.resource)
    assert {"service.name": "unknown_service", "host.name": "n1", "process.pid": 7} == attributes(third.resource)


@pytest.mark.parametrize("remote", [False, True])
def test_parent_in_another_process_is_marked(remote: bool) -> None:
    """The flags have whether the parent is another process's span, by which backends find a process's entry."""
    made, _ = otlp.spans([span(parent_id="a" * 16, parent_remote=remote)], resources())
    [sent] = encode_spans(made).resource_spans[0].scope_spans[0].spans

    assert (True, remote) == (bool(sent.flags & 0x100), bool(sent.flags & 0x200))


def test_fault_of_a_gpu_is_the_exporters() -> None:
    """A span of no process has the exporter's resource, whole; the GPU is an attribute of the span."""
    fault = span(name="gpu.xid", attributes={}, process={"gpu": "0", "gpu_uuid": "GPU-1"})
    [made], _ = otlp.spans([fault], resources())
    [group] = encode_spans([made]).resource_spans

    assert dict(RESOURCE.attributes) == attributes(group.resource)
    assert {"gpu": "0", "hw.id": "GPU-1"} == attributes(group.scope_spans[0].spans[0])


def test_exporters_pod_is_nobody_elses() -> None:
    """Of the exporter's pod and node in OTEL_RESOURCE_ATTRIBUTES, processes get what is of the node."""
    own = Resource(
        {
            "service.name": "accel-exporter",
            "host.name": "n1",
            "k8s.node.name": "n1",
            "k8s.pod.name": "accel-exporter-x7k2p",
            "k8s.pod.uid": "uid-of-exporter",
            "k8s.namespace.name": "monitoring",
            "k8s.container.name": "accel-exporter",
        }
    )
    node = {"host.name": "n1", "k8s.node.name": "n1", "service.name": "unknown_service"}
    kept = otlp.Resources(own)

    assert node | otlp.attributes(PROCESS) == kept.of(span()).attributes
    assert node | {"process.pid": 7} == kept.of(span(process={"pid": "7"})).attributes


def test_resources_are_bounded() -> None:
    """However many processes there were, no more resources than the limit are kept."""
    kept = resources()
    for pid in range(otlp.Resources.MOST + 10):
        kept.of(span(process={"pid": str(pid)}))

    assert len(kept._known) <= otlp.Resources.MOST
