"""The files of deploy/fleet are valid, agree with each other, and have room for what a node has."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dashboards import queries
from exporter.page import Pages
from exporter.profile import Profile
from exporter.views import prometheus
from tests import typical_node
from tests.metric_names import metrics, recorded, series_of, used
from tests.page_server import serve
from tests.support import free_port, until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "fleet"
RACK = "prometheus-rack.yml"
NODES, INTERVAL = 2000, 15
"""The largest fleet of docs/scaling.md, and the seconds between two scrapes."""


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The series of a training node."""
    node = typical_node.node(tmp_path_factory.mktemp("sys"), 1)
    page = prometheus.render(Pages(100_000, Profile.DEBUG).within(lambda: node, None, Profile.NODE)).text
    return sum(not line.startswith(b"#") for line in page.splitlines())


SCHEMAS: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "fleet_schemas.yaml").read_text())
FREE = ("external_labels", "extraArgs", "scrape_configs")
"""Keys with names of the user's choice, or with contents that the program itself checks."""


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Yield each mapping of which a schema has the names."""
    if isinstance(value, dict):
        yield value
        for name, below in value.items():
            yield from mappings(below) if name not in FREE else ()
    elif isinstance(value, list):
        for below in value:
            yield from mappings(below)


@pytest.mark.parametrize("name", SCHEMAS)
def test_files_have_the_names_that_programs_know(name: str) -> None:
    """Files of programs that Debian does not have follow their schema, in which no name can be misspelled unnoticed."""
    file = load(f"{name}.yaml")
    validator = jsonschema.Draft202012Validator(SCHEMAS[name])
    validator.check_schema(SCHEMAS[name])
    assert [] == [error.message for error in validator.iter_errors(file)]
    count = len(list(mappings(file)))
    assert count > 3
    for at in range(count):
        for key in list(mappings(file))[at]:
            wrong = copy.deepcopy(file)
            each = list(mappings(wrong))[at]
            each[f"{key}s"] = each.pop(key)
            assert not validator.is_valid(wrong), key


def test_schemas_are_of_all_files() -> None:
    """Every file is read by Prometheus here, or has a schema."""
    assert {"prometheus-agent", "prometheus-rack", *SCHEMAS} == {path.stem for path in FOLDER.iterdir()}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not installed")
def test_prometheus_reads_what_is_scraped(tmp_path: Path) -> None:
    """promtool takes the files of Prometheus, and the collector's scrapes as one; not with another name."""
    scrapes = load("otel-collector.yaml")["receivers"]["prometheus"]["config"]
    misspelled = copy.deepcopy(scrapes)
    misspelled["scrape_configs"][0]["sample_limits"] = 5000
    taken = []
    for number, config in enumerate((load("prometheus-agent.yml"), load(RACK), scrapes, misspelled)):
        (file := tmp_path / f"{number}.yml").write_text(yaml.safe_dump(config))
        checked = subprocess.run(
            ["promtool", "check", "config", *(["--agent"] if number == 0 else []), file],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        taken.append(checked.returncode == 0)
    assert [True, True, True, False] == taken


def test_collector_and_agent_scrape_alike() -> None:
    """The collector has the agent's scrapes, except for lists of targets and settings that only one of them can have.
    A rack has the agent's scrapes for all of its targets.
    """
    [agent] = load("prometheus-agent.yml")["scrape_configs"]
    [rack] = load(RACK)["scrape_configs"]
    assert rack == {key: value for key, value in agent.items() if key != "relabel_configs"}
    [collector] = load("otel-collector.yaml")["receivers"]["prometheus"]["config"]["scrape_configs"]
    apart = {"file_sd_configs", "scrape_interval", "scrape_timeout", "label_limit", "label_value_length_limit"}
    assert {key: agent[key] for key in agent.keys() - apart} == {
        key: collector[key] for key in collector.keys() - apart
    }


def test_pipelines_have_what_they_name() -> None:
    """Each component of a pipeline is declared, and each that is declared is in one."""
    config = load("otel-collector.yaml")
    pipelines = config["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert config[kind].keys() == set(chain.from_iterable(it[kind] for it in pipelines)), kind


def test_one_address_to_write_to() -> None:
    """Agent, rack and collector name the same store and cluster."""
    [write] = load("prometheus-agent.yml")["remote_write"]
    exporter = load("otel-collector.yaml")["exporters"]["prometheusremotewrite"]
    assert write["url"] == exporter["endpoint"]
    assert load("prometheus-agent.yml")["global"]["external_labels"] == exporter["external_labels"]
    rack = load(RACK)
    assert rack["remote_write"][0]["url"] == write["url"]
    assert rack["global"]["external_labels"] == {**exporter["external_labels"], "rack": "r7"}


def test_a_rack_sends_what_the_fleet_dashboard_reads() -> None:
    """The store has each series of the Fleet dashboard and of its variables, and no series by process."""
    [sent] = load(RACK)["remote_write"][0]["write_relabel_configs"]
    board = queries.boards()["fleet"]
    read = {name for panel in queries.flat(board) for it in panel.get("targets", ()) for name in used(it["expr"])}
    variables = [it["query"] for it in board["templating"]["list"] if it["type"] == "query"]
    read |= {found[1] for it in variables if (found := re.match(r"label_values\(([\w:]+)", it))}
    assert len(read) > 30 and "accel_exporter_build_info" in read
    assert set() == {name for name in read | recorded() if not re.fullmatch(sent["regex"], name)}
    scraped = {series for metric in metrics() for series in series_of(metric)}
    assert {"accel_exporter_build_info"} == {name for name in scraped if re.fullmatch(sent["regex"], name)}


@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus (Debian: prometheus) is not installed")
def test_racks_write_to_one_store(series: int, tmp_path: Path) -> None:
    """Two racks run the shipped file: the store has the nodes and sums of both, and none of their other series."""
    node = typical_node.node(tmp_path / "node", 1)
    text = prometheus.render(Pages(100_000, Profile.DEBUG).within(lambda: node, None, Profile.NODE)).text
    with ExitStack() as stack:
        page = stack.enter_context(serve(lambda _: text))
        store = stack.enter_context(started(tmp_path / "store", {}, "--web.enable-remote-write-receiver"))
        for number in range(2):
            config = load(RACK)
            config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
            config["global"]["external_labels"]["rack"] = f"r{number}"
            config["rule_files"], config["alerting"] = [str(ROOT / "alerts" / "nodes.yaml")], {}
            [job], [write] = config["scrape_configs"], config["remote_write"]
            del job["file_sd_configs"]
            job["static_configs"] = [{"targets": [page], "labels": {"instance": f"n{number}"}}]
            write["url"] = f"http://{store}/api/v1/write"
            stack.enter_context(started(tmp_path / f"rack{number}", config))
        both = {"r0": 1.0, "r1": 1.0}
        until(lambda: values(store, "sum by (rack) (up)") == both, "the nodes of both racks")
        until(lambda: len(values(store, 'sum by (rack) ({__name__=~"instance_use:.*"})')) == 2, "their sums")
        names = values(store, 'count by (__name__) ({__name__!=""})')
        assert "accel_exporter_build_info" in names and len(names) > 5
        assert {"up", "ALERTS", "accel_exporter_build_info"} >= {name for name in names if ":" not in name}
        assert series > 2000 > sum(names.values())


@contextmanager
def started(folder: Path, config: Mapping[str, Any], *options: str) -> Iterator[str]:
    """Run a Prometheus with a configuration; yield its address."""
    folder.mkdir()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config)))
    address = f"127.0.0.1:{free_port()}"
    files = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
    with (folder / "log").open("wb") as log:
        command = ["prometheus", *files, f"--web.listen-address={address}", *options]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield address
    finally:
        process.terminate()
        process.wait(60)


