"""Trouble of the RDMA network in a device's own counters fires the alert of it, for that device, and no other."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.e2e.backend import Prometheus
from tests.e2e.fault_table import firing
from tests.program.process import ROOT, Exporter
from tests.support import until
from tests.unit.infiniband.trees import Tree, write

pytestmark = pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus (Debian package) is not installed")

TROUBLE: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "mlx5_0": ("RdmaNackRatioHigh", {"hw_counters/packet_seq_err": 20}),
    "mlx5_1": ("RdmaReceiverNotReady", {"hw_counters/rnr_nak_retry_err": 200}),
    "mlx5_2": ("RdmaRetriesExceeded", {"hw_counters/req_transport_retries_exceeded": 1}),
    "mlx5_3": ("RdmaAckTimeouts", {"hw_counters/local_ack_timeout_err": 5}),
    "mlx5_4": ("RdmaLinkErrorsRising", {"counters/local_link_integrity_errors": 1}),
    "mlx5_5": ("RdmaLinkSpeedReduced", {}),
    "mlx5_6": ("", {}),
}
"""Device to the alert that has to fire for it, and what is added to its counters each time they are looked at."""
SENT = 1000


def hurried(folder: Path) -> Path:
    """The shipped rules with seconds for minutes."""
    content = yaml.safe_load((ROOT / "alerts/rdma.yaml").read_text())
    for rule in content["groups"][0]["rules"]:
        rule["expr"] = re.sub(r"\[\d+[mh]\]", "[10s]", rule["expr"])
        if "for" in rule:
            rule["for"] = "1s"
    path = folder / "rdma.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def add(port: Path, changes: Mapping[str, int]) -> None:
    """A thousand packets more, and what goes wrong with them."""
    for name, value in {"counters/port_xmit_packets": SENT, **changes}.items():
        write(port / name, int((port / name).read_text()) + value)


def test_trouble_fires_its_alert(tmp_path: Path) -> None:
    """Each device fires its own alert and nothing else; the one that only sends fires none, as does health before."""
    tree = Tree(tmp_path / "sys")
    ports = {device: tree.infiniband(device) for device in TROUBLE}
    flags = ("--collector.disable-defaults", "--collector.infiniband", "--collector.infiniband.interval=1s")
    exporter = Exporter(tmp_path, *flags, f"--path.sysfs={tree.sys}").await_ready()
    try:
        with Prometheus(tmp_path, exporter.address, [hurried(tmp_path)]) as prometheus:

            def healthy() -> bool:
                for port in ports.values():
                    add(port, {})
                return len(prometheus.query("rdma_nack_ratio == 0")) >= len(TROUBLE)

            until(healthy, "the ratio of every device is 0")
            assert [] == firing(prometheus)

            write(ports["mlx5_5"] / "rate", "200 Gb/sec (4X HDR)")
            expected = {(alert, device) for device, (alert, _) in TROUBLE.items() if alert}

            def troubled() -> set[tuple[str, str]] | None:
                for device, (_, changes) in TROUBLE.items():
                    add(ports[device], changes)
                fired = {(labels["alertname"], labels["device"]) for labels in firing(prometheus)}
                return fired if expected <= fired else None

            assert expected == until(troubled, "every alert fires")
    finally:
        exporter.end()
