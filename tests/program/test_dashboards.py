"""The committed dashboards: built from their sources, importable, and made by the rules people expect.

Every rule of Grafana's dashboard-linter that concerns Prometheus is among them, by what it wants.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.absent import WITHOUT
from dashboards.build import HERE, render, stems
from dashboards.parts import CLOSED
from dashboards.queries import flat
from tests.metric_names import SCRAPED, declared, metrics, recorded, series_of, used

UNITS = {
    *("bool_yes_no", "bytes", "Bps", "celsius", "cps", "eps", "hertz"),
    *("ops", "percentunit", "reqps", "s", "short", "watt"),
}
"""Ids of Grafana's unit list that the dashboards use; any other is probably a slip."""

WITHOUT_INSTANCE = {"ALERTS", "component_product_version:hw_gpu_info:nodes"} | {
    name for name in recorded() if name.startswith(("place:", "comm_hash_state:"))
}
PROCESSES = {series for metric in metrics() if metric.process for series in series_of(metric)} - {"job_process_info"}
COUNTER = re.compile(r"\w+_(total|bucket|count|sum)\b")


@pytest.fixture(params=stems())
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    board: dict[str, Any] = json.loads((HERE / f"{request.param}.json").read_text())
    return board


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in flat(board) if panel["type"] != "row")


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in panels(board) for target in panel["targets"]]


def variable(board: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in board["templating"]["list"] if each["name"] == name)


@pytest.mark.parametrize("stem", stems())
def test_committed_json_is_up_to_date(stem: str) -> None:
    """The committed file is what its source builds; `python -m dashboards.build` writes it."""
    assert render(stem) == (HERE / f"{stem}.json").read_text()


def test_every_json_has_a_source() -> None:
    """No dashboard is left behind without its source."""
    assert stems() == sorted(path.stem for path in HERE.glob("*.json"))


def test_schema_knows_every_field(board: dict[str, Any]) -> None:
    """Read and written again by Grafana's schema, the dashboard is the same."""
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert board == again


def test_data_source_is_chosen_by_one_variable(board: dict[str, Any]) -> None:
    """Exactly one data source variable, and every panel and variable query uses it."""
    sources = [each for each in board["templating"]["list"] if each["type"] == "datasource"]
    expected = [("datasource", "Data source", "prometheus")]
    assert expected == [(each["name"], each["label"], each["query"]) for each in sources]
    queried = [each for each in board["templating"]["list"] if each["type"] == "query"]
    assert {"${datasource}"} == {each["datasource"]["uid"] for each in (*queried, *panels(board))}


@pytest.mark.parametrize(("name", "label"), [("job", "Job"), ("instance", "Instance")])
def test_targets_are_chosen_by_job_and_instance(board: dict[str, Any], name: str, label: str) -> None:
    """Several jobs and instances can be chosen, and all of them are by default."""
    found = variable(board, name)
    expected = (label, True, True, ".+", "$__all")
    keys = ("label", "multi", "includeAll", "allValue")
    assert expected == (*(found[key] for key in keys), found["current"]["value"])


def test_variables_follow_the_time_range(board: dict[str, Any]) -> None:
    """Values are read again when the time range changes, so that past jobs can be chosen."""
    assert {2} == {each["refresh"] for each in board["templating"]["list"] if each["type"] == "query"}


def test_every_panel_describes_what_it_shows(board: dict[str, Any]) -> None:
    """Title, description and unit on every panel; titles are unique within a type of panel."""
    for panel in panels(board):
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
    titles = [(panel["type"], panel["title"]) for panel in panels(board)]
    assert len(titles) == len(set(titles))


def test_panels_do_not_overlap(board: dict[str, Any]) -> None:
    """Each cell of the grid belongs to one panel, within 24 columns; ids are unique."""
    cells: set[tuple[int, int]] = set()
    for panel in flat(board):
        place = {"x": 0, "y": 0, **panel["gridPos"]}
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & own and place["x"] + place["w"] <= 24, panel["title"]
        cells |= own
    ids = [panel["id"] for panel in flat(board)]
    assert len(ids) == len(set(ids))


def test_what_most_nodes_lack_is_closed(board: dict[str, Any]) -> None:
    """Panels below a closed row are inside it, where they query nothing; an open row has none inside."""
    closed = False
    for panel in board["panels"]:
        if panel["type"] == "row":
            closed = panel["collapsed"]
            assert closed is (panel["title"] in CLOSED) is bool(panel["panels"]), panel["title"]
        else:
            assert not closed, panel["title"]


