"""VictoriaMetrics, which scrapes the exporter and takes its OTLP: one node, twice, in the same words."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.views.otlp import ATTRIBUTES, OF_METRICS
from tests.backends import fetch
from tests.backends.busy import NODE, SECONDS, Busy, busy
from tests.backends.servers import VictoriaMetrics
from tests.support import free_port, until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(900),
    pytest.mark.evidence(feature="Prometheus pages", on="real software"),
    pytest.mark.evidence(feature="OTLP metrics", on="real software"),
]

ROOT = Path(__file__).parents[2]
RULES = sorted(path for path in (ROOT / "alerts").glob("*.yaml") if not path.stem.endswith(".test"))
SCRAPED = "scraped"
LABELS = {
    attribute.replace(".", "_"): label
    for names in (ATTRIBUTES, *OF_METRICS.values())
    for label, attribute in names.items()
}
OF_THE_WAY = {"job", "instance", "service_name", "service_instance_id"}
NAMES = {"hw_status_ratio": "hw_status"}
"""Of series that came by OTLP: VictoriaMetrics names the unit 1, which the conventions have for this metric."""

Series = frozenset[tuple[str, str]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, bpf_refusal: str) -> Iterator[tuple[Busy, VictoriaMetrics]]:
    if bpf_refusal:
        pytest.skip(bpf_refusal)
    programs, listen = fetch.programs(), f"127.0.0.1:{free_port()}"
    job = {"job_name": SCRAPED, "honor_labels": True, "static_configs": [{"targets": [listen]}]}
    config = {"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": [job]}
    folder = tmp_path_factory.mktemp("victoria")
    with VictoriaMetrics(folder / "data", programs=programs, config=config) as server:
        variables = {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{server.address}/opentelemetry/v1/metrics",
            "OTEL_METRIC_EXPORT_INTERVAL": "2000",
        }
        with busy(folder / "node", f"--web.listen-address={listen}", **variables) as node:
            node.work()
            yield node, server


def series(server: VictoriaMetrics, match: str) -> set[Series]:
    """Series by their labels with the name.

    Attributes of the semantic conventions are under the names of their labels, a bucket's bound in one spelling
    (VictoriaMetrics writes 0.000001 for 1e-06).
    """
    made = set()
    for it in server.series(match):
        labels = {LABELS.get(key, key): value for key, value in it.items() if key not in OF_THE_WAY}
        labels["__name__"] = NAMES.get(labels["__name__"], labels["__name__"])
        made.add(frozenset((key, str(float(value)) if key == "le" else value) for key, value in labels.items()))
    return made


def test_scrape_and_otlp_are_the_same_series(both: tuple[Busy, VictoriaMetrics]) -> None:
    """Names and labels are the same one by one, once what the node did has come both ways."""
    _, server = both
    only_scraped: set[Series] = set()
    only_pushed: set[Series] = set()

    def same() -> int:
        nonlocal only_scraped, only_pushed
        # a push has no page's limit
        scraped = series(server, f'{{job="{SCRAPED}", __name__!~"up|scrape_.*", collector!="page"}}')
        pushed = series(server, '{service_name="accel-exporter"}')
        only_scraped, only_pushed = scraped - pushed, pushed - scraped
        return len(scraped) if scraped == pushed else 0

    def different() -> str:
        return (
            f"only scraped, of {len(only_scraped)}: {sorted(map(sorted, only_scraped))[:5]}\n"
            f"only by OTLP, of {len(only_pushed)}: {sorted(map(sorted, only_pushed))[:5]}"
        )

    assert until(same, different, SECONDS) > 500


def test_otlp_names_the_node(both: tuple[Busy, VictoriaMetrics]) -> None:
    """The instance of what came by OTLP is the node, not the pod or the container."""
    _, server = both
    found = until(lambda: server.series('accel_exporter_build_info{service_name!=""}'), "it was pushed", SECONDS)
    assert [("accel-exporter", NODE)] == [(it["service_name"], it["service_instance_id"]) for it in found]


def test_vmalert_accepts_every_rule() -> None:
    """vmalert takes all files of rules; docs/alerts.md has what some of them mean to it."""
    files = [f"-rule={path}" for path in RULES]
    checked = subprocess.run(
        [fetch.programs() / "vmalert", "-dryRun", *files], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr
