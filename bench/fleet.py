"""A fleet in one Prometheus or VictoriaMetrics: series, memory, ingestion, rules and dashboard queries, measured.

`python -m bench.fleet --nodes 100 --nodes 250` serves the pages of that many nodes (bench/fleet_nodes.py) at the
interval and prints a row of docs/scaling.md for each size. With --events jobs start again, nodes are lost and come
back, and at last every job of the fleet starts again at once: a row after each. Queries are those of the Fleet
dashboard, each sent three times, of which the fastest counts: others use the processors too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from bench.fleet_nodes import KINDS, Fleet
from dashboards import queries
from exporter.profile import Profile
from tests.backends import fetch
from tests.support import free_port

ROOT = Path(__file__).parents[1]
RULES = [path for path in sorted((ROOT / "alerts").glob("*.yaml")) if not path.stem.endswith(".test")]
CHURN, LOST = 0.1, 0.05
"""Of all nodes: those on which jobs start again, those that are lost."""
EVENT_SECONDS = 90.0
"""Between an event and its row."""


@dataclass
class Server:
    """A server that scrapes the fleet. `series`, `samples` and `rules` are names on its own page."""

    address: str
    processes: list[subprocess.Popen[bytes]]
    series: str
    samples: str
    rules: str = ""
    """No name: the rules are not evaluated in it."""

    def cpu(self) -> float:
        """Return the seconds of CPU time so far."""
        return sum(sum(psutil.Process(it.pid).cpu_times()[:2]) for it in self.processes)

    def memory(self) -> float:
        """Return the resident MiB."""
        return sum(psutil.Process(it.pid).memory_info().rss for it in self.processes) / 2**20

    def page(self) -> dict[str, float]:
        """Return the sum of each family of the server's page."""
        found: dict[str, float] = {}
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                if not line.startswith("#"):
                    series, _, value = line.rpartition(" ")
                    name = series.partition("{")[0]
                    found[name] = found.get(name, 0) + (0 if value == "NaN" else float(value))
        return found

    def query(self, expr: str) -> float:
        """Return the first value of an expression."""
        query = urllib.parse.urlencode({"query": expr})
        with urllib.request.urlopen(f"http://{self.address}/api/v1/query?{query}", timeout=120) as answer:
            result = json.load(answer)["data"]["result"]
        return float(result[0]["value"][1]) if result else 0.0

    def slowest(self) -> float:
        """Return the seconds of the slowest query of the Fleet dashboard, each as an hour in 60 steps."""
        exprs = [expr for it in queries.panels() if it.board == "fleet" for expr, _ in it.queries("5m").values()]
        return max(min(self._range(expr) for _ in range(3)) for expr in exprs)

    def _range(self, expr: str) -> float:
        """Return the seconds that a query of the last hour takes."""
        now, began = time.time(), time.perf_counter()
        query = urllib.parse.urlencode({"query": expr, "start": now - 3600, "end": now, "step": 60})
        with urllib.request.urlopen(f"http://{self.address}/api/v1/query_range?{query}", timeout=120) as answer:
            answer.read()
        return time.perf_counter() - began


