"""Names of series: those that the code declares, and those that a PromQL expression uses."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import exporter
from exporter import discover
from exporter.model import Kind, Metric
from exporter.views import prometheus

ALERTS = Path(__file__).parents[1] / "alerts"
SCRAPED = {"up", "scrape_duration_seconds", "scrape_samples_scraped", "ALERTS"}
"""Prometheus adds these to every target, and ALERTS to every alert."""

_WORDS = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\w)(?!\s*\()")
_OPERATORS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"}


def declared() -> set[str]:
    """Names of all series that the exporter's Metric constants stand for."""
    return {series for metric in metrics() for series in series_of(metric)}


def recorded() -> set[str]:
    """Names of the series that the shipped recording rules make."""
    rules = [path.read_text() for path in ALERTS.glob("*.yaml") if not path.name.endswith(".test.yaml")]
    return {name for text in rules for name in re.findall(r"- record: (\S+)", text)}


def metrics() -> list[Metric]:
    """Every Metric constant in the exporter's modules."""
    modules = [importlib.import_module(info.name) for info in pkgutil.walk_packages(exporter.__path__, "exporter.")]
    return [metric for module in modules for metric in discover.metrics(module)]


def used(expr: str) -> set[str]:
    """Names of the series in a PromQL expression."""
    bare = re.sub(r'"[^"]*"', "", expr)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\b(offset\s+)?[0-9][0-9a-z.]*\b", "", bare)
    return set(_WORDS.findall(bare)) - _OPERATORS


def series_of(metric: Metric) -> list[str]:
    """Names of the series of a metric."""
    name = prometheus.name(metric)
    if metric.kind is Kind.HISTOGRAM:
        return [f"{name}_bucket", f"{name}_sum", f"{name}_count"]
    return [name]