def values(store: str, expr: str) -> dict[str, float]:
    """Return the values of an instant vector by the first label; empty while the store does not answer."""
    query = urllib.parse.urlencode({"query": expr})
    try:
        with urllib.request.urlopen(f"http://{store}/api/v1/query?{query}", timeout=30) as answer:
            result = json.load(answer)["data"]["result"]
    except OSError:
        return {}
    return {",".join(it["metric"].values()): float(it["value"][1]) for it in result}


def test_limits_have_room(series: int) -> None:
    """A target may have the series of a node while its job starts again; stores those of 2,000 nodes."""
    [agent] = load("prometheus-agent.yml")["scrape_configs"]
    assert 1.5 * series < agent["sample_limit"] < 2 * series
    limits = load("mimir.yaml")["mimir"]["structuredConfig"]["limits"]
    assert 2 * series * NODES < limits["max_global_series_per_user"] < 4 * series * NODES
    assert series * NODES / INTERVAL < limits["ingestion_rate"] < 2 * series * NODES / INTERVAL
    storage = load("victoria-metrics-cluster.yaml")["vmstorage"]["extraArgs"]
    assert 4 * series * NODES < int(storage["storage.maxDailySeries"])


def test_groups_of_rules_fit() -> None:
    """Mimir takes every file of alerts/ whole."""
    limits = load("mimir.yaml")["mimir"]["structuredConfig"]["limits"]
    files = [path for path in (ROOT / "alerts").glob("*.yaml") if not path.stem.endswith(".test")]
    groups = list(chain.from_iterable(yaml.safe_load(path.read_text())["groups"] for path in files))
    assert len(groups) <= limits["ruler_max_rule_groups_per_tenant"]
    assert max(len(group["rules"]) for group in groups) <= limits["ruler_max_rules_per_rule_group"]


def test_what_is_written_twice_is_read_once() -> None:
    """VictoriaMetrics' replication is known to both sides, with replicas on different storage nodes."""
    values = load("victoria-metrics-cluster.yaml")
    copies = values["vminsert"]["extraArgs"]["replicationFactor"]
    assert copies == values["vmselect"]["extraArgs"]["replicationFactor"]
    assert values["vmstorage"]["replicaCount"] >= 2 * int(copies) - 1
