"""The alert on loss, for packets that are really lost: soft-RoCE, exporter, Prometheus and the shipped rule."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from tests.rdma.conftest import ADDRESS, Side
from tests.rdma.rig import REPOSITORY, Host, Limit
from tests.rdma.test_counters import losing, write

ALERT = "RdmaNackRatioHigh"
LISTEN = "127.0.0.1:9090"

pytestmark = [
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus (Debian package) is not installed"),
    pytest.mark.evidence(feature="the alert on RDMA loss", on="real kernel, emulated hardware"),
]


@contextmanager
def prometheus(host: Host, seconds: int) -> Iterator[None]:
    """One that runs on the machine, with the rules of alerts/rdma.yaml, a second in place of each `for`.

    It scrapes at this interval.
    """
    interval = f"{seconds}s"
    rules = yaml.safe_load((REPOSITORY / "alerts/rdma.yaml").read_text())
    for rule in rules["groups"][0]["rules"]:
        if "for" in rule:
            rule["for"] = "1s"
    (host.folder / "rdma.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": "2s"},
        "rule_files": [str(host.folder / "rdma.yaml")],
        "scrape_configs": [{"job_name": "accel-exporter", "static_configs": [{"targets": [ADDRESS]}]}],
    }
    (host.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    flags = f"--config.file={host.folder}/prometheus.yml --storage.tsdb.path=/tmp/tsdb --web.listen-address={LISTEN}"
    host.begin(f"exec prometheus {flags}")
    try:
        host.await_answer(LISTEN, "/-/ready", 120)
        yield
    finally:
        host.run("pkill -x prometheus; true")


def await_no_ratio(side: Side) -> None:
    """Until what was lost in other tests is no part of the ratio any more."""
    limit = Limit(side.host, 120)
    while any(side.scrape().get("rdma_nack_ratio").values()):
        assert not limit.passed, "the ratio does not end"
        time.sleep(2)


def fired(host: Host) -> set[str]:
    """Names of the alerts that fire."""
    answer = json.loads(host.get(LISTEN, "/api/v1/alerts"))
    return {it["labels"]["alertname"] for it in answer["data"]["alerts"] if it["state"] == "firing"}


def test_lost_packets_fire_the_alert(sender: Side, receiver: Side) -> None:
    """The alert is silent while all packets arrive, and fires within two minutes when some do not."""
    began = time.monotonic()
    sender.scrape()
    interval = max(5, round(3 * (time.monotonic() - began)))
    with prometheus(sender.host, interval):
        await_no_ratio(sender)
        write(sender, receiver)
        sender.host.run(f"sleep {2 * interval + 2}", 120)
        assert ALERT not in fired(sender.host)
        with losing(receiver.host):
            write(sender, receiver)
        limit = Limit(sender.host, 120)
        while ALERT not in fired(sender.host):
            assert not limit.passed, "the alert did not fire"
            time.sleep(3)
