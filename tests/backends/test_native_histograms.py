"""Prometheus 3 takes durations as native histograms, and the classic buckets of the same message where it is to;
VictoriaMetrics takes them from OTLP as exponential ones.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterator

import pytest

from exporter.starts import Starts
from tests import native_histograms as native
from tests.backends import fetch
from tests.backends.servers import Prometheus3, VictoriaMetrics
from tests.e2e.backend import get
from tests.support import until

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.evidence(feature="native histograms", on="real software"),
]

NATIVE, BOTH, CLASSIC = "native", "both", "classic"


class Native(Prometheus3):
    flags = (native.FLAG,)


def scrape(name: str, address: str, **words: object) -> dict[str, object]:
    return {"job_name": name, "static_configs": [{"targets": [address]}], **words}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus3]:
    """One that stores native histograms: those alone, with the classic buckets too, and of a job that takes text."""
    programs = fetch.programs()
    with native.served() as exporter:
        address = f"127.0.0.1:{exporter.port}"
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                scrape(NATIVE, address),
                scrape(BOTH, address, always_scrape_classic_histograms=True),
                scrape(CLASSIC, address, scrape_protocols=["OpenMetricsText1.0.0", "PrometheusText0.0.4"]),
            ],
        }
        with Native(programs, tmp_path_factory.mktemp("prometheus"), config) as made:
            until(lambda: len(made.query("count_over_time(up[1m]) > 12")) == 3, "a dozen scrapes of each job")
            yield made


@pytest.mark.parametrize("job", [NATIVE, BOTH])
def test_native_histograms(prometheus: Prometheus3, job: str) -> None:
    """Each count is in its bucket of schema 0, up to infinity, and quantiles are in the bucket of the true ones."""
    native.natively(prometheus, job)


@pytest.mark.parametrize("job", [BOTH, CLASSIC])
def test_classic_buckets(prometheus: Prometheus3, job: str) -> None:
    """Classic buckets are there if they are wanted beside the native ones, and where text is taken."""
    native.classically(prometheus, job)


def test_which_form_a_job_stores(prometheus: Prometheus3) -> None:
    """By default the native form replaces the classic one; other bounds stay classic in each job."""
    assert {} == prometheus.query(f'{{__name__=~"test_wait_seconds_.*", job="{NATIVE}"}}')
    assert {} == prometheus.query(f'test_wait_seconds{{job="{CLASSIC}"}}')
    for job in (NATIVE, BOTH, CLASSIC):
        native.of_convention(prometheus, job)


def test_both_forms_have_the_same_counts(prometheus: Prometheus3) -> None:
    """Of one scrape the native and the classic form have the same count and sum, and agree at every classic bound."""
    series = f'test_wait_seconds{{job="{BOTH}"}}'
    for function in ("count", "sum"):
        assert {} == prometheus.query(
            f'test_wait_seconds_{function}{{job="{BOTH}"}} != on (job, instance, n) histogram_{function}({series})'
        )
    for bound in prometheus.query(f'test_wait_seconds_bucket{{job="{BOTH}", le!="+Inf"}}'):
        le = dict(bound)["le"]
        share = f"round(histogram_fraction(0, {le}, {series}) * histogram_count({series}))"
        of_classic = f'test_wait_seconds_bucket{{job="{BOTH}", le="{le}"}}'
        assert 1 == len(prometheus.query(f"{of_classic} == on (job, instance, n) {share}")), le


def test_exponential_histograms_over_otlp(tmp_path_factory: pytest.TempPathFactory) -> None:
    """VictoriaMetrics has the counts of the exponential histograms in ranges, and explicit buckets of other bounds."""
    exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    from opentelemetry.sdk.metrics.export import MetricExportResult
    from opentelemetry.sdk.resources import Resource

    from exporter.views import otlp

    programs, folder = fetch.programs(), tmp_path_factory.mktemp("victoria")
    with VictoriaMetrics(folder, programs=programs, config={"scrape_configs": []}) as victoria:
        sender = exporters.OTLPMetricExporter(f"{victoria.address}/opentelemetry/v1/metrics")
        now = time.time()
        for request in otlp.metrics(native.Load().collect(), Resource({}), Starts(now - 60), now, exponential=True):
            assert sender.export(request) is MetricExportResult.SUCCESS

        def values(expr: str) -> dict[str, float]:
            query = urllib.parse.urlencode({"query": expr, "latency_offset": "1ms"})
            answer = json.loads(get(f"{victoria.address}/api/v1/query?{query}") or "{}")
            found = answer["data"]["result"]
            return {it["metric"].get("vmrange") or it["metric"].get("le", ""): float(it["value"][1]) for it in found}

        until(lambda: values("test_wait_seconds_count"), "the histogram is stored", 60)
        assert {"": len(native.TIMES_NS)} == values("test_wait_seconds_count")
        ranges = values("test_wait_seconds_bucket")
        assert len(native.TIMES_NS) == sum(ranges.values())
        counted = native.counted(native.TIMES_NS)
        upper = {float(text.partition("...")[2]): count for text, count in ranges.items()}
        expected = dict(zip(counted.bounds[1:], counted.counts[1:-1], strict=True))
        rounded = {float(f"{bound:.3e}"): count for bound, count in expected.items() if count}
        assert rounded == upper
        assert {"0.1": 1, "0.25": 3, "1": 6, "+Inf": 10} == values("gen_ai_server_time_to_first_token_seconds_bucket")
        assert 2 == max(values("test_long_seconds_bucket").values())
