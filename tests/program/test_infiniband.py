"""RDMA devices beside Debian's node_exporter: the same series from the same files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.collectors import infiniband
from exporter.views import prometheus
from tests.e2e.backend import get
from tests.nodes import make_node
from tests.support import free_port, until
from tests.unit.infiniband.trees import Tree, write

pytestmark = pytest.mark.evidence(feature="RDMA port counters", on="stand-in")

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(page: str) -> dict[str, tuple[str, Series]]:
    """Kind and series of each family of node_exporter's InfiniBand collector."""
    return {
        family.name: (family.type, {(it.name, frozenset(it.labels.items())): it.value for it in family.samples})
        for family in text_string_to_metric_families(page)
        if family.name.startswith("node_infiniband")
    }


def theirs(program: str, sys: Path) -> str:
    """The page of a node_exporter that reads this /sys."""
    address = f"127.0.0.1:{free_port()}"
    command = [program, "--collector.disable-defaults", "--collector.infiniband", f"--path.sysfs={sys}"]
    with subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=subprocess.DEVNULL) as process:
        try:
            return until(lambda: get(f"http://{address}/metrics"), "node_exporter answers") or ""
        finally:
            process.terminate()


def ours(sys: Path) -> str:
    values = {option.name: option.default for option in infiniband.OPTIONS} | {infiniband.COMPATIBLE: True}
    node = make_node(settings=values, processes=None, targets=None, spans=lambda span: None, sys=sys)
    collector = infiniband.create(node)
    try:
        return prometheus.render(collector.collect()).text.decode()
    finally:
        collector.close()


def test_same_series(tmp_path: Path) -> None:
    """Every series of node_exporter is ours too, with name, kind, labels and value."""
    program = shutil.which("prometheus-node-exporter")
    if program is None:
        pytest.skip("there is no prometheus-node-exporter; make setup-dev gets it")
    tree = Tree(tmp_path)
    numbers = {name: at * 1_000_003 for at, name in enumerate(("port_rcv_data", "port_xmit_wait", "link_downed"), 1)}
    tree.infiniband("mlx5_0", packet_seq_err=3, **numbers)
    port = tree.mlx5("mlx5_1", unicast_rcv_packets=5)
    write(port / "rate", "2.5 Gb/sec (1X SDR)")
    write(port / "state", "1: DOWN")
    write(port / "counters_ext/port_xmit_data_64", 77)

    expected, found = series(theirs(program, tmp_path)), series(ours(tmp_path))

    assert len(expected) > 20
    assert expected.keys() <= found.keys()
    for name, (kind, samples) in expected.items():
        assert (kind, samples) == found[name]
