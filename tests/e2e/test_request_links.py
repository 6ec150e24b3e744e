"""The real exporter, a server that uses the GPU for its requests, and the links between the spans of both."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bpf.cuda_node import BUILD, build_standins
from tests.bpf.obi_map import ObiMap
from tests.program.process import Exporter
from tests.standins.otlp_sink import HttpSink
from tests.support import PATIENCE

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.evidence(feature="links between LLM requests and GPU work", on="stand-in"),
]

ROOT = Path(__file__).parents[2]
ROUTE = "/v1/chat/completions"
PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    sink = HttpSink()
    yield sink
    sink.close()


@pytest.fixture
def obi(tmp_path: Path) -> Iterator[ObiMap]:
    with ObiMap(tmp_path) as made:
        yield made


@pytest.fixture
def exporter(tmp_path: Path, sink: HttpSink) -> Iterator[Exporter]:
    build_standins()
    contexts = f"--otlp.trace-contexts={tmp_path}/bpf/otel/traces_ctx_v1"
    flags = ("--collector.serving", "--collector.cuda.wait-span-seconds=0.02", "--no-collector.ras")
    running = Exporter(
        tmp_path,
        *flags,
        contexts,
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{sink.endpoint}/v1/traces",
        OTEL_BSP_SCHEDULE_DELAY="200",
    )
    try:
        yield running.await_ready()
    finally:
        running.process.kill()
        running.process.wait(PATIENCE)


@dataclass(frozen=True)
class Running:
    """A server; `engine` is the process that uses the GPU."""

    pid: int
    engine: int
    port: int

    def request(self, client: http.client.HTTPConnection) -> None:
        client.request("POST", ROUTE, b'{"model": "tiny"}', {"traceparent": PARENT})
        assert b"usage" in client.getresponse().read()


@contextmanager
def server(kind: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "tests.e2e.linked_server", kind]
    environment = os.environ | {"LD_LIBRARY_PATH": str(BUILD), "OTEL_SERVICE_NAME": "of-the-environment"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            started = json.loads(process.stdout.readline())
            yield Running(process.pid, started["engine"] or process.pid, started["port"])
        finally:
            process.kill()


def attributes(item: Any) -> dict[str, Any]:
    return {it.key: getattr(it.value, it.value.WhichOneof("value")) for it in item.attributes}


def spans_of(sink: HttpSink, pid: int, name: str) -> list[Any]:
    found = [span for span in sink.spans() if attributes(span).get("process.pid") == pid]
    return [span for span in found if span.name == name]


def services(sink: HttpSink, pid: int) -> set[str]:
    """The service names of the spans of a process."""
    found = [attributes(it.resource) for request in sink.traces for it in request.resource_spans]
    return {it["service.name"] for it in found if it.get("process.pid") == pid}


@pytest.mark.parametrize(("kind", "expected"), [("own", "thread"), ("child", "concurrent")])
def test_a_request_links_to_the_work_of_the_gpu(exporter: Exporter, sink: HttpSink, kind: str, expected: str) -> None:
    """The request's span is in its client's trace, and has a link to the wait of the GPU in its time."""
    with server(kind) as running:
        client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE)

        def linked(sink: Any) -> list[Any]:
            running.request(client)  # until both probes are attached requests have no spans, or no links
            return [span for span in spans_of(sink, running.pid, "chat tiny") if span.links]

        sink.wait_for(linked)
        client.close()

        span = [span for span in spans_of(sink, running.pid, "chat tiny") if span.links][-1]
        [link] = span.links
        [work] = [it for it in spans_of(sink, running.engine, "cuStreamSynchronize") if it.span_id == link.span_id]
        assert work.trace_id == link.trace_id
        assert {"link.kind": expected} == attributes(link)
        assert span.start_time_unix_nano < work.start_time_unix_nano < work.end_time_unix_nano
        assert work.end_time_unix_nano < span.end_time_unix_nano
        assert PARENT.split("-")[1:3] == [span.trace_id.hex(), span.parent_span_id.hex()]
        assert (attributes(work)["thread.id"] != running.engine) == (kind == "own")
        assert {"published"} == services(sink, running.pid)
        assert {"published" if kind == "own" else "of-the-environment"} == services(sink, running.engine)


def test_links_to_spans_of_obi(obi: ObiMap, exporter: Exporter, sink: HttpSink) -> None:
    """A request links to the span that OBI has for it; of its work the second span does, before which it was known."""
    contexts: list[tuple[str, str]] = []
    with server("twice") as running:
        client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE)

        def linked(sink: Any) -> list[Any]:
            contexts.append((os.urandom(16).hex(), os.urandom(8).hex()))
            threads = [int(it.name) for it in Path(f"/proc/{running.pid}/task").iterdir()]
            for tid in threads:
                obi.set(running.pid, tid, *contexts[-1])
            running.request(client)
            for tid in threads:
                obi.delete(running.pid, tid)
            return requests()

        def requests() -> list[Any]:
            return [span for span in spans_of(sink, running.pid, "chat tiny") if to_obi(span)]

        sink.wait_for(linked)
        client.close()

        request = requests()[-1]
        works = {work.span_id: work for work in spans_of(sink, running.pid, "cuStreamSynchronize")}
        of_work = [link for link in request.links if link.span_id in works]
        first, second = sorted((works[it.span_id] for it in of_work), key=lambda span: span.start_time_unix_nano)
        [own] = to_obi(request)
        assert own in contexts
        assert [{"link.kind": "thread"}] * 2 == [attributes(link) for link in of_work]
        assert 3 == len(request.links)
        assert ([], [own]) == (to_obi(first), to_obi(second))


def to_obi(span: Any) -> list[tuple[str, str]]:
    """The spans of OBI that a span has links to."""
    found = [it for it in span.links if attributes(it) == {"link.kind": "thread", "link.source": "obi"}]
    return [(link.trace_id.hex(), link.span_id.hex()) for link in found]
