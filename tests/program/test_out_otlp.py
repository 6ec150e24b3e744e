"""Metrics received by the OTLP collector equal those of /metrics at the same moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.model import Distribution, Exemplar, Kind, Metric, Sample
from exporter.otlp import OtlpSettings, plan
from exporter.push import Push
from exporter.scrape import Scraper
from exporter.self_metrics import build_info
from exporter.version import build
from exporter.views import prometheus
from exporter.views.otlp import ATTRIBUTES
from tests.standins.otlp_sink import GrpcSink, HttpSink
from tests.standins.served import Fake

CALLS = Metric("gpu.cuda.api.calls", "Calls.", Kind.COUNTER, "{call}", labels=("api",), process=True)
USAGE = Metric("gpu.cuda.memory.usage", "Bytes.", Kind.GAUGE, "By", process=True)
RATIO = Metric("rdma.nack", "Ratio.", Kind.GAUGE, "1", labels=("device",))
WAIT = Metric("gpu.cuda.sync_wait", "Waits.", Kind.HISTOGRAM, "s", labels=("api",), process=True)
BOUNDS = tuple(2.0**n / 1e9 for n in range(10, 30))

Key = tuple[str, frozenset[tuple[str, str]]]


def collect() -> Iterable[Sample]:
    for pid in range(100):
        process = {"pid": str(pid), "comm": f"job\udcff-{pid}", "pod": "p" if pid % 2 else "", "gpu_uuid": f"GPU-{pid}"}
        yield CALLS.sample(2**40 + pid, process | {"api": "cuLaunchKernel"})
        yield USAGE.sample(pid * 1.5, process)
        counts = tuple(range(pid, pid + len(BOUNDS) + 1))
        exemplars = {3: Exemplar(1e-5, time.time(), f"{pid + 1:032x}", f"{pid + 1:016x}")}
        yield WAIT.sample(Distribution(BOUNDS, counts, pid / 7, exemplars), process | {"api": "cuCtxSynchronize"})
    yield RATIO.sample(1 / 3, {"device": "mlx5_0"})


def on_page(text: str) -> dict[Key, float]:
    """Every sample of a text page."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def from_sink(sink: Any, metrics: dict[str, Metric]) -> dict[Key, float]:
    """Every point the sink got, as the samples a Prometheus page would have."""
    labels_of = {attribute: label for label, attribute in ATTRIBUTES.items()}
    found: dict[Key, float] = {}
    for sent, point in sink.points():
        name = prometheus.name(metrics[sent.name])
        labels = {
            labels_of.get(item.key, item.key): str(getattr(item.value, item.value.WhichOneof("value")))
            for item in point.attributes
        }
        if sent.WhichOneof("data") == "histogram":
            total = 0
            les = [repr(bound) for bound in point.explicit_bounds] + ["+Inf"]
            for le, count in zip(les, point.bucket_counts, strict=True):
                total += count
                found[f"{name}_bucket", frozenset((labels | {"le": le}).items())] = total
            found[f"{name}_sum", frozenset(labels.items())] = point.sum
            found[f"{name}_count", frozenset(labels.items())] = point.count
        else:
            found[name, frozenset(labels.items())] = getattr(point, point.WhichOneof("value"))
    return found


@pytest.mark.parametrize(("kind", "protocol"), [(HttpSink, "http/protobuf"), (GrpcSink, "grpc")])
def test_sink_gets_what_the_page_shows(kind: Callable[[], Any], protocol: str) -> None:
    """Each series of one gathering is on the page and at the sink, with equal labels and equal values."""
    scraper = Scraper([Fake("cuda", collect)], own=[lambda: build_info(build())])
    scraper.start()
    samples = scraper.gather()
    sink = kind()
    subject = Push(
        plan(OtlpSettings(sink.endpoint, protocol), {"OTEL_METRIC_EXPORT_INTERVAL": "50"}), lambda: samples, time.time()
    )
    subject.start()
    page = on_page(prometheus.render(samples).text.decode())
    sink.wait_for(lambda sink: sum(1 for _ in sink.points()) >= 300)
    subject.stop()
    sink.close()

    assert page == from_sink(sink, {sample.metric.name: sample.metric for sample in samples})
    assert len(page) > 100 * (len(BOUNDS) + 5)
    exemplars = {exemplar.trace_id.hex() for _, point in sink.points() for exemplar in point.exemplars}
    assert {f"{pid + 1:032x}" for pid in range(100)} == exemplars
