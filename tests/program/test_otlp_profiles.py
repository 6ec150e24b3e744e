"""Pushing profiles of stacks by OTLP to endpoints that take, reject, refuse and are not there."""

from __future__ import annotations

import gzip
import http.server
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service

from exporter.options import SettingsError
from exporter.otlp import OtlpSettings, plan
from exporter.otlp_profiles import ProfilePush
from exporter.stack_profiles.published import StackProfiles
from exporter.views.stack_profiles import otlp
from tests import made_up_profiles as made_up
from tests.support import until

NAMES = {4711: {"service.name": "llm", "service.namespace": "ml"}}


class Sink:
    """An endpoint that keeps what it gets, and answers with `status` and `answer`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.status, self.answer, self.headers = 200, b"", {}
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                sink.requests.append((self.path, headers, service.ExportProfilesServiceRequest.FromString(body)))
                self.send_response(sink.status)
                for name, value in {"Content-Type": "application/x-protobuf", **sink.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(sink.answer)))
                self.end_headers()
                self.wfile.write(sink.answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.close()


def made_push(endpoint: str, source: made_up.Source, interval: float = 60.0) -> ProfilePush:
    published = StackProfiles()
    published.publish(source)
    signal = plan(OtlpSettings(endpoint, headers=("x-tenant=me",), profiles_interval=interval), {}).profiles
    assert signal
    return ProfilePush(signal, interval, published, lambda pid: NAMES.get(pid, {}))


def counts(push: ProfilePush) -> list[float]:
    """Requests made, and those that failed."""
    return [float(sample.value) for sample in push.samples() if isinstance(sample.value, int)]


def texts(message: Any) -> list[str]:
    return [*message.dictionary.string_table]


def test_a_request_by_the_packages_messages() -> None:
    """A resource a process with its service.name; each value a profile; stacks, labels and build ids in the tables."""
    profile = made_up.inuse()
    message = service.ExportProfilesServiceRequest.FromString(
        otlp.encode(profile, lambda labels: {"service.name": labels["comm"], "process.pid": int(labels["pid"])})
    )
    tables, text = message.dictionary, texts(message)
    attributes = [(text[it.key_strindex], it.value.string_value) for it in tables.attribute_table]
    sums = {}
    for resource in message.resource_profiles:
        service_name = resource.resource.attributes[0].value.string_value
        for made in resource.scope_profiles[0].profiles:
            assert 16 == len(made.profile_id)
            assert (profile.time_ns, profile.duration_ns) == (made.time_unix_nano, made.duration_nano)
            sums[service_name, text[made.sample_type.type_strindex]] = sum(it.values[0] for it in made.samples)

    assert {
        ("serve", "inuse_space"): 1600,
        ("serve", "inuse_objects"): 5,
        ("train", "inuse_space"): 30,
        ("train", "inuse_objects"): 2,
    } == sums
    first = message.resource_profiles[0].scope_profiles[0].profiles[0].samples[0]
    names = [
        text[tables.function_table[line.function_index].name_strindex]
        for at in tables.stack_table[first.stack_index].location_indices
        for line in tables.location_table[at].lines
    ]
    assert [frame.function for frame in made_up.WEIGHTS if frame.function] == names
    assert {("hw.id", "GPU-aaaa"), ("gpu.cuda.memory.type", "device"), ("rank", "0")} == {
        attributes[at] for at in first.attribute_indices
    }
    assert ("process.executable.build_id.gnu", "ab12cd34") in attributes
    assert {"cpython", "native", "kernel"} == {value for key, value in attributes if key == "profile.frame.type"}


def test_tables_begin_with_the_zero_value() -> None:
    """Element 0 of every table is there and empty, as the protocol demands; hostile names are cut and valid."""
    message = service.ExportProfilesServiceRequest.FromString(otlp.encode(made_up.hostile(), lambda _: {}))
    tables = message.dictionary

    assert "" == tables.string_table[0]
    assert max(map(len, tables.string_table)) <= 512
    for table in (tables.mapping_table, tables.location_table, tables.function_table, tables.stack_table):
        assert b"" == table[0].SerializeToString()
    assert (bytes(16), bytes(8)) == (tables.link_table[0].trace_id, tables.link_table[0].span_id)


def test_pushes(sink: Sink) -> None:
    """Memory in use at each push; what was allocated and launched from the second on, as what came in between."""
    source = made_up.Source()
    push = made_push(sink.endpoint, source)
    push.push()
    push.push()

    assert ["inuse_space", "inuse_space", "alloc_space", "launches"] == [kind(it) for _, _, it in sink.requests]
    assert [3260 * 2, 3 * 1630, 3 * 1630] == [total(it) for _, _, it in sink.requests[1:]]
    path, headers, message = sink.requests[0]
    assert ("/v1development/profiles", "me") == (path, headers["x-tenant"])
    resource = {it.key: it.value for it in message.resource_profiles[0].resource.attributes}
    assert ("llm", "ml", 4711) == (
        resource["service.name"].string_value,
        resource["service.namespace"].string_value,
        resource["process.pid"].int_value,
    )
    assert "unknown_service" == next(
        it.value.string_value for it in message.resource_profiles[1].resource.attributes if it.key == "service.name"
    )
    assert [4, 0] == counts(push)


def kind(message: Any) -> str:
    """The first value of a request."""
    made = message.resource_profiles[0].scope_profiles[0].profiles[0]
    return texts(message)[made.sample_type.type_strindex]


def total(message: Any) -> int:
    """The sum of a request's first value over its processes."""
    return sum(
        sample.values[0]
        for resource in message.resource_profiles
        for sample in resource.scope_profiles[0].profiles[0].samples
    )


