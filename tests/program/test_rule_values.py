"""Effects of values on the rules: names, severities, pending times and thresholds, in the chart and in plain rules."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.program.test_alerts import ALERTS, RECORDED, ROOT, needs_promtool, promtool

THRESHOLDS = yaml.safe_load((ROOT / "deploy/helm/accel-exporter/files/thresholds.yaml").read_text())
EACH = [(alert, name) for alert, names in THRESHOLDS.items() for name in names]

pytestmark = [
    pytest.mark.evidence(feature="alert and recording rules", on="real software"),
    pytest.mark.skipif(not (ROOT / ".venv/bin/helm").exists(), reason="helm is not in .venv (make setup-dev)"),
]


def made(folder: Path, values: str = "", *links: str) -> subprocess.CompletedProcess[str]:
    """The run of `make rules` with these values into the folder."""
    (folder / "values.yaml").write_text(values)
    command = ["make", "-s", "rules", f"RULES_FOLDER={folder}", f"VALUES={folder}/values.yaml", *links]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def rules(folder: Path, values: str = "", *links: str) -> list[dict[str, Any]]:
    """The rules that `make rules` writes."""
    ran = made(folder, values, *links)
    assert 0 == ran.returncode, ran.stderr
    groups = yaml.safe_load((folder / "accel-exporter.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def by_name(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in found if "alert" in rule}


def test_no_values_change_nothing(tmp_path: Path) -> None:
    """Without values, and with those in deploy/rules.yaml, the rules are those of alerts/."""
    shipped = (ROOT / "deploy/rules.yaml").read_text()
    for values in ("", shipped, f"---\n{shipped}"):
        found = rules(tmp_path, values)
        assert ALERTS == by_name(found)
        assert [*RECORDED.values()] == [rule for rule in found if "record" in rule]


@pytest.mark.parametrize("end", ["", "/"])
def test_links(tmp_path: Path, end: str) -> None:
    """Each link begins with the address that was given, and the path is no annotation any more."""
    links = (f"RUNBOOKS=https://example.com/runbooks{end}", f"GRAFANA=https://grafana.example.com{end}")
    for rule in by_name(rules(tmp_path, "", *links)).values():
        assert re.match(r"https://example\.com/runbooks/\w+\.md$", rule["annotations"]["runbook_url"])
        assert re.match(r"https://grafana\.example\.com/d/\w", rule["annotations"]["dashboard_url"])
        assert not {"runbook", "dashboard"} & {*rule["annotations"]}


def test_links_to_a_site(tmp_path: Path) -> None:
    """Pages of the site that `make site` builds have another suffix than those of the source tree."""
    links = ("RUNBOOKS=https://example.com/runbooks.md", "RUNBOOK_SUFFIX=.html")
    found = by_name(rules(tmp_path, "", *links))
    wanted = {it: f"https://example.com/runbooks.md/{it.lower()}.html" for it in ALERTS}
    assert wanted == {it: rule["annotations"]["runbook_url"] for it, rule in found.items()}


def test_a_path_is_no_link(tmp_path: Path) -> None:
    """Without a known address an alert has a path, under a name that no notification makes a link of."""
    for rule in [*ALERTS.values(), *by_name(rules(tmp_path)).values()]:
        assert not any(name.endswith("_url") for name in rule["annotations"])
        assert (ROOT / rule["annotations"]["runbook"]).is_file()


@needs_promtool
def test_prometheus_takes_the_file(tmp_path: Path) -> None:
    rules(tmp_path)
    checked = promtool("check", "rules", tmp_path / "accel-exporter.yaml")
    assert 0 == checked.returncode and "lint error" not in checked.stdout + checked.stderr, checked.stdout


@pytest.mark.parametrize(("alert", "name"), EACH)
def test_a_threshold_is_in_its_rule_once(alert: str, name: str) -> None:
    """The default of a threshold is a number of the expression, and of no other threshold of the alert."""
    number = THRESHOLDS[alert][name]
    found = re.findall(rf" {re.escape(number)}(?= |\)|$)", ALERTS[alert]["expr"])
    assert found and (len(found) == 1 or (alert, name) in TWICE)
    assert 1 == list(THRESHOLDS[alert].values()).count(number)


TWICE = {
    ("GpuNvlinkErrorsRising", "perMinute"),
    ("LlmFirstTokenSlow", "ratio"),
    ("LlmTokensSlow", "ratio"),
    ("NcclHang", "seconds"),
}
"""Thresholds for two series, where a GPU has one of them, for two windows, or with and without a label."""


def test_each_threshold_changes_its_rule(tmp_path: Path) -> None:
    """A changed threshold is in the expression in place of its default, and in the text; the rest stays."""
    changed = {it: {"thresholds": {name: 4000 + n for n, name in enumerate(THRESHOLDS[it])}} for it in THRESHOLDS}
    found = by_name(rules(tmp_path, yaml.safe_dump({"alerts": changed})))
    for alert, rule in ALERTS.items():
        expr, text = rule["expr"], rule["annotations"]["description"]
        for name, number in changed.get(alert, {}).get("thresholds", {}).items():
            default = THRESHOLDS[alert][name]
            expr = re.sub(rf"(?<= ){re.escape(default)}(?= |\)|$)", str(number), expr)
            text = text.replace(f'{{{{ "{default}"', f'{{{{ "{number}"')
        assert (expr, text) == (found[alert]["expr"], found[alert]["annotations"]["description"])
        assert (alert in THRESHOLDS) is (expr != rule["expr"])


def test_thresholds_may_be_exchanged(tmp_path: Path) -> None:
    """A threshold that gets another's default is not taken for the other."""
    given = {"symbolErrors": 5, "recoveries": 10, "receiveErrorsPerSecond": 120}
    values = {"alerts": {"RdmaLinkErrorsRising": {"thresholds": given}}}
    expr = by_name(rules(tmp_path, yaml.safe_dump(values)))["RdmaLinkErrorsRising"]["expr"]
    assert [" 5", " 10", " 0", " 120"] == re.findall(r"(?<= >) \d+", expr)


