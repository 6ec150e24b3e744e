"""Every cause has its alerts, and every alert that is named exists."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from exporter.faults import categories
from exporter.faults.signals import KERNEL_LOG
from exporter.faults.transitions import CONDITIONS
from exporter.faults.xid import catalog
from tools.docs import coverage

ALERTS = Path(__file__).parents[3] / "alerts"


def alerts() -> dict[str, str]:
    """Expressions by alert."""
    files = [path for path in ALERTS.glob("*.yaml") if not path.stem.endswith(".test")]
    groups = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"] if "alert" in rule}


def test_every_row_is_covered() -> None:
    """Each of the 18 rows has an alert that exists, and a blind spot."""
    assert [it.label for it in categories.CATEGORIES] == list(coverage.COVERAGE)
    assert set() == {name for it in coverage.COVERAGE.values() for name in it.alerts} - alerts().keys()
    assert all(it.alerts and it.blind for it in coverage.COVERAGE.values())


def test_another_list_of_causes_is_covered() -> None:
    """Each of the ten causes of another fleet is of categories here, and fires alerts that exist."""
    assert 10 == len({it.name for it in coverage.ELSEWHERE})
    assert {label for it in coverage.ELSEWHERE for label in it.categories} <= coverage.COVERAGE.keys()
    assert set() == {name for it in coverage.ELSEWHERE for name in it.alerts} - alerts().keys()
    assert all(it.categories and it.alerts for it in coverage.ELSEWHERE)


def test_every_signal_has_an_alert() -> None:
    """No fault of the node is counted without a rule that fires on the fault, or on the metric behind it."""
    patterns = re.findall(r'signal=~?"([^"]+)"', " ".join(alerts().values()))
    looked_for = re.compile("|".join(patterns))

    own = {it.name: it.alert for it in CONDITIONS if it.alert}
    assert set() == set(own.values()) - alerts().keys()
    assert [] == [
        it.name for it in (*KERNEL_LOG, *CONDITIONS) if bool(looked_for.fullmatch(it.name)) is (it.name in own)
    ]


def test_categories_of_xids_are_rows() -> None:
    """The categories of Xids are rows of the table, but for the three that docs/faults.md names."""
    rows = {it.label for it in categories.CATEGORIES}
    assert {"gpu_memory", "information", "unknown"} == set(catalog.CATEGORIES) - rows