def test_an_empty_plot_names_the_hardware(board: dict[str, Any]) -> None:
    """A plot of hardware that not every node has names it where it is empty; numbers and tables stay short."""
    for panel in panels(board):
        names = [name for name in WITHOUT if any(name in target["expr"] for target in panel["targets"])]
        expected = WITHOUT[names[0]] if names and panel["type"] not in ("stat", "table") else None
        assert expected == panel["fieldConfig"]["defaults"].get("noValue"), panel["title"]


def test_every_target_has_its_letter(board: dict[str, Any]) -> None:
    """Targets of a panel are A, B, C and so on, and every panel has one at least."""
    for panel in panels(board):
        letters = "".join(target["refId"] for target in panel["targets"])
        assert letters and "ABCDEFGHIJKLMNOPQRSTUVWXYZ".startswith(letters), panel["title"]


def test_lines_are_named(board: dict[str, Any]) -> None:
    """Every line and every table column has a legend."""
    for panel in panels(board):
        if panel["type"] in ("timeseries", "table"):
            assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_every_selector_keeps_to_the_chosen_targets(board: dict[str, Any]) -> None:
    """No series of an exporter that was not chosen is shown."""
    for expr in expressions(board):
        selectors = re.findall(r"\{([^}]*)\}", expr)
        assert len(used(expr)) <= len(selectors), expr
        for selector in selectors:
            wanted = ('job=~"$job', 'instance=~"$instance', 'cluster=~"$cluster"')
            assert all(matcher in selector for matcher in wanted), expr
            # Alerts and sums of the fleet may lack these labels.
            exact = ('job=~"$job"', 'instance=~"$instance"')
            assert all(matcher in selector for matcher in exact) or used(expr) & WITHOUT_INSTANCE, expr


def test_clusters_are_kept_apart(board: dict[str, Any]) -> None:
    """No query joins series of different clusters: clusters in one store may have nodes of the same name."""
    for expr in expressions(board):
        for labels in re.findall(r"\bon \(([^)]*)\)", expr):
            assert "cluster" in labels.split(", "), expr


def test_workloads_are_chosen_where_there_are_processes(board: dict[str, Any]) -> None:
    """A dashboard with series of processes has the variable, and each of its queries on these applies it."""
    of_processes = [expr for expr in expressions(board) if used(expr) & PROCESSES]
    assert [] == [expr for expr in of_processes if 'workload=~"$workload"' not in expr and expr.count(" unless ") == 0]
    chosen = [expr for expr in expressions(board) if "$workload" in expr]
    names = [each["name"] for each in board["templating"]["list"]]
    assert bool(chosen) == ("workload" in names)
    if chosen:
        found = variable(board, "workload")
        keys = ("label", "multi", "includeAll", "allValue")
        assert ("Workload", True, True, ".*", "$__all") == (*(found[key] for key in keys), found["current"]["value"])
        above = [name for name in ("namespace",) if name in names]
        assert all(f'{name}=~"${name}"' in found["query"] for name in above)


def test_rates_adapt_to_the_resolution(board: dict[str, Any]) -> None:
    """Every range is $__rate_interval; counters are inside rate(), or only the existence of their series matters."""
    for expr in expressions(board):
        assert set(re.findall(r"\[([^\]]*)\]", expr)) <= {"$__rate_interval"}, expr
        for counter in COUNTER.finditer(expr):
            assert re.search(r"(rate|(count\(sum|group) by \([^)]*\) )\(+$", expr[: counter.start()]), expr


