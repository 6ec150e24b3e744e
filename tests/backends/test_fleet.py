"""Agents with the shipped configuration share the nodes of a fleet, and a store of VictoriaMetrics has all of them."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from exporter.collectors import topology
from exporter.page import Pages
from exporter.profile import Profile
from exporter.views import prometheus
from tests import typical_node
from tests.backends import fetch
from tests.backends.servers import VictoriaMetrics
from tests.e2e.backend import end, get
from tests.page_server import serve
from tests.support import free_port, until

pytestmark = [pytest.mark.timeout(900), pytest.mark.evidence(feature="Prometheus pages", on="real software")]
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "fleet"
SHIPPED = FOLDER / "prometheus-agent.yml"
NODES, PARTS = 6, 2
SECONDS = 180.0


@contextmanager
def fleet(folder: Path) -> Iterator[str]:
    """A server of the page of a training node, as that of every node; yields its address."""
    node = typical_node.node(folder, 5)
    page = prometheus.render(Pages(100_000, Profile.DEBUG).within(lambda: node, None, Profile.NODE)).text
    paths: set[str] = set()

    def page_of(path: str) -> bytes:
        paths.add(path)
        place = {"leaf": f"leaf{int(path[1]) // 3}", "rack": "r1"}
        return page + prometheus.render([topology.INFO.sample(1, place)]).text

    with serve(page_of) as address:
        yield address
    assert {f"/{number}?profile=node" for number in range(NODES)} == paths


@contextmanager
def agent(folder: Path, part: int, targets: Path, store: str) -> Iterator[None]:
    """A Prometheus agent of one part of the fleet: the shipped file, with addresses and a pace for a test."""
    config = yaml.safe_load(SHIPPED.read_text())
    [job], [write] = config["scrape_configs"], config["remote_write"]
    config["global"] |= {"scrape_interval": "2s", "scrape_timeout": "2s"}
    config["global"]["external_labels"]["replica"] = f"part{part}"
    job["file_sd_configs"] = [{"files": [str(targets)]}]
    hashed, kept = job["relabel_configs"]
    hashed["modulus"], kept["regex"] = PARTS, str(part)
    write["url"] = f"{store}/api/v1/write"
    folder.mkdir()
    (folder / "agent.yml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("wb") as log:
        options = (f"--config.file={folder / 'agent.yml'}", f"--storage.agent.path={folder / 'data'}")
        listen = f"--web.listen-address=127.0.0.1:{free_port()}"
        process = subprocess.Popen(
            [fetch.programs() / "prometheus", "--agent", *options, listen], stdout=log, stderr=log
        )
    try:
        yield
    finally:
        end(process)


def values(store: VictoriaMetrics, expr: str) -> dict[str, float]:
    """The values of an instant vector by the first label."""
    query = urllib.parse.urlencode({"query": expr, "latency_offset": "1ms"})
    result = json.loads(get(f"{store.address}/api/v1/query?{query}") or "{}")["data"]["result"]
    return {",".join(it["metric"].values()): float(it["value"][1]) for it in result}


def test_each_node_is_scraped_once(tmp_path: Path) -> None:
    """Every node is in the store by exactly one agent, whole; the rules that vmalert evaluates there sum by leaf."""
    programs = fetch.programs()
    with ExitStack() as stack:
        address = stack.enter_context(fleet(tmp_path / "node"))
        targets = [
            {"targets": [address], "labels": {"instance": f"n{number}", "__metrics_path__": f"/{number}"}}
            for number in range(NODES)
        ]
        (file := tmp_path / "targets.yaml").write_text(yaml.safe_dump(targets))
        store = stack.enter_context(VictoriaMetrics(tmp_path / "store", programs=programs))
        for part in range(PARTS):
            stack.enter_context(agent(tmp_path / f"part{part}", part, file, store.address))
        one = {f"n{number}": 1.0 for number in range(NODES)}
        until(lambda: values(store, "count by (instance) (up == 1)") == one, "each node once", SECONDS)
        parts = values(store, "count by (replica) (up)")
        assert PARTS == len(parts) and NODES == sum(parts.values())
        whole = values(store, "max by (instance) (scrape_samples_scraped)")
        stored = values(store, 'count by (instance) ({__name__!~"up|scrape_.*"})')
        assert whole == stored and min(whole.values()) > 2000
        assert {"main": float(NODES)} == values(store, "count by (cluster) (up)")
        rules = (f"-rule={ROOT / 'alerts' / name}.yaml" for name in ("nodes", "faults", "recording"))
        urls = (f"-datasource.url={store.address}", f"-remoteWrite.url={store.address}", "-notifier.blackhole")
        with (tmp_path / "vmalert.log").open("wb") as log:
            pace = ("-evaluationInterval=2s", "-datasource.queryStep=15s", f"-httpListenAddr=127.0.0.1:{free_port()}")
            process = subprocess.Popen([programs / "vmalert", *rules, *urls, *pace], stdout=log, stderr=log)
        stack.callback(end, process)
        leaves = {"main,leaf0": 3.0, "main,leaf1": 3.0}
        until(
            lambda: values(store, 'sum by (cluster, place) (place:up:count{kind="leaf"})') == leaves, "leaves", SECONDS
        )
        gpus = float(3 * typical_node.GPUS)
        summed = 'sum by (cluster, place) (place:hw_status:unhealthy{kind="leaf"})'
        until(
            lambda: values(store, summed) == dict.fromkeys(leaves, gpus),
            "GPUs by leaf, which all request a recovery",
            SECONDS,
        )


def test_flags_of_the_stores_chart() -> None:
    """VictoriaMetrics' single node has the flags that the values of its cluster set, but for the number of copies."""
    values = yaml.safe_load((FOLDER / "victoria-metrics-cluster.yaml").read_text())
    command = [fetch.programs() / "victoria-metrics", "-help"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    known = set(re.findall(r"^  -(\S+)", answer.stdout + answer.stderr, re.MULTILINE))
    assert {"replicationFactor"} == {flag for part in values.values() for flag in part.get("extraArgs", {})} - known


CORE = {
    "receivers": {"otlp": "receiver/otlpreceiver"},
    "processors": {"memory_limiter": "internal/memorylimiter", "batch": "processor/batchprocessor"},
    "exporters": {"otlp_grpc": "exporter/otlpexporter"},
}
"""The collector's own components, by section and type, with the folder of their configuration in its source."""


def test_components_of_the_collector() -> None:
    """The types and names of the collector's own components in our file are those of its source."""
    source = fetch.collector()
    shared = [source / "config" / name for name in ("configgrpc", "confighttp", "confignet", "configtls")]
    config = yaml.safe_load((FOLDER / "otel-collector.yaml").read_text())

    def names(value: object) -> set[str]:
        return {*value}.union(*(names(it) for it in value.values())) if isinstance(value, dict) else set()

    for section, components in CORE.items():
        for name, folder in components.items():
            known = set[str]()
            for path in (path for at in (source / folder, *shared) for path in at.glob("*.go")):
                known |= set(re.findall(r'mapstructure:"([a-z0-9_]+)', path.read_text()))
            assert set() == names(config[section][name]) - known, name
            stem = "processor/memorylimiterprocessor" if name == "memory_limiter" else folder
            [status] = (source / stem).glob("internal/metadata/generated_status.go")
            assert f'component.MustNewType("{name}")' in status.read_text()
    contrib = {"receivers": {"prometheus"}, "processors": set(), "exporters": {"prometheusremotewrite"}}
    assert contrib == {section: {*config[section]} - {*CORE[section]} for section in CORE}
