"""Pushing to OTLP collectors that take, refuse, hang and disappear; over HTTP and gRPC."""

from __future__ import annotations

import logging
import socket
import sys
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from exporter.model import Distribution, Kind, Metric, Sample, Span
from exporter.options import SettingsError
from exporter.otlp import OtlpSettings, Plan, plan
from exporter.otlp_answer import LONGEST_PAUSE, Reasons, pause
from exporter.push import PARTIAL, Push, _Link
from exporter.sampling import Budget
from exporter.views import prometheus
from tests.standins import otlp_sink
from tests.support import PATIENCE, free_port, until

CALLS = Metric("test.calls", "Calls.", Kind.COUNTER, "{call}", labels=("n",))
WAIT = Metric("test.wait", "Waits.", Kind.HISTOGRAM, "s")


@pytest.fixture(params=["http/protobuf", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sink(protocol: str) -> Iterator[Any]:
    made = otlp_sink.GrpcSink() if protocol == "grpc" else otlp_sink.HttpSink()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports give up after a second."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


@pytest.fixture
def patient(short_timeout: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports have the usual time: a busy machine gives none up."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10")


@pytest.fixture
def less_patient(short_timeout: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for tests of refusals after which the SDK tries again until the time is over."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "4")


def span(number: int) -> Span:
    now = time.time_ns()
    return Span("cuMemAlloc", f"{number + 1:032x}", f"{number + 1:016x}", now - 500, now, {"n": number}, {"pid": "7"})


def samples() -> list[Sample]:
    return [CALLS.sample(23, {"n": "1"}), WAIT.sample(Distribution((0.5,), (1, 2), 3.5))]


def push(endpoint: str, protocol: str, **environ: str) -> Push:
    words = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "100"} | environ
    made = Push(plan(OtlpSettings(endpoint, protocol, ("x-tenant=me",)), words), samples, started=1000.0)
    made.start()
    return made


def counts(subject: Push) -> dict[str, object]:
    """Self-metrics by name and label value, the zeros left out."""
    return {
        " ".join([prometheus.name(it.metric).removeprefix("accel_exporter_"), *it.labels.values()]): it.value
        for it in subject.samples()
        if it.value
    }


def reaches(subject: Push, name: str, atleast: int) -> None:
    until(lambda: int(str(counts(subject).get(name, 0))) >= atleast, lambda: f"{name}: {atleast}; {counts(subject)}")


@pytest.mark.usefixtures("patient")
def test_everything_arrives(sink: Any, protocol: str) -> None:
    """1,000 spans arrive once each with their attributes, metrics with their values, headers with every request."""
    subject = push(sink.endpoint, protocol, OTEL_BSP_MAX_EXPORT_BATCH_SIZE="300")
    for number in range(1000):
        subject.span(span(number))
    sink.wait_for(lambda sink: len(list(sink.spans())) >= 1000 and sink.metrics)
    subject.stop()

    assert list(range(1000)) == sorted(item.attributes[-1].value.int_value for item in sink.spans())
    assert 7 == next(sink.spans()).attributes[0].value.int_value
    points = {metric.name: point for metric, point in sink.points()}
    assert (23, 1000 * 10**9) == (points["test.calls"].as_int, points["test.calls"].start_time_unix_nano)
    assert ([1, 2], 3.5) == (list(points["test.wait"].bucket_counts), points["test.wait"].sum)
    assert {"me"} == {headers["x-tenant"] for headers in sink.headers}
    got = counts(subject)
    assert (1000, None) == (got["spans_exported_total"], got.get("spans_dropped_total queue_full"))
    resource = {item.key: item.value.string_value for item in sink.metrics[0].resource_metrics[0].resource.attributes}
    assert "accel-exporter" == resource["service.name"]
    assert {"service.version", "service.instance.id", "host.name", "host.arch"} <= set(resource)


@pytest.mark.usefixtures("less_patient")
def test_refusing_collector_costs_counted_spans(sink: Any, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """While the collector refuses, spans are dropped and counted, logged in one line each; later ones arrive."""
    caplog.set_level(logging.INFO, "exporter")
    sink.status = 503
    subject = push(sink.endpoint, protocol)
    subject.span(span(0))
    reaches(subject, "spans_dropped_total export_failed", 1)
    reaches(subject, "otlp_exports_failed_total metrics", 2)
    sink.status = 200
    subject.span(span(1))
    reaches(subject, "spans_exported_total", 1)
    sink.wait_for(lambda sink: len(sink.metrics) >= 1)
    subject.stop()

    assert [1] == [item.attributes[-1].value.int_value for item in sink.spans()]
    lines = [record.getMessage() for record in caplog.records if record.name == "exporter.push"]
    assert 2 == sum("are dropped until it works" in line for line in lines)
    assert 2 == sum("work again" in line for line in lines)
    assert 4 == len(lines)


@pytest.mark.usefixtures("less_patient")
def test_the_reason_of_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the HTTP status, and another line when that changes. A redirect, which is not followed, delivers
    nothing.
    """
    caplog.set_level(logging.INFO, "exporter")
    sink = otlp_sink.HttpSink()
    subject = push(sink.endpoint, "http/protobuf", OTEL_METRICS_EXPORTER="none")
    for number, status in enumerate((429, 401, 401, 301), 1):
        sink.status = status
        subject.span(span(number))
        reaches(subject, "spans_dropped_total export_failed", number)
    subject.stop()
    sink.close()

    assert "spans_exported_total" not in counts(subject)
    lines = [record.getMessage() for record in caplog.records if record.name == "exporter.push"]
    assert [429, 401, 301] == [int(line.partition(" works: HTTP status ")[2][:3]) for line in lines]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if record.name == "exporter.push"]
    return [record.getMessage() for record in found if record.levelno >= logging.WARNING]


@pytest.fixture
def web() -> Iterator[otlp_sink.HttpSink]:
    made = otlp_sink.HttpSink()
    yield made
    made.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (otlp_sink.huge, "more than 65536 bytes"),
        (otlp_sink.bomb, "more than 65536 bytes"),
        (otlp_sink.html, "not an OTLP response but text/html"),
    ],
)
def test_answers_of_another_kind(
    web: otlp_sink.HttpSink, caplog: pytest.LogCaptureFixture, answer: otlp_sink.Answers, reason: str
) -> None:
    """An answer that is too long, or no response of OTLP, is a failed export with one line; it is not kept in memory,
    nor are the data sent again.
    """
    pieces = list(answer(None))
    web.answer = lambda _: iter(pieces)
    subject = push(web.endpoint, "http/protobuf", OTEL_METRICS_EXPORTER="none")
    tracemalloc.start()
    for count in (1, 2):
        subject.span(span(count))
        reaches(subject, "spans_dropped_total export_failed", count)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    web.answer = None
    subject.span(span(3))
    reaches(subject, "spans_exported_total", 1)
    subject.stop()

    assert peak < 16 << 20
    assert [1, 2, 3] == [item.attributes[-1].value.int_value for item in web.spans()]
    assert 2 == counts(subject)["otlp_exports_failed_total traces"]
    (line,) = warnings(caplog)
    assert reason in line


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("body", "kind"), [(b"ok", "text/plain"), (b"null", "application/json"), (b"<p>", "application/x-protobuf")]
)
def test_answers_with_a_word(web: otlp_sink.HttpSink, caplog: pytest.LogCaptureFixture, body: bytes, kind: str) -> None:
    """An endpoint that reports success in its own words has taken the data; the log has one line."""
    web.answer = lambda _: otlp_sink.whole(body, kind)
    subject = push(web.endpoint, "http/protobuf", OTEL_METRICS_EXPORTER="none")
    for count in (1, 2):
        subject.span(span(count))
        reaches(subject, "spans_exported_total", count)
    subject.stop()

    assert "otlp_exports_failed_total traces" not in counts(subject)
    (line,) = warnings(caplog)
    assert f"accepted with a warning: the answer is not an OTLP response but {kind}" in line


@pytest.mark.parametrize("answer", [otlp_sink.drip, otlp_sink.dripping_head])
def test_dripping_answers(web: otlp_sink.HttpSink, caplog: pytest.LogCaptureFixture, answer: otlp_sink.Answers) -> None:
    """An answer that goes on for longer than the timeout is a failed export, although no byte of it is late."""
    web.answer = answer
    subject = push(web.endpoint, "http/protobuf", OTEL_METRICS_EXPORTER="none")
    subject.span(span(0))
    reaches(subject, "spans_dropped_total export_failed", 1)
    subject.stop()

    got = counts(subject)
    assert (1, None) == (got["otlp_exports_failed_total traces"], got.get("spans_exported_total"))
    assert 1 == len(warnings(caplog))


@pytest.mark.usefixtures("patient")
def test_a_refusal_with_a_long_body(web: otlp_sink.HttpSink, caplog: pytest.LogCaptureFixture) -> None:
    """The status is the reason, whatever follows."""
    web.answer = lambda response: iter(
        piece.replace(b"200 OK", b"401 Unauthorized") for piece in otlp_sink.huge(response)
    )
    subject = push(web.endpoint, "http/protobuf", OTEL_METRICS_EXPORTER="none")
    subject.span(span(0))
    reaches(subject, "spans_dropped_total export_failed", 1)
    subject.stop()

    (line,) = warnings(caplog)
    assert "HTTP status 401 Unauthorized" in line


def busy(_: Any) -> Iterator[bytes]:
    """An endpoint over its limit."""
    yield b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.usefixtures("patient")
def test_a_busy_endpoint_gets_no_further_request(web: otlp_sink.HttpSink) -> None:
    """While a Retry-After lasts spans wait in the queue, and metrics are not sent."""
    web.answer = busy
    subject = push(web.endpoint, "http/protobuf", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="10")
    for number in range(100):
        subject.span(span(number))
    reaches(subject, "spans_dropped_total export_failed", 1)
    reaches(subject, "otlp_exports_failed_total metrics", 1)
    subject.stop(PATIENCE)

    assert (1, 1) == (len(web.traces), len(web.metrics))
    got = counts(subject)
    assert 1 <= int(str(got["spans_dropped_total export_failed"])) <= 10
    assert 100 == sum(int(str(got[f"spans_dropped_total {reason}"])) for reason in ("export_failed", "stopped"))


def test_a_pause_ends(web: otlp_sink.HttpSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the pause, which is bounded, what has waited is sent."""
    monkeypatch.setattr("exporter.otlp_answer.LONGEST_PAUSE", 0.1)
    web.answer = busy
    subject = push(web.endpoint, "http/protobuf", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    subject.span(span(0))
    reaches(subject, "spans_dropped_total export_failed", 1)
    reaches(subject, "otlp_exports_failed_total metrics", 1)
    web.answer = None
    subject.span(span(1))
    reaches(subject, "spans_exported_total", 1)
    web.wait_for(lambda sink: len(sink.metrics) >= 2)
    subject.stop()


@pytest.mark.parametrize(
    ("status", "retry_after", "seconds"),
    [
        (429, "7", 7),
        (503, "0.5", 0.5),
        (503, "Wed, 21 Oct 2015 07:28:00 GMT", 0),
        (429, "Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_PAUSE),
        (429, "1e300", LONGEST_PAUSE),
        *((429, text, 0) for text in ("", "-5", "nan", "inf", "soon", "Wed, 99 Oct 2015", "\0", "9" * 10_000)),
        (401, "7", 0),
        (200, "7", 0),
    ],
)
def test_retry_after(status: int, retry_after: str, seconds: float) -> None:
    """A number or a date, with 429 and 503; bounded, and nothing where it cannot be read."""
    assert seconds == pause(status, retry_after)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("json", [False, True])
def test_partial_success(web: otlp_sink.HttpSink, caplog: pytest.LogCaptureFixture, json: bool) -> None:
    """Rejected spans are dropped, not exported; a request with rejected data points has failed; one line each."""
    web.answer = otlp_sink.partial(2, "too many attributes " + 400 * "x", json)
    subject = push(web.endpoint, "http/protobuf", OTEL_BSP_SCHEDULE_DELAY="60000", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="10")
    for number in range(10):
        subject.span(span(number))
    reaches(subject, "spans_dropped_total rejected", 2)
    reaches(subject, "otlp_exports_failed_total metrics", 2)
    subject.stop(PATIENCE)

    got = counts(subject)
    assert (8, 2, None) == (
        got["spans_exported_total"],
        got["spans_dropped_total rejected"],
        got.get("spans_dropped_total export_failed"),
    )
    assert got["otlp_exports_total metrics"] == got["otlp_exports_failed_total metrics"]
    lines = sorted(warnings(caplog))
    assert ["metrics", "traces"] == [line.split()[1] for line in lines]
    assert all(" 2 " in line and "too many attributes xxx" in line and len(line) < 450 for line in lines)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("rejected", "lost"), [(-3, 0), (10**18, 5)])
def test_rejected_counts_that_cannot_be(web: otlp_sink.HttpSink, rejected: int, lost: int) -> None:
    """No more spans than were sent are rejected, and no fewer than none."""
    web.answer = otlp_sink.partial(rejected, "")
    subject = push(web.endpoint, "http/protobuf", OTEL_METRICS_EXPORTER="none", OTEL_BSP_SCHEDULE_DELAY="60000")
    for number in range(5):
        subject.span(span(number))
    subject.stop(PATIENCE)

    got = counts(subject)
    assert (5 - lost or None, lost or None) == (
        got.get("spans_exported_total"),
        got.get("spans_dropped_total rejected"),
    )


@pytest.mark.usefixtures("patient")
def test_a_warning_of_the_endpoint(web: otlp_sink.HttpSink, caplog: pytest.LogCaptureFixture) -> None:
    """A message without anything rejected is one line in the log, and nothing has failed."""
    web.answer = otlp_sink.partial(0, "this token expires soon")
    subject = push(web.endpoint, "http/protobuf", OTEL_TRACES_EXPORTER="none")
    reaches(subject, "otlp_exports_total metrics", 3)
    subject.stop(PATIENCE)

    assert "otlp_exports_failed_total metrics" not in counts(subject)
    (line,) = warnings(caplog)
    assert line.endswith("this token expires soon")


def test_hanging_collector_costs_a_bounded_queue(sink: Any, protocol: str) -> None:
    """While the collector hangs, the queue stays at its size, and neither spans nor stopping wait for the collector."""
    sink.hang.set()
    subject = push(sink.endpoint, protocol, OTEL_BSP_MAX_QUEUE_SIZE="100", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="10")
    for number in range(5000):
        subject.span(span(number))
    waiting = counts(subject)
    subject.stop()  # before the collector answers

    assert 0 < int(str(waiting["spans_queued"])) <= 100
    # A slow machine may meanwhile have given up an export too.
    assert sum(int(str(value)) for name, value in waiting.items() if name.startswith("spans_dropped_total")) >= 4880
    dropped = sum(int(str(value)) for name, value in counts(subject).items() if name.startswith("spans_dropped_total"))
    assert 4980 <= dropped <= 5000


@pytest.mark.parametrize("protocol", ["http/protobuf"])
def test_burst_into_a_black_hole(sink: Any, protocol: str) -> None:
    """10,000 spans within a second while the collector hangs: no more than the queue is kept, all else is counted."""
    sink.hang.set()
    subject = push(sink.endpoint, protocol)
    tracemalloc.start()
    for number in range(10_000):
        subject.span(span(number))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    waiting = counts(subject)
    subject.stop()

    assert kept < 8_000_000
    assert int(str(waiting["spans_queued"])) <= 2048
    # A slow machine may meanwhile have given up an export too.
    lost = sum(int(str(value)) for name, value in waiting.items() if name.startswith("spans_dropped_total"))
    assert lost >= 10_000 - 2048 - 512


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("protocol", ["http/protobuf"])
def test_budget_is_kept(sink: Any, protocol: str) -> None:
    """Spans beyond the limit of a second are dropped with the reason; the rest arrives."""
    settings = OtlpSettings(sink.endpoint, protocol, spans_per_second=100)
    subject = Push(plan(settings, {"OTEL_BSP_SCHEDULE_DELAY": "50"}), samples, started=1000.0)
    subject._budget = Budget(100, lambda: 0.0)  # all come within a second, also on a busy machine
    subject.start()
    for number in range(300):
        subject.span(span(number))
    dropped = int(str(counts(subject)["spans_dropped_total budget"]))
    sink.wait_for(lambda sink: len(list(sink.spans())) == 300 - dropped)
    subject.stop()

    assert 200 == dropped


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("protocol", ["http/protobuf"])
def test_sampling_keeps_whole_traces_and_marks_parts(sink: Any, protocol: str) -> None:
    """Of traces that are not sampled only failed spans arrive, marked; the others are counted."""
    subject = push(sink.endpoint, protocol, OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="0.5")
    sampled, left_out = span(1), replace(span(2), trace_id="f" * 32)
    for it in (sampled, left_out, replace(left_out, error="ncclSystemError")):
        subject.span(it)
    sink.wait_for(lambda sink: len(list(sink.spans())) == 2)
    subject.stop()

    partial = [{it.key for it in sent.attributes} & {PARTIAL} for sent in sink.spans()]
    assert [set(), {PARTIAL}] == partial
    assert 1 == counts(subject)["spans_unsampled_total"]


def test_disappeared_collector_is_found_again(protocol: str) -> None:
    """A collector that goes and comes back on the same port gets spans again; in between they are counted."""
    kind = otlp_sink.GrpcSink if protocol == "grpc" else otlp_sink.HttpSink
    sink = kind(free_port())  # one that no client gets meanwhile
    subject = push(sink.endpoint, protocol)
    subject.span(span(0))
    sink.wait_for(lambda sink: list(sink.spans()))
    sink.close()
    subject.span(span(1))
    reaches(subject, "spans_dropped_total export_failed", 1)
    sink = kind(sink.port)

    def arrived() -> bool:
        subject.span(span(2))
        return bool(list(sink.spans()))

    until(arrived)
    subject.stop()
    sink.close()


@pytest.mark.timeout(120)
def test_stop_is_prompt_when_packets_vanish(protocol: str) -> None:
    """A listener that never accepts does not hold up the stop for the timeout, which is an hour."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
            subject = push(endpoint, protocol)
        for number in range(100):
            subject.span(span(number))
        time.sleep(0.3)
        subject.stop()  # or the test's own time is over first


@pytest.mark.usefixtures("patient")
def test_stop_sends_what_is_queued(sink: Any, protocol: str) -> None:
    """Spans that wait for their batch when the exporter stops still arrive."""
    subject = push(sink.endpoint, protocol, OTEL_BSP_SCHEDULE_DELAY="60000", OTEL_METRIC_EXPORT_INTERVAL="60000")
    for number in range(10):
        subject.span(span(number))
    subject.stop()

    assert 10 == len(list(sink.spans()))
    assert {"test.calls", "test.wait"} == {metric.name for metric, _ in sink.points()}


@pytest.mark.parametrize(
    ("settings", "environ", "expected"),
    [
        (OtlpSettings(), {}, (None, None)),
        (
            OtlpSettings("http://c:4318/"),
            {},
            (("http/protobuf", "http://c:4318/v1/metrics"), ("http/protobuf", "http://c:4318/v1/traces")),
        ),
        (OtlpSettings("c:4317", "grpc"), {}, (("grpc", "c:4317"), ("grpc", "c:4317"))),
        (
            OtlpSettings(),
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            (("grpc", None), ("grpc", None)),
        ),
        (OtlpSettings(), {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/x"}, (None, ("http/protobuf", None))),
        (OtlpSettings("http://c"), {"OTEL_SDK_DISABLED": "True"}, (None, None)),
        (
            OtlpSettings("http://c"),
            {"OTEL_METRICS_EXPORTER": "none"},
            (None, ("http/protobuf", "http://c/v1/traces")),
        ),
        (
            OtlpSettings("http://c"),
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            (("http/protobuf", "http://c/v1/metrics"), ("grpc", "http://c")),
        ),
    ],
)
def test_plan_follows_flags_and_variables(
    settings: OtlpSettings, environ: dict[str, str], expected: tuple[object, object]
) -> None:
    """Flags win over a signal's variables, those over the general ones; without an endpoint nothing is pushed."""
    made = plan(settings, environ)

    assert expected == tuple(it and (it.protocol, it.endpoint) for it in (made.metrics, made.traces))
    assert bool(made) == (expected != (None, None))


def test_plan_takes_the_batch_processors_variables(caplog: pytest.LogCaptureFixture) -> None:
    """OTEL_BSP_* and OTEL_METRIC_EXPORT_INTERVAL are honoured, in milliseconds; nonsense is logged and passed over."""
    made = plan(
        OtlpSettings("http://c"),
        {
            "OTEL_BSP_SCHEDULE_DELAY": "250",
            "OTEL_BSP_MAX_QUEUE_SIZE": "100",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "-1",
            "OTEL_METRIC_EXPORT_INTERVAL": "1500",
        },
    )

    assert (0.25, 100, 100, 1.5) == (made.delay, made.queue_size, made.batch_size, made.interval)
    assert ["OTEL_BSP_MAX_EXPORT_BATCH_SIZE='-1' is not a positive integer; 512 is used"] == caplog.messages
    assert 5.0 == plan(OtlpSettings("http://c", metrics_interval=5.0), {"OTEL_METRIC_EXPORT_INTERVAL": "1"}).interval


@pytest.mark.parametrize(("timeout", "compression"), [("", ""), ("2.5", "gzip"), (" 10 ", "Deflate"), ("7", "none")])
def test_variables_of_requests(timeout: str, compression: str, caplog: pytest.LogCaptureFixture) -> None:
    """A value that the SDK accepts causes no warning."""
    words = {"OTEL_EXPORTER_OTLP_TIMEOUT": timeout, "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": compression}
    plan(OtlpSettings("http://c"), words)
    assert [] == caplog.messages


def test_variables_of_requests_that_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """A value that the SDK ignores causes one warning, which names the value used instead."""
    plan(OtlpSettings("http://c"), {"OTEL_EXPORTER_OTLP_TIMEOUT": "x", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "zstd"})
    assert [
        "OTEL_EXPORTER_OTLP_TIMEOUT='x' is not a number of seconds; 10 s are used",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION='zstd' is not supported; requests are not compressed",
    ] == caplog.messages


@pytest.mark.parametrize(
    ("name", "kept", "other"),
    [
        ("TEMPORALITY_PREFERENCE", "Cumulative", "delta"),
        ("DEFAULT_HISTOGRAM_AGGREGATION", "explicit_bucket_histogram", "base10_histogram"),
    ],
)
def test_preferences_that_are_not_supported(name: str, kept: str, other: str, caplog: pytest.LogCaptureFixture) -> None:
    """A preference with a value that is not supported is a warning; what is done anyway is none."""
    name = f"OTEL_EXPORTER_OTLP_METRICS_{name}"
    plan(OtlpSettings("http://c"), {name: kept})
    assert [] == caplog.messages
    plan(OtlpSettings("http://c"), {name: other})
    assert [f"{name}='{other}' is not supported; metrics are pushed as {kept.lower()}"] == caplog.messages


@pytest.mark.parametrize(
    ("value", "exponential"),
    [("", False), ("explicit_bucket_histogram", False), (" Base2_Exponential_Bucket_Histogram ", True)],
)
def test_preference_of_histograms(value: str, exponential: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The variable of the SDK chooses exponential histograms; explicit ones are the default."""
    made = plan(OtlpSettings("http://c"), {"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": value})
    assert (exponential, []) == (made.exponential, caplog.messages)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (OtlpSettings("http://c", "http/json"), "OTLP protocol 'http/json' is not supported"),
        (OtlpSettings("c:4318"), "otlp.endpoint: 'c:4318' is not a URL such as http://host:4318"),
        (OtlpSettings("http://c", headers=("authorization",)), "each header has to be written as name=value"),
    ],
)
def test_wrong_settings_are_one_clear_error(settings: OtlpSettings, message: str) -> None:
    """A protocol, endpoint or header that cannot work is refused with what would be right."""
    with pytest.raises(SettingsError, match=message):
        plan(settings, {})


@pytest.mark.parametrize(
    ("endpoint", "protocol"),
    [
        ("https://user:secret@otlp.example", "http/protobuf"),
        ("https://user@otlp.example:4318/x@y", "http/protobuf"),
        ("user:secret@otlp.example:4317", "grpc"),
        ("https://user:secret@otlp.example:4317", "grpc"),
    ],
)
def test_passwords_in_urls(endpoint: str, protocol: str) -> None:
    """A flag with a password is refused, for all can read it; one in a variable goes to the backend, not to the log."""
    with pytest.raises(SettingsError, match="would stand in the list of processes") as caught:
        plan(OtlpSettings(endpoint=endpoint, protocol=protocol), {})
    assert "secret" not in str(caught.value)

    made = plan(OtlpSettings(protocol=protocol), {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}).traces
    assert made is not None and made.endpoint is None
    assert "user" not in made.target and "otlp.example" in made.target


def test_tokens_in_urls(caplog: pytest.LogCaptureFixture) -> None:
    """A token in a URL's query goes to the backend, and neither into the name of the endpoint nor into the reason."""
    variables = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1/v1/metrics?api-key=tok3n#tok3n"}
    made = plan(OtlpSettings(), variables).metrics
    assert made is not None and "http://127.0.0.1:1/v1/metrics" == made.target

    class Refusing:
        def export(self, data: object) -> object:
            raise ConnectionError("refused: /v1/metrics?api-key=tok3n (port 1)")

    link = _Link.__new__(_Link)
    link._signal, link._reasons, link._exporter, link._failure = made, Reasons(), Refusing(), ""
    with caplog.at_level("WARNING"):
        assert not link.send(None)
    assert "refused: /v1/metrics?… (port 1)" in caplog.text
    assert "tok3n" not in caplog.text


def test_missing_packages_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the exporter's package the error names what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.metric_exporter", None)

    with pytest.raises(SettingsError, match=r"pip install 'accel-exporter\[otlp-grpc\]'"):
        Push(plan(OtlpSettings("c:4317", "grpc"), {}), samples, 0.0)


def test_nothing_configured_takes_spans_without_counting() -> None:
    """With no traces endpoint spans go nowhere, and none is called dropped."""
    subject = Push(Plan(None, None), samples, 0.0)
    subject.start()
    subject.span(span(1))
    subject.stop()

    assert {} == counts(subject)
