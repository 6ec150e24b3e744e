"""The topology collector: which source counts, what it shows of failures, and what it keeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from exporter.collectors import topology
from exporter.collectors.topology import TopologyCollector, configure
from exporter.nvml.gpus import Gpus
from exporter.nvml.snapshot import Gpu, GpuIdentity, GpuSnapshot, Readings
from tests.nodes import make_node
from tests.standins.pods import Api, api

pytestmark = pytest.mark.evidence(feature="place of a node", on="stand-in")
VALUES = {flag.name: flag.default for flag in topology.FLAGS}
REGISTERED = {"fabric_state": 3, "fabric_status": 0, "fabric_clique": 7, "fabric_cluster": 1}
needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")


class Subject:
    """A collector of a node called n1, with a clock that a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setenv("NODE_NAME", "n1")
        self.time, self.gpus = 0.0, Gpus()
        nobody: Any = None
        node = make_node(configure(VALUES | settings), nobody, nobody, lambda _: None, gpus=self.gpus)
        self.collector = TopologyCollector(node, lambda: self.time)

    def read(self) -> dict[str, list[tuple[dict[str, str], Any]]]:
        """Labels and values of all series by the metric's name, after a reading."""
        self.collector.read()
        found: dict[str, list[tuple[dict[str, str], Any]]] = {}
        for sample in self.collector.collect():
            found.setdefault(sample.metric.name, []).append((dict(sample.labels), sample.value))
        return found


def with_labels(running: Api, **labels: str) -> None:
    running.answer = json.dumps({"metadata": {"labels": labels}}).encode()


@needs_openssl
def test_sources_complete_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's file counts before Slurm's, Slurm's before labels; each adds what the others do not have."""
    (tmp_path / "file").write_text("n1 rack=r1\nn1 device=m0 leaf=l9\n")
    (tmp_path / "topology.conf").write_text("SwitchName=l1 Nodes=n[1-4]\nSwitchName=s1 Switches=l1\n")
    with api(tmp_path) as running:
        with_labels(running, **{"topology.kubernetes.io/zone": "z", "network.topology.nvidia.com/leaf": "x"})
        settings = {"file": str(tmp_path / "file"), "slurm-conf": str(tmp_path / "topology.conf"), "node-labels": True}
        files = {"token-file": str(running.token_file), "ca-file": str(running.ca)}
        subject = Subject(monkeypatch, **{"node-url": running.url, **settings, **files})
        found = subject.read()
        [(_, headers)] = running.requests
    assert [({"rack": "r1", "leaf": "l1", "spine": "s1", "zone": "z"}, 1)] == found[topology.INFO.name]
    assert [({"device": "m0", "leaf": "l9"}, 1)] == found[topology.DEVICE.name]
    good = {labels["source"] for labels, value in found[topology.SUCCESS.name] if value}
    assert {"file", "slurm", "node_labels"} == good
    assert headers["Accept"].startswith("application/json;as=PartialObjectMetadata;")


@needs_openssl
def test_an_api_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place stays known for a day, the failure is shown, and it is a problem that names the flag."""
    with api(tmp_path) as running:
        with_labels(running, **{"topology.kubernetes.io/rack": "r1"})
        files = {"token-file": str(running.token_file), "ca-file": str(running.ca)}
        subject = Subject(monkeypatch, **{"node-url": running.url, "node-labels": True, **files})
        assert [({"rack": "r1"}, 1)] == subject.read()[topology.INFO.name]
        running.status = 403
        found = subject.read()
    assert [({"rack": "r1"}, 1)] == found[topology.INFO.name]
    assert [({"source": "node_labels"}, 0)] == found[topology.SUCCESS.name]
    [problem] = subject.collector.problems()
    assert "the place of the node is not known" in problem
    assert "the token in --collector.topology.token-file does not allow to get nodes" in problem
    subject.time = topology.KEPT + 1
    assert topology.INFO.name not in subject.read()


def test_a_file_that_is_wrong_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that becomes wrong costs nothing that was known from it."""
    (path := tmp_path / "file").write_text("n1 rack=r1")
    subject = Subject(monkeypatch, file=str(path))
    subject.read()
    for break_it in (lambda: path.write_text("n1 rakc=r2"), path.unlink):
        break_it()
        found = subject.read()
        assert [({"rack": "r1"}, 1)] == found[topology.INFO.name]
        assert [({"source": "file"}, 0)] == found[topology.SUCCESS.name]


def test_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a source there is no series, and no thread."""
    subject = Subject(monkeypatch)
    subject.collector.start()
    assert {} == subject.read()
    subject.collector.close()


def test_the_domain_of_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cluster and clique of the GPUs are the NVLink domain, unless a source names another one."""
    domain = "00000000-0000-0000-0000-000000000001.7"
    gpu = Gpu(GpuIdentity("GPU-a", 0, "GB200", ""), sets={"slow": Readings(0.0, REGISTERED)})
    subject = Subject(monkeypatch)
    subject.gpus.serve(lambda: GpuSnapshot("running", gpus=(gpu,)), lambda _: True)
    assert [({"nvlink_domain": domain}, 1)] == subject.read()[topology.INFO.name]
    (path := tmp_path / "file").write_text("n1 nvlink_domain=d")
    subject = Subject(monkeypatch, file=str(path))
    subject.gpus.serve(lambda: GpuSnapshot("running", gpus=(gpu,)), lambda _: True)
    assert [({"nvlink_domain": "d"}, 1)] == subject.read()[topology.INFO.name]