def test_failures_are_counted_and_logged_once(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    """A status, a partial success and no endpoint at all are failures; a log line when they begin and when they end."""
    caplog.set_level(logging.INFO, "exporter.otlp_profiles")
    push = made_push(sink.endpoint, made_up.Source())
    sink.status, sink.headers = 503, {"Retry-After": "7"}
    assert 7 == push.push()
    sink.status, sink.headers = 200, {}
    sink.answer = service.ExportProfilesServiceResponse(
        partial_success={"rejected_profiles": 2, "error_message": "too old"}
    ).SerializeToString()
    push.push()
    sink.answer = b""
    push.push()

    assert [7, 4] == counts(push)
    assert ["are dropped until it works: HTTP status 503", "work again"] == [
        line.partition("/profiles ")[2] for line in caplog.messages
    ]
    sink.close()
    push.push()
    assert [10, 7] == counts(push)
    push.stop()


def test_nothing_is_pushed_where_there_are_no_profiles(sink: Sink) -> None:
    """A source with a problem is no empty profile."""
    push = made_push(sink.endpoint, made_up.Source("denied"))
    push.push()

    assert ([], [0, 0]) == (sink.requests, counts(push))


def test_the_thread_pushes_and_stops(sink: Sink) -> None:
    """A push comes at once and then at each interval, until the end."""
    push = made_push(sink.endpoint, made_up.Source(), 0.1)
    push.start()
    until(lambda: len(sink.requests) >= 7, "some pushes")
    push.stop()
    count = len(sink.requests)

    assert count == len(sink.requests)
    assert not any(thread.name == "otlp-profiles" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("settings", "variables", "endpoint"),
    [
        (OtlpSettings("http://c:4318/", profiles_interval=1), {}, "http://c:4318/v1development/profiles"),
        (
            OtlpSettings(profiles_interval=1),
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"},
            "http://c:4318/v1development/profiles",
        ),
        (OtlpSettings(profiles_interval=1), {"OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT": "http://c/x"}, "http://c/x"),
        (OtlpSettings("http://c:4318"), {}, None),
        (OtlpSettings("http://c:4318", profiles_interval=1), {"OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_where_to(settings: OtlpSettings, variables: dict[str, str], endpoint: str | None) -> None:
    """The endpoint of a flag with the alpha signal's path, else the variables'; none without an interval."""
    found = plan(settings, {**variables, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20YTpi"}).profiles

    assert endpoint == (found and found.endpoint)
    assert found is None or {"authorization": "Basic YTpi"} == found.headers


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (OtlpSettings(profiles_interval=1), "there is no endpoint"),
        (OtlpSettings("c:4317", "grpc", profiles_interval=1), "pushed over HTTP only"),
    ],
)
def test_impossible_settings(settings: OtlpSettings, reason: str) -> None:
    """An interval without an endpoint, and gRPC, are errors at the start."""
    with pytest.raises(SettingsError, match=reason):
        plan(settings, {})