@contextmanager
def prometheus(fleet: Fleet, folder: Path) -> Iterator[Server]:
    """Run the machine's Prometheus with all rules."""
    pace = f"{fleet.interval:g}s"
    config = {
        "global": {"scrape_interval": pace, "scrape_timeout": pace, "evaluation_interval": pace},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": _scraped(fleet),
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    options = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
    with _running(folder, "prometheus", *options, f"--web.listen-address={address}") as process:
        yield Server(
            address,
            [process],
            "prometheus_tsdb_head_series",
            "prometheus_tsdb_head_samples_appended_total",
            "prometheus_rule_group_last_duration_seconds",
        )


@contextmanager
def victoria_metrics(fleet: Fleet, folder: Path) -> Iterator[Server]:
    """Run Debian's VictoriaMetrics, which scrapes, and vmalert with the rules that dashboards of a fleet need."""
    config = {"global": {"scrape_interval": f"{fleet.interval:g}s"}, "scrape_configs": _scraped(fleet)}
    (folder / "scrape.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    programs = fetch.programs()
    # Rules of a busy machine wait for each other longer than 10 s.
    patient = ("-search.maxQueueDuration=2m", "-search.maxQueryDuration=2m")
    options = (f"-httpListenAddr={address}", f"-storageDataPath={folder / 'data'}", *patient)
    rules = [f"-rule={path}" for path in RULES]
    urls = (f"-datasource.url=http://{address}", f"-remoteWrite.url=http://{address}", "-notifier.blackhole")
    with _running(
        folder, programs / "victoria-metrics", *options, f"-promscrape.config={folder / 'scrape.yml'}"
    ) as store:
        time.sleep(5)
        vmalert = (
            *rules,
            *urls,
            f"-evaluationInterval={fleet.interval:g}s",
            f"-httpListenAddr=127.0.0.1:{free_port()}",
        )
        with _running(folder, programs / "vmalert", *vmalert) as ruler:
            yield Server(
                address, [store, ruler], 'vm_cache_entries{type="storage/hour_metric_ids"}', "vm_rows_inserted_total"
            )


def _scraped(fleet: Fleet) -> list[dict[str, object]]:
    return [{"job_name": "accel-exporter", "honor_labels": True, "static_configs": fleet.targets()}]


@contextmanager
def _running(folder: Path, program: str | Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{Path(program).name}.log").open("wb") as log:
        process = subprocess.Popen([program, *options], stdout=log, stderr=log)
        try:
            yield process
            assert process.poll() is None, (folder / f"{Path(program).name}.log").read_text()[-2000:]
        finally:
            process.terminate()
            process.wait(300)


def events(fleet: Fleet) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what happens to a fleet, by the names of the rows."""
    some = range(0, fleet.nodes, round(1 / CHURN))
    away = range(0, fleet.nodes, round(1 / LOST))
    yield f"jobs of {len(some)} nodes start again", lambda: fleet.restart(some)
    yield f"{len(away)} nodes lost", lambda: fleet.lose(away)
    yield "they are back, with other jobs", lambda: fleet.restart(away)
    yield "every job starts again at once", lambda: fleet.restart(range(fleet.nodes))


def row(server: Server, fleet: Fleet, after: str, seconds: float) -> dict[str, str]:
    """Return what the server took in so many seconds from now, by the names of the columns."""
    began, cpu, before = time.monotonic(), server.cpu(), server.page()
    time.sleep(seconds)
    took, used, page = time.monotonic() - began, server.cpu() - cpu, server.page()
    values = {
        "nodes": fleet.nodes,
        "answering": server.query("count(up == 1) or vector(0)"),
        "active series": server.query("sum(scrape_samples_post_metric_relabeling)"),
        "series in memory": page.get(server.series.partition("{")[0], 0) if server.rules else None,
        "samples/s": (page[server.samples] - before.get(server.samples, 0)) / took,
        "memory MiB": server.memory(),
        "CPUs": used / took,
        "scrape s": server.query("max(scrape_duration_seconds)"),
        "rules s": page[server.rules] if server.rules else None,
        "slowest query s": server.slowest(),
    }
    return {"after": after, **{name: _shown(value) for name, value in values.items()}}


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description="A fleet in one Prometheus or VictoriaMetrics.")
    parser.add_argument("--nodes", type=int, action="append", required=True)
    parser.add_argument("--interval", type=float, default=15.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--profile", choices=[it.name.lower() for it in Profile], default="node")
    parser.add_argument("--server", choices=("prometheus", "victoria-metrics"), default="prometheus")
    parser.add_argument("--mixed", action="store_true", help="of ten nodes one has inference and one no job")
    parser.add_argument("--events", action="store_true")
    given = parser.parse_args()
    run = prometheus if given.server == "prometheus" else victoria_metrics
    for number, nodes in enumerate(given.nodes):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            fleet = Fleet(folder / "sys", nodes, given.interval, Profile.of(given.profile), given.mixed)
            if not number:
                for kind in dict.fromkeys(KINDS if given.mixed else KINDS[:1]):
                    lines, size = fleet.page_size(kind)
                    print(f"{kind}: {lines} lines, {size} bytes, profile {given.profile}, every {given.interval:g} s")
            with run(fleet, folder) as server:
                time.sleep(2)
                rows = [("start", lambda: None), *(events(fleet) if given.events else ())]
                for event, (after, happen) in enumerate(rows):
                    happen()
                    found = row(server, fleet, after, EVENT_SECONDS if event else given.seconds)
                    if not number and not event:
                        print("| " + " | ".join(found) + " |\n|" + " --- |" * len(found))
                    print("| " + " | ".join(found.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