def test_variables_offer_what_was_chosen_before(board: dict[str, Any]) -> None:
    """Every list of values is of the chosen cluster, jobs and instances, as far as those stand before it."""
    before: list[str] = []
    for each in board["templating"]["list"]:
        if each["type"] == "query":
            missing = [name for name in before if f'{name}=~"${name}"' not in each["query"]]
            assert [] == missing, each["query"]
        if each["name"] in ("cluster", "job", "instance"):
            before.append(each["name"])
    assert ["cluster", "job", "instance"] == before


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not installed")
def test_prometheus_can_read_every_query(board: dict[str, Any], tmp_path: Path) -> None:
    """promtool takes the expressions of all panels, and the selectors of all variables."""
    variables = [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    selectors = [found[1] for query in variables if (found := re.fullmatch(r"label_values\((.+), \w+\)", query))]
    rules = [
        {"record": f"query:{number}", "expr": expr.replace("$__rate_interval", "5m").replace("$pod_label", "label_app")}
        for number, expr in enumerate((*expressions(board), *selectors))
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=60)
    assert (0, True) == (checked.returncode, f"{len(rules)} rules found" in checked.stdout), checked.stderr


def test_legends_name_labels_that_there_are(board: dict[str, Any]) -> None:
    """Labels named by a legend or a column of a table survive the aggregation of the query."""
    for panel in panels(board):
        kept = [labels_of(target["expr"]) for target in panel["targets"]]
        for target, labels in zip(panel["targets"], kept, strict=True):
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert labels is None or named <= labels, (panel["title"], named, labels)
        if panel["type"] == "table" and None not in kept:
            columns = panel["transformations"][-1]["options"]["renameByName"]
            named = {name for name in columns if not name.startswith("Value")}
            assert named == set().union(*(labels or () for labels in kept)), panel["title"]


def labels_of(expr: str) -> set[str] | None:
    """The labels that the outermost `by` of an expression keeps; None where it has none, or makes labels."""
    found = re.search(r"\bby \(([^)]*)\)", expr)
    return set(found[1].split(", ")) if found and "label_replace" not in expr else None


def test_numbers_change_colour(board: dict[str, Any]) -> None:
    """A number that calls for action is green or red, any other has the colour of text; lines have a dashed limit."""
    for panel in panels(board):
        colors = [step["color"] for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ())]
        assert panel["type"] != "stat" or colors in (["text"], ["green", "red"], ["red", "green"]), panel["title"]
        if panel["type"] == "timeseries" and len(colors) > 1:
            assert "dashed" == panel["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]["mode"], panel["title"]


def test_metrics_are_declared_by_the_exporter(board: dict[str, Any]) -> None:
    """Panels and variables name only series that the exporter's code declares, or that rules or Prometheus add."""
    queries = [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    named = {metric for query in queries for metric in re.findall(r"label_values\(([\w:]+)", query)}
    named |= {metric for expr in expressions(board) for metric in used(expr)}
    assert set() == named - declared() - recorded() - SCRAPED


def links(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The links of table cells and of lines."""
    for panel in panels(board):
        yield from panel["fieldConfig"]["defaults"].get("links", ())
        for override in panel["fieldConfig"]["overrides"]:
            for setting in override["properties"]:
                if setting["id"] == "links":
                    columns = panel["transformations"][-1]["options"]["renameByName"].values()
                    assert override["matcher"]["options"] in columns
                    used = re.findall(r"__data\.fields\.(\w+)", setting["value"][0]["url"])
                    assert set(used) <= {*columns}, panel["title"]
                    yield from setting["value"]


def test_links_lead_to_what_they_name(board: dict[str, Any]) -> None:
    """Each goes to one of these dashboards, with the data source, time and targets kept, and sets variables it has."""
    others = {each["uid"]: each for each in (json.loads((HERE / f"{stem}.json").read_text()) for stem in stems())}
    for link in links(board):
        match = re.fullmatch(r"/d/([\w-]+)\?\$\{datasource:queryparam\}&(.+)", link["url"])
        assert match and "${__url_time_range}" in match[2], link
        variables = {each["name"] for each in others[match[1]]["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", match[2])) <= variables, link


def test_every_dashboard_leads_to_the_node(board: dict[str, Any]) -> None:
    """Wherever an instance is named, a click shows that node."""
    assert any("/d/accel-exporter-node?" in link["url"] for link in links(board))


def test_not_editable(board: dict[str, Any]) -> None:
    """A provisioned dashboard is changed in its source, not in Grafana."""
    assert board["editable"] is False


def test_the_fleet_is_read_as_it_is_recorded() -> None:
    """No query of the Fleet dashboard reads a series of exporters: each is recorded, or Prometheus' own of a target."""
    board = json.loads((HERE / "fleet.json").read_text())
    names = {name for expr in expressions(board) for name in used(expr)}
    assert len(names) > 30
    assert set() == names - recorded() - {"up", "ALERTS"}


def test_no_rule_reads_days_of_samples() -> None:
    """No range of a rule is longer than a day, but for that of a recorded series at steps of ten minutes or more."""
    rules = [
        path.read_text() for path in (HERE.parent / "alerts").glob("*.yaml") if not path.name.endswith(".test.yaml")
    ]
    ranges = re.findall(r"([\w:]+)(?:\{[^}]*\})?\[(\d+)([smhdw])(?::(\d+)m)?\]", "\n".join(rules))
    seconds = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    long = {(name, step) for name, count, unit, step in ranges if int(count) * seconds[unit] > 86400}
    assert {("xid:gpu_xid_bursts:increase10m", "10")} == long
    assert {name for name, _ in long} <= recorded()
