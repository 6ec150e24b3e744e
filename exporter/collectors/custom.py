"""Probes that this site defines: a folder of C files for bcc, each with a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporter.custom import metrics
from exporter.model import Collector, Metric
from exporter.node import Node
from exporter.options import Option, Value
from exporter.series import LEAST, LIMIT_HELP, MOST

DIR, PYTHON, HEADERS, INTERVAL = "custom.dir", "custom.python", "custom.kernel-headers", "custom.interval"
SPANS, SERIES = "custom.spans-per-second", "custom.series-limit"
OPTIONS = (
    Option(DIR, "", "Folder of custom probes: NAME.c for bcc with NAME.yaml. Empty: none.", "custom", metavar="DIR"),
    Option(
        PYTHON,
        "/usr/bin/python3",
        "Python interpreter with the bcc module, which compiles custom probes.",
        "custom",
        metavar="FILE",
        path=True,
    ),
    Option(HEADERS, "", "Folder of the kernel's headers. Empty: /lib/modules/RELEASE/build.", "custom", metavar="DIR"),
    Option(
        INTERVAL,
        5.0,
        "Interval between readings of the maps of custom probes.",
        "custom",
        duration=True,
        least=0.1,
        most=3600,
    ),
    Option(
        SPANS, 100, "Maximum number of spans a second of each probe; further spans are dropped and counted.", "custom"
    ),
    Option(SERIES, 5_000, LIMIT_HELP.replace("series", "series of each probe", 1), "custom", least=LEAST, most=MOST),
)
METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))


def configure(values: Mapping[str, Value]) -> Mapping[str, Any] | None:
    """Return the settings, with a fingerprint of the files, so that a reload follows them; None without a folder."""
    if not values[DIR]:
        return None
    from exporter.custom import folder

    return {**values, "files": folder.fingerprint(Path(str(values[DIR])))}


def create(node: Node) -> Collector:
    from exporter.custom.collector import Custom  # for those with a folder only

    return Custom(node)
