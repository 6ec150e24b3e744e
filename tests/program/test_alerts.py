"""The alert rules: every one has its tests, which `make check-rules` runs, and what a person can do."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.metric_names import SCRAPED, declared, used

pytestmark = pytest.mark.evidence(feature="alert and recording rules", on="real software")

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
STEMS = sorted(path.stem for path in (ROOT / "alerts").glob("*.yaml") if not path.stem.endswith(".test"))

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not installed"
)


@functools.cache
def rules(stem: str, kind: str = "alert") -> list[dict[str, Any]]:
    """The rules of a file that alert, or those that record."""
    groups = yaml.safe_load((ROOT / "alerts" / f"{stem}.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


@functools.cache
def scenarios(stem: str) -> dict[str, dict[str, Any]]:
    text = (ROOT / "alerts" / f"{stem}.test.yaml").read_text()
    return {test["name"]: test for test in yaml.safe_load(text)["tests"]}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    quick = {**os.environ, "GOGC": "400"}  # a quarter less processor time
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=600, env=quick, check=False)


def run_scenarios(stem: str, tests: Iterable[Mapping[str, Any]], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run scenarios that have the names of alerts of a file of rules: each with the rules that its alert depends on.

    With all rules of the file for each of them promtool takes ten times as long.
    """
    content = yaml.safe_load((ROOT / "alerts" / f"{stem}.yaml").read_text())
    files = []
    for test in tests:
        needed = {test["name"]} | _recorded(ALERTS[test["name"]]["expr"])
        groups = [
            group | {"rules": [it for it in group["rules"] if it.get("alert", it.get("record")) in needed]}
            for group in content["groups"]
        ]
        rule_file, file = folder / f"{test['name']}.rules.yaml", folder / f"{test['name']}.yaml"
        rule_file.write_text(yaml.safe_dump({"groups": groups}))
        file.write_text(
            yaml.safe_dump({"rule_files": [rule_file.name], "evaluation_interval": "1m", "tests": [dict(test)]})
        )
        files.append(file)
    return promtool("test", "rules", *files)


def _recorded(expr: str) -> set[str]:
    """Return the recorded series that an expression depends on; one of these may depend on itself."""
    found: set[str] = set()
    while new := (used(expr) & RECORDED.keys()) - found:
        found |= new
        expr = " + ".join(RECORDED[name]["expr"] for name in new)
    return found


ALERTS = {rule["alert"]: rule for stem in STEMS for rule in rules(stem)}
RECORDED = {rule["record"]: rule for stem in STEMS for rule in rules(stem, "record")}
each_alert = pytest.mark.parametrize("alert", ALERTS)
each_file = pytest.mark.parametrize("stem", STEMS)


@each_file
def test_every_rule_is_tested_before_during_and_after(stem: str) -> None:
    """Each alert has a scenario of its name that is silent first, then fires, then is silent again."""
    for rule in rules(stem):
        checks = scenarios(stem)[rule["alert"]]["promql_expr_test"]
        assert [False, True, False] == [bool(check["exp_samples"]) for check in checks], rule["alert"]
        assert all(rule["alert"] in sample["labels"] for sample in checks[1]["exp_samples"])


@each_file
def test_health_is_not_mere_absence(stem: str) -> None:
    """The healthy scenario holds every series that the rules look at, and no alert is even pending in 24 hours."""
    healthy = scenarios(stem)["healthy"]
    given = {series["series"].partition("{")[0] for series in healthy["input_series"]}
    wanted = {metric for rule in rules(stem) + rules(stem, "record") for metric in used(rule["expr"])}
    assert wanted - RECORDED.keys() - {"ALERTS"} == given
    *moments, day = healthy["promql_expr_test"]
    assert {("ALERTS", 0)} == {(check["expr"], len(check["exp_samples"])) for check in moments}
    assert {"expr": "count_over_time(ALERTS[1d])", "eval_time": "1439m", "exp_samples": []} == day


