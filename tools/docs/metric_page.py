"""docs/metrics.md, from the declarations of metrics and their stability."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType

import exporter
from exporter import discover, stability
from exporter.model import PROCESS_LABELS, Metric
from exporter.views import prometheus

_HEAD = """
*process* stands for these labels, as far as they are known: %(process)s. A label without a value is left out.

Stability covers name, type, unit and labels:

- `stable`: every metric that the shipped alerts and recording rules read, and the metrics in most use. A release that
  changes such a metric keeps the former name behind a flag; the next release drops the former name. Any release may add
  labels and values of labels.
- `experimental`: any release may change or remove the metric; CHANGELOG.md has each change.
- `deprecated`: only behind a flag, and removed in the next release; the meaning has the new name.

`hw_*` and `gen_ai_*` are names of OpenTelemetry's semantic conventions, which are in development there. Other projects
define the names of other exporters (`--compat.dcgm`, `--compat.node-exporter`), and may change them.
"""


def page(notice: str, table: Callable[[Sequence[str], Iterable[Sequence[str]]], str]) -> str:
    """Return the page of every metric, collector by collector, then the metrics of the exporter itself."""
    found = discover.collectors()
    sections = [(f"{name}: {collector.help.rstrip('.')}", collector.metrics) for name, collector in found.items()]
    listed = {metric for _, group in sections for metric in group}
    own = dict.fromkeys(metric for metric in declared() if metric not in listed)
    process = ", ".join(f"`{label}`" for label in PROCESS_LABELS)
    parts = [notice, "# Metrics", _HEAD.strip() % {"process": process}]
    for title, group in [*sections, ("The exporter itself", tuple(own))]:
        rows = [_row(metric) for metric in sorted(group, key=prometheus.name)]
        head = ("Prometheus name", "OpenTelemetry name", "type", "stability", "labels", "meaning")
        parts += [f"## {title}", table(head, rows)]
    return "\n\n".join(parts) + "\n"


def declared() -> Iterable[Metric]:
    """Yield the metrics of every module of the exporter."""
    for module in _modules():
        yield from discover.metrics(module)


def _modules() -> Iterable[ModuleType]:
    for module in pkgutil.walk_packages(exporter.__path__, "exporter."):
        if not module.name.endswith("__main__"):
            yield importlib.import_module(module.name)


def _row(metric: Metric) -> tuple[str, ...]:
    grade = stability.of(metric)
    if grade is None:
        return f"`{metric.name}`", "", metric.kind.value, "", "*another exporter's*", metric.help
    labels = ["*process*"] * metric.process + [f"`{label}`" for label in metric.labels]
    name = "" if metric.literal else f"`{metric.name}`"
    return (
        f"`{prometheus.name(metric)}`",
        name,
        metric.kind.value,
        grade.value,
        ", ".join(labels),
        metric.help,
    )
