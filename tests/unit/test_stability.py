"""Guarantees of docs/metrics.md for names."""

from __future__ import annotations

from pathlib import Path

import yaml

from exporter import stability
from exporter.stability import Stability
from exporter.views import prometheus
from tests.metric_names import ALERTS, metrics, used
from tools.docs import pages

GRADES = {grade.value for grade in Stability}


def test_page_has_a_stability_for_each() -> None:
    """Each metric of the exporter's own has one, as declared; those of another exporter have none."""
    rows = [
        line.split(" | ") for line in pages.metrics().splitlines() if line.startswith("| `") and line.count(" | ") > 3
    ]
    shown = {row[0].strip("| `"): row[3] for row in rows}
    grades = {prometheus.name(metric): stability.of(metric) for metric in metrics()}
    assert {name: grade.value if grade else "" for name, grade in grades.items()} == shown
    assert {*shown.values()} - {""} <= GRADES
    assert {"stable", "experimental"} <= {*shown.values()}
    assert all(grades[name] for name in grades if not name.startswith(("DCGM_", "dcgm_", "node_infiniband_")))


def test_names_of_stable_metrics_are_declared() -> None:
    """The list of stable metrics has no name that a metric no longer has."""
    assert set() == stability.STABLE - {metric.name for metric in metrics() if not metric.literal}


def test_shipped_rules_read_what_stays() -> None:
    """Alerts and recording rules, which users copy, read stable metrics alone."""
    series = _read_by_rules()
    read = [(name, stability.of(metric)) for metric in metrics() if (name := prometheus.name(metric)) in series]
    assert len(read) > 100
    assert [] == [name for name, grade in read if grade is not Stability.STABLE]


def _read_by_rules() -> set[str]:
    exprs = [
        rule["expr"]
        for path in _rules()
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    series = set[str]().union(*map(used, exprs))
    return series | {name.removesuffix(part) for name in series for part in ("_bucket", "_sum", "_count")}


def _rules() -> list[Path]:
    return [path for path in ALERTS.glob("*.yaml") if not path.name.endswith(".test.yaml")]