@needs_promtool
@each_file
def test_texts_render(stem: str, tmp_path: Path) -> None:
    """Rendered with the labels and values of its scenario, no text has a hole or a template error."""
    tests = [
        {
            **{key: scenario[key] for key in ("name", "interval", "input_series")},
            "alert_rule_test": [
                {"alertname": name, "eval_time": scenario["promql_expr_test"][1]["eval_time"], "exp_alerts": []}
            ],
        }
        for name, scenario in scenarios(stem).items()
        if name in ALERTS
    ]
    got = run_scenarios(stem, tests, tmp_path)
    texts = re.findall(r'(?:summary|description)="((?:[^"\\]|\\.)*)"', got.stdout + got.stderr)
    assert len(texts) >= 2 * len(rules(stem)), got.stdout + got.stderr
    for text in texts:
        assert not re.search(r"<error|<no value>|\{\{|\(\)|  |%!| [.,:;]", text), text


@each_alert
def test_has_severity_and_what_to_do(alert: str) -> None:
    """Severity, a one-sentence summary and a longer description."""
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
    assert summary.endswith(".") and len(re.sub(r"\{\{.*?\}\}", "", summary)) < 100
    assert description.endswith(".") and len(description) > len(re.sub(r"\{\{.*?\}\}", "", summary))


@each_file
def test_summary_is_a_thing_its_state_and_a_place(stem: str) -> None:
    """No summary has a verb of its own, and that of an alert with an instance ends with the instance."""
    for rule in rules(stem):
        summary = rule["annotations"]["summary"]
        fired = scenarios(stem)[rule["alert"]]["promql_expr_test"][1]["exp_samples"]
        placed = any(re.search(r'[{,]instance="', sample["labels"]) for sample in fired)
        assert not placed or "on {{ $labels.instance }}" in summary, summary
        assert not re.search(r"\b(is|are|was|were|has|have|does)\b", re.sub(r"\{\{.*?\}\}", "", summary)), summary


def test_few_alerts_page() -> None:
    """At most twelve alerts are critical, which is a page."""
    assert 12 >= sum(rule["labels"]["severity"] == "critical" for rule in ALERTS.values())


@each_file
def test_clusters_are_kept_apart(stem: str) -> None:
    """No rule or text adds or joins over clusters: in one store they may have the same names of jobs and instances."""
    for rule in (*rules(stem), *rules(stem, "record")):
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]):
            assert "cluster" in labels.split(", "), rule["expr"]
    for rule in rules(stem):
        text = str(rule["annotations"])
        assert text.count("printf ") == text.count("{cluster=%q"), rule["alert"]


@each_file
def test_no_alert_is_of_a_process(stem: str) -> None:
    """Alerts are of nodes, devices, workloads and communicators: none has a label of a process, rank or queue pair."""
    fired = [scenarios(stem)[rule["alert"]]["promql_expr_test"][1] for rule in rules(stem)]
    samples = [it for check in fired for it in check["exp_samples"]]
    label = re.compile(r'[{,](pid|comm|rank|qp|peer_qp|container_id)="')
    assert [] == [it["labels"] for it in samples if label.search(it["labels"])]


@each_file
def test_inhibitions_compare_labels_that_there_are(stem: str) -> None:
    """An alert that an inhibition names has the labels that it compares; not every node has each label."""
    for rule in yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text())["inhibit_rules"]:
        named = set(re.findall(r"\w+", " ".join(rule["source_matchers"] + rule["target_matchers"])))
        for alert in named & {it["alert"] for it in rules(stem)}:
            [fired, *_] = scenarios(stem)[alert]["promql_expr_test"][1]["exp_samples"]
            labels = set(re.findall(r'[{,](\w+)="', fired["labels"]))
            assert {*rule["equal"]} - {"cluster", "switch", "namespace", "slurm_job_id"} <= labels, alert


@each_alert
def test_does_not_flap(alert: str) -> None:
    """A rule that compares a present value waits; one that looks back over a span of time need not."""
    rule = ALERTS[alert]
    looks_back = re.search(r"increase\(|changes\(|time\(\) - |:most1d", rule["expr"])
    assert "for" in rule or looks_back


@each_alert
def test_has_a_runbook(alert: str) -> None:
    """The runbook of the alert exists: its meaning, its effect, how to look, what to do, and how to see the end."""
    path = ROOT / ALERTS[alert]["annotations"]["runbook"]
    assert RUNBOOKS / f"{alert.lower()}.md" == path
    title, *sections = re.findall(r"^#+ (.*)$", _prose(path.read_text()), re.MULTILINE)
    expected = [alert, "Meaning", "Impact", "Diagnosis", "Mitigation", "Verification"]
    assert expected == [title, *sections]


