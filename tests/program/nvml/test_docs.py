"""docs/gpu.md has the source of every metric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter.model import Metric
from exporter.nvml import metrics, supervisor
from exporter.views import prometheus

PAGE = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text()
NAMES = sorted(
    prometheus.name(it)
    for it in vars(metrics).values()
    if isinstance(it, Metric) and it.name.startswith(("hw.", "gpu."))
)


@pytest.mark.parametrize("name", NAMES)
def test_every_metric(name: str) -> None:
    """Each metric has a place in the table of sources."""
    suffixed = name.removesuffix("_max") if name.startswith("gpu_pcie") else name

    assert re.search(rf"^\|[^|]*`{suffixed}`", PAGE, re.MULTILINE)


@pytest.mark.parametrize("reason", supervisor.REASONS)
def test_every_reason(reason: str) -> None:
    """Each reason of a restart is explained."""
    assert re.search(rf"^\| [^|]*`{reason}`", PAGE, re.MULTILINE)
