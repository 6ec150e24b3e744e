"""A real Prometheus, configured as the Prometheus operator does it for the chart's monitors."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.backend import Prometheus
from tests.support import until

pytestmark = [
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus (Debian package) is not installed"),
    pytest.mark.evidence(feature="chart and manifests", on="stand-in"),
]

ROOT = Path(__file__).parents[2]
CHART, HELM = ROOT / "deploy/helm/accel-exporter", Path(sys.prefix) / "bin/helm"
PAGE = b"""# TYPE hw_status gauge
hw_status{hw_id="GPU-1"} 1
# TYPE gpu_cuda_memory_usage_bytes gauge
gpu_cuda_memory_usage_bytes{pid="7",pod="train-0",namespace="ml",container="torch"} 23
"""
DISCOVERED = {
    "namespace": "monitoring",
    "pod_name": "accel-exporter-x7k2p",
    "pod_container_name": "accel-exporter",
    "pod_container_port_name": "metrics",
    "pod_node_name": "node-7",
    "pod_phase": "Running",
    "pod_label_app_kubernetes_io_name": "accel-exporter",
    "pod_labelpresent_app_kubernetes_io_name": "true",
    "pod_label_app_kubernetes_io_instance": "accel-exporter",
    "pod_labelpresent_app_kubernetes_io_instance": "true",
    "service_name": "accel-exporter",
    "service_label_app_kubernetes_io_name": "accel-exporter",
    "service_labelpresent_app_kubernetes_io_name": "true",
    "service_label_app_kubernetes_io_instance": "accel-exporter",
    "service_labelpresent_app_kubernetes_io_instance": "true",
    "endpoint_port_name": "metrics",
    "endpoint_address_target_kind": "Pod",
    "endpoint_address_target_name": "accel-exporter-x7k2p",
}
"""Meta labels of Prometheus' service discovery for the exporter's pod."""


@pytest.fixture
def address() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def generated(monitor: Mapping[str, Any], address: str) -> dict[str, Any]:
    """The scrape configuration that the operator makes of a monitor (pkg/prometheus/promcfg.go), for one target."""
    pods = monitor["kind"] == "PodMonitor"
    kind = "pod" if pods else "service"
    [endpoint] = monitor["spec"]["podMetricsEndpoints" if pods else "endpoints"]
    port = "__meta_kubernetes_pod_container_port_name" if pods else "__meta_kubernetes_endpoint_port_name"
    rules: list[dict[str, Any]] = [{"source_labels": ["job"], "target_label": "__tmp_prometheus_job_name"}]
    for name, value in monitor["spec"]["selector"]["matchLabels"].items():
        label = name.replace(".", "_").replace("/", "_")
        sources = [f"__meta_kubernetes_{kind}_label_{label}", f"__meta_kubernetes_{kind}_labelpresent_{label}"]
        rules.append({"action": "keep", "source_labels": sources, "regex": f"({value});true"})
    rules.append({"action": "keep", "source_labels": [port], "regex": endpoint["port"]})
    if not pods:
        target = [f"__meta_kubernetes_endpoint_address_target_{it}" for it in ("kind", "name")]
        rules += [
            {"source_labels": target, "separator": ";", "regex": f"{it};(.*)", "target_label": it.lower()}
            for it in ("Node", "Pod")
        ]
        rules.append({"source_labels": ["__meta_kubernetes_service_name"], "target_label": "service"})
    for name in ("namespace", "pod_container_name", "pod_name"):
        target_label = {"pod_container_name": "container", "pod_name": "pod"}.get(name, name)
        rules.append({"source_labels": [f"__meta_kubernetes_{name}"], "target_label": target_label})
    job = monitor["spec"]["jobLabel"].replace(".", "_").replace("/", "_")
    rules += [
        {"target_label": "job", "replacement": "monitoring/accel-exporter"},
        {"source_labels": [f"__meta_kubernetes_{kind}_label_{job}"], "target_label": "job", "regex": "(.+)"},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]
    for rule in endpoint["relabelings"]:
        renamed = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
        rules.append({renamed.get(key, key): value for key, value in rule.items()})
    labels = {f"__meta_kubernetes_{name}": value for name, value in DISCOVERED.items()}
    return {
        "job_name": f"{monitor['kind']}/monitoring/accel-exporter/0",
        "honor_labels": endpoint["honorLabels"],
        "static_configs": [{"targets": [address], "labels": labels}],
        "relabel_configs": rules,
    }


@pytest.mark.parametrize("value", ["podMonitor", "serviceMonitor"])
def test_no_series_gets_the_exporters_pod(tmp_path: Path, address: str, value: str) -> None:
    """A series without a pod stays without one, one with a pod keeps its own, and the instance is the node."""
    made = subprocess.run(
        [HELM, "template", "accel-exporter", CHART, "--set", f"{value}.enabled=true"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    [monitor] = (it for it in yaml.safe_load_all(made.stdout) if it and it["kind"].endswith("Monitor"))
    prometheus = Prometheus(tmp_path, address, [])
    config = yaml.safe_load((tmp_path / "prometheus.yml").read_text())
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config | {"scrape_configs": [generated(monitor, address)]}))
    with prometheus:
        until(lambda: prometheus.query("hw_status") or None, "scraped")
        found = {
            labels["__name__"]: labels
            for labels in map(dict, prometheus.query('{__name__=~"hw_status|gpu_cuda_memory_usage_bytes|up"}'))
        }
    names = ("job", "instance", "pod", "namespace", "container", "pid")
    assert {
        "hw_status": ("accel-exporter", "node-7", None, None, None, None),
        "up": ("accel-exporter", "node-7", None, None, None, None),
        "gpu_cuda_memory_usage_bytes": ("accel-exporter", "node-7", "train-0", "ml", "torch", "7"),
    } == {name: tuple(labels.get(it) for it in names) for name, labels in found.items()}