def _prose(text: str) -> str:
    """The text without its blocks of commands."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


@each_alert
def test_a_runbook_can_be_pasted(alert: str) -> None:
    """The diagnosis has commands that a shell can parse."""
    diagnosis = _section(alert, "Diagnosis")
    blocks = re.findall(r"^```sh\n(.+?)^```$", diagnosis, re.DOTALL | re.MULTILINE)
    assert blocks
    parsed = subprocess.run(["bash", "-n"], input="".join(blocks), capture_output=True, text=True, check=False)
    assert (0, "") == (parsed.returncode, parsed.stderr)


@each_alert
def test_a_runbook_has_the_end(alert: str) -> None:
    """The verification names a command or a query, and only series that exist."""
    spans = re.findall(r"`([^`]+)`", _section(alert, "Verification"))
    names = {name for span in spans for name in re.findall(r"\b[a-z_]+(?:_[a-z]+)+\b(?=\{|\[|$| )", span)}
    known = declared() | SCRAPED | RECORDED.keys()
    assert spans
    series = {name for name in names if name.split("_")[0] in PREFIXES}
    assert set() == series - known


PREFIXES = {"accel", "cufile", "gen", "gpu", "hw", "llm", "nccl", "nixl", "node", "rdma", "process", "ucx"}
"""First words of the names of series."""


@needs_promtool
def test_queries_of_runbooks(tmp_path: Path) -> None:
    """Each query by which a person sees that it is mended is valid PromQL."""
    spans = {span for alert in ALERTS for span in re.findall(r"`([^`]+)`", _section(alert, "Verification"))}
    queries = sorted(span for span in spans if re.search(r"[({\[]", span) and "$" not in span and " -r " not in span)
    assert len(queries) > 80
    made = [{"record": f"a:b{number}:c", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": made}]}))
    checked = promtool("check", "rules", tmp_path / "rules.yaml")
    assert 0 == checked.returncode, checked.stdout + checked.stderr


def _section(alert: str, title: str) -> str:
    text = (RUNBOOKS / f"{alert.lower()}.md").read_text()
    [found] = re.findall(rf"^## {title}\n(.+?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return str(found)


def test_no_runbook_is_orphaned() -> None:
    """Each runbook belongs to an alert, and links between runbooks lead somewhere."""
    assert {f"{alert.lower()}.md" for alert in ALERTS} == {path.name for path in RUNBOOKS.glob("*.md")}
    links = {link for path in RUNBOOKS.glob("*.md") for link in re.findall(r"\]\(([^)]+)\)", path.read_text())}
    assert set() == {link for link in links if not (RUNBOOKS / link.partition("#")[0]).exists()}
    titles = re.findall(r"^## (.+)$", (ROOT / "docs/dashboards.md").read_text(), re.MULTILINE)
    anchors = {link.partition("#")[2] for link in links if "dashboards.md" in link}
    assert {""} >= anchors - {title.lower().replace(" ", "-") for title in titles}


@each_alert
def test_metrics_are_declared_by_the_exporter(alert: str) -> None:
    """A rule names only series that the exporter's code declares or that Prometheus adds."""
    assert set() == used(ALERTS[alert]["expr"]) - declared() - SCRAPED - RECORDED.keys()


@pytest.mark.parametrize("record", RECORDED)
def test_recorded_series(record: str) -> None:
    """A recorded series is named level:metric:operations, made of declared series; a test or alert has its value."""
    level, metric, operations = record.split(":")
    assert level and operations
    expr = RECORDED[record]["expr"]
    assert set() == used(expr) - declared() - SCRAPED - RECORDED.keys()
    assert any(metric in series for series in used(expr))
    checks = [check for stem in STEMS for it in scenarios(stem).values() for check in it["promql_expr_test"]]
    checked = any(record in used(check["expr"]) and check["exp_samples"] for check in checks)
    assert checked or any(record in used(rule["expr"]) for rule in (*ALERTS.values(), *RECORDED.values()))