def test_an_alert_is_changed(tmp_path: Path) -> None:
    """Name, severity, pending time with its text, labels, annotations and the scrape job are those of the values."""
    values = """
job: gpu-nodes
disabled: [NodeRebooted]
alerts:
  AccelExporterDown:
    name: ExporterDown
    severity: info
    for: 20m
    labels: {team: ml}
    annotations: {owner: "{{ $labels.instance }}"}
"""
    found = by_name(rules(tmp_path, values))
    assert {*ALERTS} - {"NodeRebooted", "AccelExporterDown"} | {"ExporterDown"} == {*found}
    rule = found["ExporterDown"]
    assert 'up{job="gpu-nodes"} == 0' == rule["expr"]
    assert ("20m", {"severity": "info", "team": "ml"}) == (rule["for"], rule["labels"])
    assert "has not answered a scrape for 20m;" in rule["annotations"]["description"]
    assert "{{ $labels.instance }}" == rule["annotations"]["owner"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("alerts: {NcclHung: {severity: info}}", "prometheusRule.alerts: there is no alert NcclHung"),
        ("disabled: [NcclHung]", "prometheusRule.disabled: there is no alert NcclHung"),
        ("alerts: {NcclHang: {thresholds: {minutes: 3}}}", "there is no minutes; there is: seconds"),
        ("alerts: {GpuLost: {thresholds: {seconds: 3}}}", "GpuLost.thresholds: there is no seconds; there is: none"),
        ("alerts: {NcclHang: {severty: info}}", "severty"),
        ("alerts: {NcclHang: {severity: page}}", "severity"),
        ("alerts: {NcclHang: {for: soon}}", "for"),
        ("alerts: {NcclHang: {thresholds: {seconds: much}}}", "seconds"),
        ("runbooks: docs/runbooks/", "runbooks"),
        ("grafana: grafana.example.com", "grafana"),
        ("alert: {}", "alert"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, values: str, expected: str) -> None:
    """One error names what does not exist; the file that was there stays."""
    (tmp_path / "accel-exporter.yaml").write_text("groups: []\n")
    ran = made(tmp_path, values)
    assert 0 != ran.returncode
    assert expected in ran.stderr and 1 == ran.stderr.count("Error: ")
    assert "groups: []\n" == (tmp_path / "accel-exporter.yaml").read_text()


def test_texts_that_name_a_parameter_follow_it() -> None:
    """A text that names the pending time or a threshold has it in the form that values change."""
    spelt = re.compile(r"\b[Ff]or (?:two|five|ten|an?|half an?|\d+) (?:minutes?|hours?|day)\b")
    for alert, rule in ALERTS.items():
        description = rule["annotations"]["description"]
        assert not spelt.search(description) or (alert, spelt.findall(description)[0]) in WINDOWS, description
        for number in re.findall(r'\{\{ "([\d.]+)"', description):
            assert number in THRESHOLDS[alert].values()


WINDOWS = {
    ("GpuCountFell", "for two hours"),
    ("GpuRecoveryActionNeeded", "for a day"),
    ("NcclRankBehind", "For ten minutes"),
    ("RdmaPciStalled", "For ten minutes"),
}
"""Ranges of expressions."""
