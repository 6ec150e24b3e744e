"""The documents that are written from declarations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter import discover
from exporter.settings import all_options
from exporter.web import stack_profiles
from tests.metric_names import declared, metrics
from tools.docs import pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in DOCS.rglob("*.md") if path.stem not in pages.PAGES),
]
"""The pages that people write."""
SERIES = re.compile(
    r"`((?:accel_exporter|accel_node|cufile|gen_ai|gpu|hw|llm|nccl|nixl|node|rdma|ucx)_[a-z0-9_]*[a-z0-9])[`{\[]"
)
FLAG = re.compile(
    r"`--((?:bpf|collector|compat|config|custom|dcgm|kubernetes|log|otlp|path|slurm|web)\.[a-z0-9.-]*[a-z0-9])"
)
SYSFS = {"hw_counters", "gpu_busy_percent"}
"""Files and folders of the kernel's that sound like series."""
MADE_OF_OTLP = {"hw_id", "hw_status_ratio"}
"""Names that stores make of attributes and metrics."""
PROFILES = {path.rpartition("/")[2] for path in stack_profiles.PATHS}


@pytest.mark.parametrize("page", pages.PAGES)
def test_current(page: str) -> None:
    """The committed pages are what the declarations give; `make docs` writes them."""
    assert pages.PAGES[page]() == (DOCS / f"{page}.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_series_are_declared(page: Path) -> None:
    """A series that a page names is one that the code declares, or a label, or a profile."""
    labels = {label for metric in metrics() for label in metric.labels} | {"gpu_uuid"}
    series = declared()
    families = {name.removesuffix(part) for name in series for part in ("_bucket", "_sum", "_count")}
    assert set() == set(SERIES.findall(page.read_text())) - series - families - labels - SYSFS - PROFILES - MADE_OF_OTLP


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_flags_are_declared(page: Path) -> None:
    """A flag that a page names is one that the program takes."""
    flags = {option.name for option in all_options(discover.collectors().values())}
    assert set() == set(FLAG.findall(page.read_text())) - flags


def test_every_alert_is_listed() -> None:
    """No file of rules is left out: each alert is listed once, with its runbook."""
    text = "".join(path.read_text() for path in (ROOT / "alerts").glob("*.yaml"))
    alerts = re.findall(r"^ +- alert: (\w+)$", text, re.MULTILINE)
    listed = re.findall(r"^\| \[(\w+)\]\(runbooks/(\w+)\.md\)", pages.alerts(), re.MULTILINE)
    assert sorted((alert, alert.lower()) for alert in alerts) == sorted(listed)


def test_every_metric_has_help() -> None:
    """Each metric is listed once, and its meaning is a sentence."""
    rows = [line.split(" | ") for line in pages.metrics().splitlines() if line.startswith("| `")]
    names = [row[0] for row in rows]

    assert sorted(set(names)) == sorted(names)
    assert [] == [row[0] for row in rows if not row[-1].endswith(". |")]


def test_help_stands_alone() -> None:
    """No help text refers to another, which /metrics does not have beside it, nor begins with a pronoun."""
    texts = {row.split(" | ")[0]: row.split(" | ")[-1] for row in pages.metrics().splitlines() if row.startswith("| `")}
    refers = re.compile(r"^(It|Its|They|This|That|These|Those|Such|Who|Of which)\b|\bThe same (by|for|as|of|in)\b")
    assert [] == [name for name, text in texts.items() if refers.search(text)]
