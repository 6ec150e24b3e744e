"""A fleet in one Prometheus: series, memory, ingestion, rules and dashboard queries, measured on pages of our own code.

`python -m bench.fleet --nodes 20 --nodes 40` serves the page of a training node (tests/typical_node.py) as
that many targets at the interval, each with its place, and prints a row of docs/scaling.md for each size. Counters grow
between pages. Queries are those of the Fleet dashboard; each is sent three times, and the slowest counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import yaml

from dashboards import queries
from exporter.collectors import topology
from exporter.page import Pages
from exporter.profile import Profile
from exporter.views import prometheus
from tests import typical_node
from tests.support import free_port

ROOT = Path(__file__).parents[1]
RULES = [path for path in sorted((ROOT / "alerts").glob("*.yaml")) if not path.stem.endswith(".test")]
PER_LEAF, PER_RACK = 32, 8
TURNS = 8
"""Pages that counters go through; then they start again, as of an exporter that restarted."""


class Fleet:
    """Serves /N for node N: a page by the time, and the place of the node."""

    def __init__(self, folder: Path, interval: float, profile: Profile) -> None:
        self._interval = interval
        pages = (typical_node.node(folder / str(turn), turn) for turn in range(1, TURNS + 1))
        reduced = Pages(100_000, Profile.DEBUG)
        self._pages = [prometheus.render(reduced.within(lambda page=page: page, None, profile)).text for page in pages]
        self.lines = sum(not line.startswith(b"#") for line in self._pages[-1].splitlines())
        self.bytes = len(self._pages[-1])
        fleet = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = fleet.page(int(self.path[1:].partition("?")[0]))
                self.send_response(200)
                self.send_header("Content-Type", prometheus.Format.TEXT.value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def page(self, node: int) -> bytes:
        place = {"leaf": f"leaf{node // PER_LEAF}", "rack": f"r{node // PER_RACK}", "zone": "z1"}
        own = prometheus.render([topology.INFO.sample(1, place)]).text
        return self._pages[int(time.time() / self._interval) % TURNS] + own


def measure(fleet: Fleet, nodes: int, interval: float, seconds: float) -> dict[str, float]:
    """Run a Prometheus on so many nodes for so many seconds. Returns what it took, by the names of the columns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        targets = [
            {
                "targets": [f"127.0.0.1:{fleet.server.server_port}"],
                "labels": {"__metrics_path__": f"/{node}", "instance": f"n{node}"},
            }
            for node in range(nodes)
        ]
        pace = f"{interval:g}s"
        config = {
            "global": {"scrape_interval": pace, "scrape_timeout": pace, "evaluation_interval": pace},
            "rule_files": [str(path) for path in RULES],
            "scrape_configs": [{"job_name": "accel-exporter", "honor_labels": True, "static_configs": targets}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={address}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                time.sleep(1)
                assert process.poll() is None, (folder / "log").read_text()[-2000:]
            own = psutil.Process(process.pid)
            times = own.cpu_times()
            cpu = (times.user + times.system) / (time.monotonic() - began)
            metrics = _page(f"http://{address}/metrics")
            slowest, of_rules = _slowest(address), metrics["prometheus_rule_group_last_duration_seconds"]
            up = _query(address, "count(up == 1) or vector(0)")
            worst = _query(address, "max(scrape_duration_seconds)")
            return {
                "nodes": nodes,
                "answering": up[0],
                "active series": metrics["prometheus_tsdb_head_series"],
                "samples/s": metrics["prometheus_tsdb_head_samples_appended_total"] / seconds,
                "memory MiB": own.memory_info().rss / 2**20,
                "CPUs": cpu,
                "scrape s": worst[0],
                "rules s": of_rules,
                "slowest query s": slowest,
            }
        finally:
            process.terminate()
            process.wait(60)


def _page(url: str) -> dict[str, float]:
    """Return the sum of each family of a page."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(url, timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name = series.partition("{")[0]
                found[name] = found.get(name, 0) + (0 if value == "NaN" else float(value))
    return found


def _query(address: str, expr: str) -> tuple[float, float]:
    """Return the first value of an expression, and the seconds that it took."""
    began = time.perf_counter()
    query = urllib.parse.urlencode({"query": expr})
    with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=120) as answer:
        result = json.load(answer)["data"]["result"]
    return (float(result[0]["value"][1]) if result else 0.0), time.perf_counter() - began


def _slowest(address: str) -> float:
    """Return the time of the slowest query of the Fleet dashboard, each as an hour in 60 steps."""
    slowest = 0.0
    now = time.time()
    for panel in queries.panels():
        for expr, _ in panel.queries("5m").values() if panel.board == "fleet" else ():
            query = urllib.parse.urlencode({"query": expr, "start": now - 3600, "end": now, "step": 60})
            for _ in range(3):
                began = time.perf_counter()
                with urllib.request.urlopen(f"http://{address}/api/v1/query_range?{query}", timeout=120) as answer:
                    answer.read()
                slowest = max(slowest, time.perf_counter() - began)
    return slowest


def main() -> None:
    parser = argparse.ArgumentParser(description="A fleet in one Prometheus.")
    parser.add_argument("--nodes", type=int, action="append", required=True)
    parser.add_argument("--interval", type=float, default=15.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--profile", choices=[it.name.lower() for it in Profile], default="node")
    given = parser.parse_args()
    assert shutil.which("prometheus"), "prometheus (Debian package) is not installed"
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder), given.interval, Profile.of(given.profile))
        print(f"page: {fleet.lines} lines, {fleet.bytes} bytes, profile {given.profile}, every {given.interval:g} s")
        for number, nodes in enumerate(given.nodes):
            row = measure(fleet, nodes, given.interval, given.seconds)
            if not number:
                print("| " + " | ".join(row) + " |\n|" + " --- |" * len(row))
            print(
                "| " + " | ".join(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in row.values()) + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
