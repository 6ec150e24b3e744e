"""Incidents through a real Prometheus with the shipped rules and a real Alertmanager with the shipped configuration."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

import pytest

from tests.e2e.incidents.cluster import CONFIG, RULES, Phone, happen
from tests.e2e.incidents.faster import Clock
from tests.e2e.incidents.incident import Incident, Notice
from tests.e2e.incidents.timelines import HEALTHY, INCIDENTS

CLOCKS = (Clock(40), Clock(15), Clock(6))
"""A slower one, where the machine stopped for so long in the one before that series were absent as in no cluster."""
MISSED = 2
"""Minutes without a scrape after which that is so: rules that wait for one or two would wait for longer."""

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        not (shutil.which("promtool") and shutil.which("prometheus-alertmanager") and shutil.which("amtool")),
        reason="Debian's prometheus and prometheus-alertmanager are not installed",
    ),
    pytest.mark.evidence(feature="alert and recording rules", on="real software"),
]


@pytest.fixture(scope="module")
def phone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Phone:
    """After all incidents have happened, or those that -k chose: the small ones at once, then the large ones."""
    folder = tmp_path_factory.mktemp("incidents")
    chosen = " ".join(it.name for it in request.session.items)
    incidents = [it for it in (*INCIDENTS, *HEALTHY) if f"[{it.name}]" in chosen]
    heard: Phone | None = None
    for large in (False, True):
        if share := [it for it in incidents if it.large is large]:
            for clock in CLOCKS:
                phone, missed = happen(folder / f"{large}-{clock.factor}", clock, share)
                print(f"{len(share)} incidents, {clock.factor} times faster: {missed:.1f} minutes without a scrape")
                if missed < MISSED:
                    break
            if heard:
                phone.sent += heard.sent
            heard = phone
    assert heard, "no incident was chosen"
    return heard


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


def test_a_faster_clock_changes_durations_alone() -> None:
    """A rule keeps its thresholds; its durations, its time and its rates are those of the faster clock."""
    clock = Clock(60)
    text = "sum(rate(a_total[5m])) / rate(b_total[10m] offset 1h) > 0.1 and time() - max_over_time(c[1d]) < 600"
    assert clock.query(text, 7) == (
        "sum((rate(a_total[5000ms]) / 60)) / (rate(b_total[10000ms] offset 60000ms) / 60) > 0.1 "
        "and ((time() - 7.000) * 60) - max_over_time(c[1440000ms]) < 600"
    )
    rule = {"alert": "A", "expr": "avg_over_time((s < bool 4)[5m:15s])", "for": "3m", "labels": {"severity": "info"}}
    assert clock.rules([rule], 0) == [rule | {"expr": "avg_over_time((s < bool 4)[5000ms:250ms])", "for": "3000ms"}]
    assert "group_wait: 1000ms" in clock.alertmanager(CONFIG.read_text())


def test_there_are_as_many_as_the_list_has() -> None:
    """Twenty incidents, ten days on which there is none, each with a name of its own."""
    assert len(INCIDENTS) >= 20 and len(HEALTHY) >= 10
    assert len({it.name for it in (*INCIDENTS, *HEALTHY)}) == len(INCIDENTS) + len(HEALTHY)
    assert all(it.pages or it.tickets for it in INCIDENTS) and not any(it.pages or it.tickets for it in HEALTHY)


def _heard(phone: Phone, incident: Incident, path: str, notices: Sequence[Notice]) -> None:
    sent = phone.of(incident.name, path)
    assert sorted(it.alert for it in notices) == sorted({name for it in sent for name in it.names}), sent
    for notice in notices:
        first = next(it for it in sent if notice.alert in it.names)
        assert notice.minute >= first.minute, (notice, sent)
        assert any(notice.names in text for name, text in first.summaries if name == notice.alert), (notice, sent)


@pytest.mark.parametrize("incident", INCIDENTS, ids=[it.name for it in INCIDENTS])
def test_who_hears_of_it(phone: Phone, incident: Incident) -> None:
    """Each cause is paged or ticketed in time, names where it is, and nothing else is sent; two pages at most."""
    _heard(phone, incident, "page", incident.pages)
    _heard(phone, incident, "ticket", incident.tickets)
    assert len(incident.pages) == len(phone.of(incident.name, "page")) <= 2, phone.of(incident.name, "page")
    assert 2 * len(incident.tickets) >= len(phone.of(incident.name, "ticket")), phone.of(incident.name, "ticket")


@pytest.mark.parametrize("incident", HEALTHY, ids=[it.name for it in HEALTHY])
def test_nobody_hears_of_a_healthy_day(phone: Phone, incident: Incident) -> None:
    """Everyday events cause neither pages nor tickets."""
    assert [] == [message for cluster, message in phone.sent if cluster == incident.name]
