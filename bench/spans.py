"""Cost of a span to the exporter, from the collector that finished the span to the OTLP endpoint that accepted it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.result import Result
from exporter.model import Span
from exporter.otlp import OtlpSettings, plan
from exporter.push import Push
from tests.standins import otlp_sink

SPANS = 20_000
BATCH = 2_000
BURST = 10_000
BRIEF = {"SPANS": 4000}


def run() -> list[Result]:
    """Takes about half a minute."""
    return [
        Result("CPU of a span, HTTP", _each("http/protobuf") * 1e6, "µs", None, f"{SPANS:,} spans of 8 processes"),
        Result("CPU of a span, gRPC", _each("grpc") * 1e6, "µs", None, "the same"),
        Result("memory of a burst", _burst() / 1e6, "MB", 10, f"{BURST:,} spans at once, no endpoint answers"),
    ]


def _each(protocol: str) -> float:
    """CPU seconds of this process a span; the sink is another process."""
    with _sink(protocol) as endpoint:
        subject = _push(endpoint, protocol)
        _send(subject, BATCH)  # what is imported and connected once is not counted
        began = time.process_time()
        _send(subject, SPANS)
        seconds = time.process_time() - began
        subject.stop()
    return seconds / SPANS


def _burst() -> float:
    """Bytes that the process grows by while the endpoint hangs."""
    sink = otlp_sink.HttpSink()
    sink.hang.set()
    try:
        subject = _push(sink.endpoint, "http/protobuf")
        before = psutil.Process().memory_info().rss
        for number in range(BURST):
            subject.span(_span(number))
        grown = psutil.Process().memory_info().rss - before
        subject.stop()
    finally:
        sink.hang.clear()
        sink.close()
    return float(grown)


def _push(endpoint: str, protocol: str) -> Push:
    words = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "none"}
    made = Push(plan(OtlpSettings(endpoint, protocol, spans_per_second=0), words), list, time.time())
    made.start()
    return made


def _send(subject: Push, count: int) -> None:
    """Hands spans over as fast as they are taken. RuntimeError when they are not."""
    for first in range(0, count, 1000):
        for number in range(first, first + 1000):
            subject.span(_span(number))
        until = time.monotonic() + 30
        while _queued(subject):
            if time.monotonic() > until:
                raise RuntimeError("the OTLP sink takes no spans")
            time.sleep(0.02)


def _queued(subject: Push) -> float:
    return next(float(str(it.value)) for it in subject.samples() if it.metric.name == "accel_exporter.spans.queued")


def _span(number: int) -> Span:
    now = time.time_ns()
    pid = str(number % 8)
    attributes = {"nccl.collective": "AllReduce", "nccl.bytes": number, "nccl.rank": number % 8, "nccl.nranks": 8}
    labels = {"pid": pid, "comm": "python3", "pod": "train-0", "namespace": "ml", "gpu": pid, "gpu_uuid": f"GPU-{pid}"}
    ids = f"{number + 1:032x}", f"{number + 1:016x}"
    return Span("AllReduce", *ids, now - 500, now, attributes, labels, resource={"service.name": "train-0"})


@contextmanager
def _sink(protocol: str) -> Iterator[str]:
    """The stand-in collector in a process of its own."""
    path = Path(otlp_sink.__file__)
    kind = "grpc" if protocol == "grpc" else "http"
    environ = os.environ | {"PYTHONPATH": str(path.parents[2]), "PYTHONUNBUFFERED": "1"}
    sink = subprocess.Popen([sys.executable, path, kind, "0"], stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert sink.stdout
        yield sink.stdout.readline().split()[-1]
    finally:
        sink.kill()
        sink.wait()
