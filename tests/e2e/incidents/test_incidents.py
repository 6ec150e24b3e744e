"""Incidents through Prometheus' rules and a real Alertmanager with the shipped configuration: who hears of what."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.backend import end, get
from tests.e2e.incidents.timelines import INCIDENTS, MINUTES, Incident
from tests.support import free_port, until

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "deploy/alertmanager/alertmanager.yml"
RULES = [path for path in sorted((ROOT / "alerts").glob("*.yaml")) if not path.stem.endswith(".test")]
MINUTE = 0.1
"""Seconds that stand for a minute of the incident: here and in the durations of Alertmanager's configuration."""
_UNITS = {"s": 1 / 60, "m": 1, "h": 60, "d": 1440}

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (shutil.which("promtool") and shutil.which("prometheus-alertmanager") and shutil.which("amtool")),
        reason="Debian's prometheus and prometheus-alertmanager are not installed",
    ),
    pytest.mark.evidence(feature="alert and recording rules", on="real software"),
]

Firing = frozenset[tuple[str, str]]


def shortened(text: str) -> str:
    """The configuration with each duration as short as the incident."""
    durations = re.compile(r"((?:group_wait|group_interval|repeat_interval): )(\d+)([smhd])")

    def short(found: re.Match[str]) -> str:
        return f"{found[1]}{round(int(found[2]) * _UNITS[found[3]] * MINUTE * 1000)}ms"

    return durations.sub(short, text)


def firing(folder: Path) -> Mapping[str, Mapping[int, set[Firing]]]:
    """The alerts that fire in each incident at each minute, as Prometheus evaluates the shipped rules.

    promtool prints what a query gives where it was expected to give nothing.
    """
    tests = [
        {
            "interval": "1m",
            "input_series": [
                {"series": name.replace("{", '{job="accel-exporter",', 1), "values": values}
                for name, values in ({'up{instance="n0"}': "1x60"} | incident.series).items()
            ],
            "promql_expr_test": [
                {"expr": _query(incident), "eval_time": f"{minute}m", "exp_samples": []}
                for minute in range(MINUTES + 1)
            ],
        }
        for incident in INCIDENTS
    ]
    path = folder / "incidents.yaml"
    content = {"rule_files": [str(it) for it in RULES], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(content))
    ran = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    found: dict[str, dict[int, set[Firing]]] = defaultdict(lambda: defaultdict(set))
    texts = re.split(r"\n\s+expr: ", ran.stdout + ran.stderr)
    assert len(texts) > 1, ran.stdout + ran.stderr
    for text in texts[1:]:
        name = re.search(r'alertname!=\\"([\w-]+)\\"', text)
        at = re.search(r"time: (?:(\d+)h)?(?:(\d+)m)?", text)
        assert name and at, text
        minute = 60 * int(at[1] or 0) + int(at[2] or 0)
        for labels in re.findall(r"\{([^{}]*)\} 1E\+00", text.partition("got:")[2]):
            found[name[1]][minute].add(frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)))
    return found


def _query(incident: Incident) -> str:
    return f'ALERTS{{alertstate="firing",alertname!="{incident.name}"}}'


