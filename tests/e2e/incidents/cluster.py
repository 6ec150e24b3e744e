"""Prometheus, Alertmanager and the people that it calls, for incidents that happen at once on a faster clock."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from tests.e2e.backend import end, get
from tests.e2e.incidents.faster import Clock
from tests.e2e.incidents.generator import Generator
from tests.e2e.incidents.incident import MINUTES, Incident
from tests.support import free_port, until

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "deploy/alertmanager/alertmanager.yml"
RULES = [path for path in sorted((ROOT / "alerts").glob("*.yaml")) if not path.stem.endswith(".test")]
CORDONED = CONFIG.with_name("cordoned.yaml")
STARTING = 3
"""Seconds in which every Prometheus reads its rules, before the first minute."""
JOB = "accel-exporter"
"""The scrape job that rules name."""


@dataclass(frozen=True)
class Message:
    """A notification to a person: the firing alerts with their summaries, at a minute of the incident."""

    path: str
    minute: float
    summaries: tuple[tuple[str, str], ...]

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.summaries}


class Phone:
    """The webhook of both receivers: what the people of each cluster were sent of alerts that fire. A context."""

    def __init__(self, clock: Clock) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.start = 0.0
        phone = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                alerts = [it for it in body["alerts"] if it["status"] == "firing"]
                texts = tuple((it["labels"]["alertname"], it["annotations"]["summary"]) for it in alerts)
                if texts:
                    message = Message(self.path[1:], (time.time() - phone.start) * clock.factor / 60, texts)
                    phone.sent.append((body["groupLabels"]["cluster"], message))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def of(self, cluster: str, path: str) -> list[Message]:
        return [message for where, message in self.sent if (where, message.path) == (cluster, path)]

    def __enter__(self) -> Phone:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Prometheus:
    """A Prometheus of one cluster, or of several, of which each is a scrape job. A context."""

    def __init__(self, folder: Path, clock: Clock, incidents: Sequence[Incident]) -> None:
        self._folder, self._clock, self._incidents = folder, clock, incidents
        self._alone = len(incidents) == 1

    def timelines(self) -> dict[str, dict[str, str]]:
        """Return the incidents' series with the label job, and with an exporter that is up."""
        return {
            it.name: {
                name.replace("{", f'{{job="{JOB if self._alone else it.name}",', 1): values
                for name, values in ({'up{instance="n0"}': "1x60"} | it.series).items()
            }
            for it in self._incidents
        }

    @contextmanager
    def run(self, generator: str, alertmanager: str) -> Iterator[str]:
        """Runs it without rules, until the context ends; yields its address."""
        (self._folder / "rules").mkdir(parents=True)
        minute = self._clock.shorter("1m")
        relabel = [] if self._alone else [{"source_labels": ["job"], "target_label": "cluster"}]
        config = {
            "global": {
                "scrape_interval": minute,
                "scrape_timeout": minute,
                "evaluation_interval": self._clock.shorter(self._incidents[0].evaluated),
                "external_labels": {"cluster": self._incidents[0].name},
            },
            "rule_files": [f"{self._folder}/rules/*.yaml"],
            "alerting": {
                "alert_relabel_configs": relabel,
                "alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}],
            },
            "scrape_configs": [
                {
                    "job_name": f"generator-of-{it.name}",
                    "honor_labels": True,
                    "metrics_path": f"/{it.name}",
                    "static_configs": [{"targets": [generator]}],
                }
                for it in self._incidents
            ],
        }
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with program(
            self._folder,
            *("prometheus", f"--config.file={self._folder}/prometheus.yml", f"--storage.tsdb.path={self._folder}/data"),
            *(f"--query.lookback-delta={self._clock.shorter('5m')}", f"--rules.alert.resend-delay={minute}"),
            "--web.enable-lifecycle",
        ) as address:
            yield address

    def load(self, address: str, start: float) -> None:
        """Loads the shipped rules on the clock that starts at the Unix time `start`."""
        for path in (*RULES, CORDONED):
            text = path.read_text() if self._alone else path.read_text().replace(f'job="{JOB}"', 'job=~".+"')
            content = self._clock.rules(yaml.safe_load(text), start)
            (self._folder / "rules" / path.name).write_text(yaml.safe_dump(content, width=1000))
        urllib.request.urlopen(f"http://{address}/-/reload", data=b"", timeout=60).close()


class Watched:
    """A server that gets a request all the time, and the longest time in seconds without an answer. A context."""

    def __init__(self, address: str) -> None:
        self.longest = 0.0
        self._address, self._over = address, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.2):
            get(f"http://{self._address}/-/ready")
            last, before = time.monotonic(), last
            self.longest = max(self.longest, last - before)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def program(folder: Path, *arguments: str) -> Iterator[str]:
    """Runs a server of Debian's until the context ends; yields its address when it is ready."""
    address = f"127.0.0.1:{free_port()}"
    with (folder / f"{arguments[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [*arguments, f"--web.listen-address={address}", "--log.level=warn"], stdout=log, stderr=log
        )
    try:
        until(lambda: get(f"http://{address}/-/ready") is not None, f"{arguments[0]} is ready")
        yield address
    finally:
        end(process)


def happen(folder: Path, clock: Clock, incidents: Sequence[Incident]) -> tuple[Phone, float]:
    """Has incidents happen at once; returns who was sent what, and the longest time without a scrape in minutes.

    Where Alertmanager stood still, that time and a minute count: alerts that come meanwhile are as late, or in parts.
    """
    folder.mkdir()
    alone = [it for it in incidents if it.alone]
    together = [it for it in incidents if not it.alone]
    shares = [*([it] for it in alone), *([together] if together else [])]
    servers = [Prometheus(folder / f"prometheus{number}", clock, share) for number, share in enumerate(shares)]
    timelines = {name: series for it in servers for name, series in it.timelines().items()}
    with ExitStack() as running:
        phone = running.enter_context(Phone(clock))
        config = folder / "alertmanager.yml"
        config.write_text(clock.alertmanager(CONFIG.read_text()).replace("localhost:9099", phone.address))
        command = ("prometheus-alertmanager", f"--config.file={config}", f"--storage.path={folder}/data")
        alertmanager = running.enter_context(program(folder, *command, "--cluster.listen-address="))
        generator = running.enter_context(Generator(timelines, clock))
        addresses = [running.enter_context(it.run(generator.address, alertmanager)) for it in servers]
        generator.start = phone.start = start = time.time() + STARTING
        for server, address in zip(servers, addresses, strict=True):
            server.load(address, start)
        with Watched(alertmanager) as watched:
            time.sleep(max(0.0, start + (MINUTES + 1) * 60 / clock.factor - time.time()))
    return phone, max(generator.longest * clock.factor / 60, watched.longest * clock.factor / 60 + 1)
