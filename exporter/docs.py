"""Prints docs/metrics.md or docs/flags.md from what the code declares: `python -m exporter.docs metrics|flags`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

import exporter
from exporter import discover
from exporter.model import PROCESS_LABELS, Metric
from exporter.options import Option
from exporter.settings import GROUPS, all_options
from exporter.views import prometheus

_NOTICE = "<!-- Written by `make docs` from the declarations in exporter/; do not edit. -->"


def metrics() -> str:
    """Every metric, collector by collector, then those of the exporter itself."""
    found = discover.collectors()
    sections = [(f"{name}: {collector.help.rstrip('.')}", collector.metrics) for name, collector in found.items()]
    listed = {metric for _, group in sections for metric in group}
    own = dict.fromkeys(metric for module in _modules() for metric in discover.metrics(module) if metric not in listed)
    process = ", ".join(f"`{label}`" for label in PROCESS_LABELS)
    parts = [
        _NOTICE,
        "# Metrics",
        f"*process* stands for those of these labels that are known: {process}. A label without a value is left out.",
    ]
    for title, group in [*sections, ("The exporter itself", tuple(own))]:
        parts.append(f"## {title}")
        rows = [_metric_row(metric) for metric in sorted(group, key=prometheus.name)]
        parts.append(_table(("Prometheus name", "OpenTelemetry name", "type", "labels", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def flags() -> str:
    """Every setting with its default, group by group."""
    options = all_options(discover.collectors().values())
    parts = [
        _NOTICE,
        "# Flags",
        "Each is also a variable (`--log.level` is `ACCEL_EXPORTER_LOG_LEVEL`) and a key of the YAML file that "
        "`--config.file` names, nested at the dots (`log: {level: debug}`). A flag wins over a variable, that over the "
        "file. `--no-NAME` switches off what `--NAME` switches on; in the file a collector is `cuda: false`, or "
        "`cuda: {enabled: false, …}` beside its own flags. Lists are separated by commas.",
    ]
    for group, title in GROUPS.items():
        rows = [_flag_row(option) for option in options if option.group == group]
        parts += [f"## {title}", _table(("flag", "default", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def _metric_row(metric: Metric) -> tuple[str, ...]:
    labels = ["*process*"] * metric.process + [f"`{label}`" for label in metric.labels]
    opentelemetry = "" if metric.literal else f"`{metric.name}`"
    return f"`{prometheus.name(metric)}`", opentelemetry, metric.kind.value, ", ".join(labels), metric.help


def _flag_row(option: Option) -> tuple[str, ...]:
    choices = f" ({', '.join(option.choices)})" if option.choices else ""
    return f"`--{option.name}`", f"`{option.shown}`" if option.shown else "", option.help + choices


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _modules() -> Iterable[ModuleType]:
    for module in pkgutil.walk_packages(exporter.__path__, "exporter."):
        if not module.name.endswith("__main__"):
            yield importlib.import_module(module.name)


if __name__ == "__main__":
    print({"metrics": metrics, "flags": flags}[sys.argv[1]](), end="")
