"""Debian's Prometheus scrapes a served exporter with fake collectors, and answers with what it has stored."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from exporter.model import Distribution, Exemplar, Kind, Metric, Sample
from tests.standins.served import Fake, Served
from tests.support import PATIENCE, free_port, until

pytestmark = [
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed"),
    pytest.mark.evidence(feature="Prometheus pages", on="real software"),
]

SECONDS = 15
PER_SECOND = 5000
SERIES = 2000
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HOSTILE = 'a"b\\c\nd{e}=,#\t\r\0\x1b\u2028\udcffé'

LAUNCHES = Metric("test.launches", "Launches.", Kind.COUNTER, "{call}", process=True)
WAIT = Metric("test.wait", "Waits.", Kind.HISTOGRAM, "s")
USAGE = Metric("test.usage", "Bytes.", Kind.GAUGE, "By", labels=("n",))


class Load:
    """A workload that launches at an exact rate, and has many other series."""

    def __init__(self) -> None:
        self._started = time.time()

    def collect(self) -> Iterable[Sample]:
        seconds = time.time() - self._started
        yield LAUNCHES.sample(int(seconds * PER_SECOND), {"pid": "7", "comm": HOSTILE})
        exemplar = Exemplar(0.0625, time.time(), TRACE, SPAN)
        yield WAIT.sample(Distribution((0.001, 1.0), (1, int(seconds), 2), 2.5, {1: exemplar}))
        for number in range(SERIES):
            yield USAGE.sample(2**53 + number, {"n": str(number)})


class Prometheus:
    """A Prometheus with two jobs: text over HTTP for one, HTTPS with a user for the other."""

    def __init__(self, folder: Path, config: str) -> None:
        port = free_port()
        (folder / "prometheus.yml").write_text(config)
        self._url = f"http://127.0.0.1:{port}"
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--enable-feature=exemplar-storage",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> None:
        """Returns when all scrapes of both jobs in SECONDS succeeded: a busy machine may lose one."""
        scrapes = f"up[{SECONDS}s]"
        healthy = f"min_over_time({scrapes}) == 1 and count_over_time({scrapes}) >= {SECONDS - 2}"

        def scraped() -> bool:
            with contextlib.suppress(OSError):
                return len(self.data("query", query=healthy)["result"]) == 2
            return False

        until(scraped, self.log.read_text, 2 * PATIENCE)

    def data(self, path: str, **parameters: str) -> Any:
        """The data of an API answer."""
        with urllib.request.urlopen(
            f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10
        ) as it:
            return json.load(it)["data"]

    def value(self, query: str) -> float:
        """The one value of an instant query."""
        [result] = self.data("query", query=query)["result"]
        return float(result["value"][1])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus after SECONDS of scraping once a second."""
    folder = tmp_path_factory.mktemp("prometheus")
    openssl = "req -x509 -days 2 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key"
    subject = "-out server.crt -subj /CN=x -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(["openssl", *openssl.split(), *subject.split()], check=True, cwd=folder, capture_output=True)
    (folder / "web.yml").write_text(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
        f"basic_auth_users:\n  prometheus: {bcrypt.hashpw(b'pass', bcrypt.gensalt(10)).decode()}\n"
    )
    load = Load()
    with (
        Served([Fake("load", load.collect)]) as plain,
        Served([Fake("load", load.collect)], config_file=str(folder / "web.yml")) as secure,
    ):
        prometheus = Prometheus(
            folder,
            f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: plain
  static_configs: [{{targets: ["127.0.0.1:{plain.port}"]}}]
- job_name: secure
  scheme: https
  basic_auth: {{username: prometheus, password: pass}}
  tls_config: {{ca_file: {folder / "server.crt"}}}
  params: {{"collect[]": [load]}}
  static_configs: [{{targets: ["127.0.0.1:{secure.port}"]}}]
""",
        )
        try:
            prometheus.wait()
            yield prometheus
        finally:
            prometheus.stop()


@pytest.mark.parametrize("job", ["plain", "secure"])
def test_every_scrape_succeeded(scraped: Prometheus, job: str) -> None:
    """Scrapes succeed once a second (which `wait` has seen), and all series come every time."""
    complete = f"scrape_samples_scraped{{job='{job}'}} > 0"
    assert scraped.value(f"min_over_time(({complete})[1m:1s])") >= SERIES
    success = f"accel_exporter_collector_success{{job='{job}', collector='load'}}"
    assert 1 == scraped.value(f"last_over_time({success}[1m])")
    assert b"level=warn" not in scraped.log.read_bytes().partition(b"Server is ready")[2]


@pytest.mark.parametrize("job", ["plain", "secure"])
def test_rate_is_the_workloads(scraped: Prometheus, job: str) -> None:
    """rate() over the scrapes is within 2 % of the workload's rate; a late scrape may disturb a few windows."""
    query = f"quantile_over_time(0.5, rate(test_launches_total{{job='{job}'}}[10s])[8s:1s])"

    until(lambda: abs(scraped.value(query) / PER_SECOND - 1) < 0.02, lambda: scraped.value(query))


def test_hostile_label_is_stored_as_it_is(scraped: Prometheus) -> None:
    """A process name with quotes, newlines, controls and an invalid byte is one label value of one series."""
    [result] = scraped.data("query", query="last_over_time(test_launches_total{job='plain'}[1m])")["result"]

    assert HOSTILE.replace("\udcff", "\ufffd") == result["metric"]["comm"]


def test_exemplars_are_stored(scraped: Prometheus) -> None:
    """Prometheus accepts OpenMetrics and keeps the trace ids of the wait histogram."""
    end = time.time()
    found = scraped.data(
        "query_exemplars", query="test_wait_seconds_bucket{job='plain'}", start=str(end - 60), end=str(end)
    )

    assert {"trace_id": TRACE, "span_id": SPAN} == found[0]["exemplars"][0]["labels"]


def test_types_and_help_are_known(scraped: Prometheus) -> None:
    """The metadata of each family arrives with its type, help and unit."""
    metadata = scraped.data("metadata")

    known = {name: (entries[0]["type"], entries[0]["help"]) for name, entries in metadata.items()}
    assert ("counter", "Launches.") in (known.get("test_launches"), known.get("test_launches_total"))
    assert ("histogram", "Waits.") == known["test_wait_seconds"]
    assert ("gauge", "Bytes.") == known["test_usage_bytes"]
