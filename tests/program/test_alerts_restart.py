"""No alert on a fault resolves and pages again because the exporter was restarted."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.program.test_alerts import ALERTS, ROOT, promtool, run_scenarios

STEMS = ("faults", "fleet", "gpu", "xid", "rdma")
MINUTES = 3
"""For how long nothing can be scraped."""
_PIECE = re.compile(r"(_|stale|-?[\d.]+(?:e[+-]?\d+)?)(?:([+-][\d.]+))?(?:x(\d+))?", re.IGNORECASE)


def scenarios(stem: str) -> list[dict[str, Any]]:
    """The scenarios of one alert each. Everything is text: 0x60 is no number here."""
    tests = yaml.load((ROOT / "alerts" / f"{stem}.test.yaml").read_text(), yaml.BaseLoader)["tests"]
    return [test for test in tests if test["name"] in ALERTS]


def values(text: str) -> Iterator[str]:
    """The samples that promtool's notation stands for, one by one."""
    for piece in text.split():
        found = _PIECE.fullmatch(piece)
        assert found, piece
        first, step, times = found.groups()
        if times is None:
            yield first
        elif first in ("_", "stale"):
            yield from (first for _ in range(int(times)))
        else:
            yield from (f"{float(first) + number * float(step or 0):g}" for number in range(int(times) + 1))


def restarted(scenario: dict[str, Any]) -> dict[str, Any]:
    """The scenario with a gap where its alert fires, in the midst of which it is expected to fire as before."""
    check = scenario["promql_expr_test"][1]
    at = int(check["eval_time"].removesuffix("m"))
    series = []
    for one in scenario["input_series"]:
        samples = list(values(one["values"]))
        if len(samples) > at + 1:
            samples[at + 1 : at + 1 + MINUTES] = ["stale", *["_"] * (MINUTES - 1)]
        series.append(one | {"values": " ".join(samples)})
    names = [dict(re.findall(r'(\w+)="([^"]*)"', it["labels"])) for it in check["exp_samples"]]
    expr = f'count(ALERTS{{alertstate="firing",alertname="{names[0]["alertname"]}"}})'
    expected = [{"labels": "{}", "value": len(names)}]
    tests = [
        {"expr": expr, "eval_time": f"{minute}m", "exp_samples": expected} for minute in range(at, at + MINUTES + 3)
    ]
    return scenario | {"input_series": series, "promql_expr_test": tests}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not installed")
@pytest.mark.parametrize("stem", STEMS)
def test_a_restart_does_not_resolve(stem: str, tmp_path: Path) -> None:
    """Each alert that fires goes on while the exporter is gone for three minutes, and after."""
    checked = run_scenarios(stem, map(restarted, scenarios(stem)), tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not installed")
def test_a_cordon_outlasts_kube_state_metrics(tmp_path: Path) -> None:
    """NodeCordoned holds while kube-state-metrics starts on another node, and ends when the node is schedulable."""
    series = 'kube_node_spec_unschedulable{{job="kube-state-metrics",instance="{}",node="gpu-1"}}'
    test = {
        "interval": "1m",
        "input_series": [
            {"series": series.format("10.0.0.8:8080"), "values": "1x20 stale"},
            {"series": series.format("10.0.0.9:8080"), "values": "_x25 1x20 0x20"},
        ],
        "promql_expr_test": [
            {
                "expr": 'sum(count_over_time(ALERTS{alertname="NodeCordoned",instance="gpu-1"}[2399s]))',
                "eval_time": "41m",
                "exp_samples": [{"labels": "{}", "value": 40}],
            },
            {"expr": "ALERTS", "eval_time": "50m", "exp_samples": []},
        ],
    }
    rules = str(ROOT / "deploy/alertmanager/cordoned.yaml")
    file = tmp_path / "cordoned.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [rules], "evaluation_interval": "1m", "tests": [test]}))
    got = promtool("test", "rules", file)
    assert 0 == got.returncode, got.stdout + got.stderr
