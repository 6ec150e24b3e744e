"""A share is never shown as more than all, and no legend or row has a hole where a node lacks a label."""

from __future__ import annotations

import re

import pytest

from dashboards.queries import Panel, panels
from tests.metric_names import used

PANELS = list(panels())
EACH = pytest.mark.parametrize("panel", PANELS, ids=[f"{it.board}-{it.json['id']}" for it in PANELS])
MORE_THAN_ALL = re.compile(
    r"in cores|threads? .*100 %|100 % means several|200 %|several threads|blocked thread|in parts of"
)
"""Words in the description of a panel that may show more than 100 %."""
SOMETIMES = {"namespace", "pod", "container", "slurm_job_id", "command", "comm", "switch", "workload"}
"""Labels that series of some nodes lack."""


def shares(panel: Panel) -> list[str]:
    """The expressions of the panel, or of the columns of a table, that are percentages."""
    defaults = panel.json.get("fieldConfig", {}).get("defaults", {})
    overrides = panel.json.get("fieldConfig", {}).get("overrides", [])
    named = {
        it["matcher"]["options"]
        for it in overrides
        for setting in it["properties"]
        if (setting["id"], setting["value"]) == ("unit", "percentunit")
    }
    whole = defaults.get("unit") == "percentunit"
    return [it["expr"] for it in panel.json["targets"] if whole or it.get("legendFormat") in named]


@EACH
def test_a_share_is_all_at_most(panel: Panel) -> None:
    """A percentage is a gauge that is a ratio, is limited to 1, or its panel describes of what there may be more."""
    for expr in shares(panel):
        plain = not re.search(r"\b(sum|rate)\b", expr)
        ratios = plain and all(re.search(r"(_ratio|^up)$", name) for name in used(expr))
        means = re.search(r"^avg\b[^/]*_ratio", expr)
        limited = re.search(r"clamp_max\(|_(?:max_entries|series_limit)\b", expr)
        assert ratios or means or limited or MORE_THAN_ALL.search(panel.json["description"]), expr


@EACH
def test_a_line_begins_at_nothing(panel: Panel) -> None:
    """Lines are drawn from 0 on, or below where values are: a rise of a thousandth does not fill the panel."""
    if panel.kind == "timeseries":
        least = panel.json["fieldConfig"]["defaults"]["min"]
        assert least == 0 or (least < 0 and "below zero" in panel.json["description"])


@EACH
def test_a_legend_without_a_label_has_no_hole(panel: Panel) -> None:
    """Nothing but a blank stands beside a label that some series lack."""
    for target in panel.json["targets"]:
        legend = target.get("legendFormat", "")
        for label in SOMETIMES:
            assert not re.search(rf"[^\s]\{{\{{{label}\}}\}}|\{{\{{{label}\}}\}}[^\s]", legend), legend