class Phone:
    """The webhook of both receivers: what it was sent of alerts that fire, by cluster and path."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, frozenset[str]]] = []
        phone = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                names = frozenset(it["labels"]["alertname"] for it in body["alerts"] if it["status"] == "firing")
                if names:
                    phone.sent.append((body["groupLabels"]["cluster"], self.path, names))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, cluster: str, path: str) -> list[frozenset[str]]:
        return [names for where, how, names in self.sent if (where, how) == (cluster, path)]


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phone]:
    """After all incidents have happened at once, each in a cluster of its own."""
    folder = tmp_path_factory.mktemp("incidents")
    alerts = firing(folder)
    phone = Phone()
    address = f"127.0.0.1:{free_port()}"
    config = folder / "alertmanager.yml"
    receiver = f"127.0.0.1:{phone.server.server_address[1]}"
    config.write_text(shortened(CONFIG.read_text()).replace("localhost:9099", receiver))
    with (folder / "alertmanager.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("prometheus-alertmanager", f"--config.file={config}", f"--storage.path={folder}/data"),
                *(f"--web.listen-address={address}", "--cluster.listen-address="),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: get(f"http://{address}/-/ready") is not None, "Alertmanager is ready")
        _replay(alerts, address)
        _settle(phone)
        yield phone
    finally:
        end(process)
        phone.server.shutdown()
        phone.server.server_close()


def _replay(alerts: Mapping[str, Mapping[int, set[Firing]]], address: str) -> None:
    """Sends Alertmanager what fires at each minute, and what does no more, as Prometheus does."""
    before: set[tuple[str, Firing]] = set()
    began = time.monotonic()
    for minute in range(MINUTES + 1):
        now = {(name, labels) for name, minutes in alerts.items() for labels in minutes.get(minute, ())}
        body = [_alert(name, labels, 3600) for name, labels in now]
        body += [_alert(name, labels, 0) for name, labels in before - now]
        _post(f"http://{address}/api/v2/alerts", body)
        before = now
        time.sleep(max(0.0, began + (minute + 1) * MINUTE - time.monotonic()))


def _alert(cluster: str, labels: Firing, seconds: float) -> dict[str, Any]:
    """An alert of Alertmanager's interface, that ends in so many seconds."""
    kept = {name: value for name, value in labels if name not in ("__name__", "alertstate")}
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + seconds)) + "Z"
    return {"labels": kept | {"cluster": cluster}, "endsAt": at} | ({"startsAt": at} if not seconds else {})


def _post(url: str, body: object) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10):
        pass


def _settle(phone: Phone) -> None:
    """Until what is expected has come; what comes beyond it has come before, as a group waits an hour at most."""
    expected = {(it.name, f"/{how}", alert) for it in INCIDENTS for how, names in _expected(it) for alert in names}

    def arrived() -> bool:
        sent = {(cluster, path, name) for cluster, path, names in list(phone.sent) for name in names}
        return expected <= sent

    try:
        until(arrived, seconds=60 * MINUTE)
    except AssertionError:  # the test of the incident names what is missing
        return
    time.sleep(10 * MINUTE)


def _expected(incident: Incident) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return ("page", tuple(incident.pages)), ("ticket", tuple(incident.tickets))


def test_the_configuration_is_valid() -> None:
    """amtool takes the shipped configuration, and promtool the rule for cordoned nodes."""
    checked = subprocess.run(["amtool", "check-config", CONFIG], capture_output=True, text=True, check=False)
    assert 0 == checked.returncode, checked.stdout + checked.stderr
    rules = CONFIG.parent / "cordoned.yaml"
    checked = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
    assert 0 == checked.returncode, checked.stdout + checked.stderr


def test_inhibited_alerts_exist() -> None:
    """Each name in a matcher is of an alert that there is, or of the rule for cordoned nodes."""
    alerts = {name for path in RULES for name in re.findall(r"alert: (\w+)", path.read_text())} | {"NodeCordoned"}
    matchers = re.findall(r'alertname =~? "?([\w.|*]+)', CONFIG.read_text())
    assert matchers
    unknown = [it for text in matchers for it in text.split("|") if not any(re.fullmatch(it, name) for name in alerts)]
    assert [] == unknown


@pytest.mark.parametrize("incident", INCIDENTS, ids=[it.name for it in INCIDENTS])
def test_who_hears_of_it(phone: Phone, incident: Incident) -> None:
    """Each cause is paged or ticketed once, nothing else is, and there are two pages at most."""
    for how, names in _expected(incident):
        sent = phone.of(incident.name, f"/{how}")
        assert sorted(names) == sorted({name for it in sent for name in it}), how
        assert len(names) == len(sent) if how == "page" else len(sent) <= 2 * len(names), (how, sent)
    assert 2 >= len(phone.of(incident.name, "/page"))
