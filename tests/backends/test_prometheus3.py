"""Prometheus 3: every format that it can negotiate, the shipped rules, and its promtool."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import fetch
from tests.backends.busy import SECONDS, Busy, busy
from tests.backends.servers import Prometheus3
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(900),
    pytest.mark.evidence(feature="Prometheus pages", on="real software"),
    pytest.mark.evidence(feature="alert and recording rules", on="real software"),
]

ROOT = Path(__file__).parents[2]
RULES = sorted(path for path in (ROOT / "alerts").glob("*.yaml") if not path.stem.endswith(".test"))
TESTS = sorted((ROOT / "alerts").glob("*.test.yaml"))
PROTOCOLS = (
    "PrometheusText0.0.4",
    "PrometheusText1.0.0",
    "OpenMetricsText0.0.1",
    "OpenMetricsText1.0.0",
    "PrometheusProto",
)
OF_THE_SCRAPE = {"job", "instance"}


def scrape(name: str, address: str, *protocols: str) -> dict[str, object]:
    job: dict[str, object] = {
        "job_name": name,
        "honor_labels": True,
        "fallback_scrape_protocol": "PrometheusText0.0.4",
        "always_scrape_classic_histograms": True,  # of a message with both forms it stores only the native one, or none
        "static_configs": [{"targets": [address]}],
    }
    return job | ({"scrape_protocols": list(protocols)} if protocols else {})


@pytest.fixture(scope="module")
def programs() -> Path:
    return fetch.programs()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, bpf_refusal: str, programs: Path) -> Iterator[Busy]:
    if bpf_refusal:
        pytest.skip(bpf_refusal)
    with busy(tmp_path_factory.mktemp("node")) as made:
        made.work()
        yield made


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, node: Busy, programs: Path) -> Iterator[Prometheus3]:
    """A Prometheus that scrapes the exporter once for each protocol, and once with the default protocols."""
    address = node.exporter.address
    config = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": [scrape("accel-exporter", address), *(scrape(it, address, it) for it in PROTOCOLS)],
    }
    with Prometheus3(programs, tmp_path_factory.mktemp("prometheus"), config) as made:
        yield made


def test_series_are_the_same_in_every_format(prometheus: Prometheus3) -> None:
    """Of one page Prometheus stores the same series, whichever protocol it prefers; processes come and go meanwhile."""
    jobs = ("accel-exporter", *PROTOCOLS)

    def series(job: str) -> frozenset[frozenset[tuple[str, str]]]:
        stored = prometheus.query(f'{{job="{job}", __name__!~"up|scrape_.*|ALERTS.*|.*:.*"}}')
        return frozenset(frozenset(it for it in labels if it[0] not in OF_THE_SCRAPE) for labels in stored)

    def same() -> int:
        found = {series(job) for job in jobs}
        return len(found.pop()) if len(found) == 1 else 0

    def different() -> str:
        found = {job: series(job) for job in jobs}
        every = frozenset[frozenset[tuple[str, str]]]().union(*found.values())
        missing = {job: Counter(dict(it)["__name__"] for it in every - own) for job, own in found.items()}
        return f"missing of {len(every)} series: {missing}"

    assert until(same, different, SECONDS) > 500
    assert set(jobs) == {dict(labels)["job"] for labels, up in prometheus.query("up").items() if up == 1}


def test_every_rule_is_evaluated(prometheus: Prometheus3) -> None:
    """Each recording and alert rule is healthy, and the Xid's alert fires."""

    def evaluated() -> bool:
        return all(rule["health"] == "ok" for rule in prometheus.rules())

    until(evaluated, "every rule is evaluated without an error", SECONDS)
    assert len(prometheus.rules()) > 100
    until(lambda: _firing(prometheus, "GpuMemoryFault"), "GpuMemoryFault fires", SECONDS)


def _firing(prometheus: Prometheus3, name: str) -> bool:
    return any(it["state"] == "firing" for it in prometheus.rules() if it["name"] == name)


def test_rules_are_valid(programs: Path) -> None:
    """promtool 3 finds nothing wrong with any file of rules."""
    checked = promtool(programs, "check", "rules", "--lint=all", "--lint-fatal", *RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("tests", TESTS, ids=lambda path: path.name)
def test_rules_behave(programs: Path, tests: Path) -> None:
    """Prometheus 3 evaluates the scenarios of the rules' tests as they expect."""
    checked = promtool(programs, "test", "rules", tests)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_page_is_valid(programs: Path, node: Busy) -> None:
    """promtool 3 has no complaint about the page."""
    page = node.exporter.get("/metrics")[1]
    checked = subprocess.run(
        [programs / "promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60
    )
    assert (0, "", "") == (checked.returncode, checked.stdout, checked.stderr)


def promtool(programs: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([programs / "promtool", *arguments], capture_output=True, text=True, timeout=300)
