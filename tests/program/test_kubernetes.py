"""The chart, the manifests made from it, and the composition: valid, complete, and granting what is needed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from exporter import discover, option_sources
from exporter.bpf import privileges
from exporter.settings import all_options, load, make_parser

pytestmark = pytest.mark.evidence(feature="chart and manifests", on="not run")

ROOT = Path(__file__).parents[2]
CHART, MANIFESTS, COMPOSE = (ROOT / "deploy" / name for name in ("helm/accel-exporter", "kubernetes", "compose"))
HELM = Path(sys.prefix) / "bin" / "helm"
RULES = sorted(path for path in (ROOT / "alerts").glob("*.yaml") if not path.stem.endswith(".test"))
DASHBOARDS = sorted((ROOT / "dashboards").glob("*.json"))
KEPT = {*privileges.OBSERVING, privileges.READING_THE_LOG}
OPERATED = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
"""Custom resources, of which the schemas of Kubernetes know nothing."""
KUBERNETES = ("1.30", "1.34")

EVERYTHING = """
config: {log: {level: debug}, collector: {cuda: {spans-per-second: 5}}}
extraArgs: [--no-collector.xid]
extraEnv: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: "http://collector:4318"}]
imagePullSecrets: [{name: pull}]
runtimeClassName: nvidia
webConfigSecret: web
faultReports: "/var/lib/a b: c"
podLabels: [app, team]
workloads: true
topology: {nodeLabels: true}
podAnnotations: {checksum/config: mine, team: ml}
extraPodLabels: {team: ml, app.kubernetes.io/name: other}
extraVolumes: [{name: probes, hostPath: {path: /etc/probes}}]
extraVolumeMounts: [{name: probes, mountPath: /etc/probes, readOnly: true}]
securityContext: {seccompProfile: {type: Localhost, localhostProfile: own.json}}
hostNetwork: true
networkPolicy: {enabled: true, from: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}
image: {digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
serviceMonitor:
  enabled: true
  labels: {release: prometheus}
  endpoint: {tlsConfig: {ca: {secret: {name: web, key: ca.crt}}}, basicAuth: {username: {name: web, key: user}}}
  relabelings: [{sourceLabels: [__meta_kubernetes_node_label_rack], targetLabel: rack}]
  attachMetadata: {node: true}
  metricRelabelings: [{action: drop, sourceLabels: [__name__], regex: rdma_port_packets_total}]
  sampleLimit: 50000
  labelLimit: 40
  scrapeClassicHistograms: true
prometheusRule: {enabled: true, disabled: [NodeRebooted], runbooks: "https://example.com/runbooks/", grafana: "https://grafana.example.com/"}
dashboards: {enabled: true, folder: "GPU: all #1"}
"""
POD_MONITOR = "podMonitor: {enabled: true}"
MONITORS = {"PodMonitor": POD_MONITOR, "ServiceMonitor": "serviceMonitor: {enabled: true}"}


def helm(*arguments: str | Path, values: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HELM, *arguments, "--values", "-"], input=values, capture_output=True, text=True, timeout=180, check=False
    )


def template(values: str = "") -> list[Any]:
    made = helm("template", "accel-exporter", CHART, "--namespace", "accel-exporter", values=values)
    assert made.returncode == 0, made.stderr
    return [document for document in yaml.safe_load_all(made.stdout) if document]


def container(documents: list[Any]) -> Any:
    [daemon_set] = (it for it in documents if it["kind"] == "DaemonSet")
    [found] = daemon_set["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("kind", MONITORS)
def test_forms_of_histograms(kind: str) -> None:
    """The monitor has the forms that are set, false too, and by default leaves them to Prometheus."""
    fields = {"scrapeNativeHistograms", "scrapeClassicHistograms"}
    given = "scrapeNativeHistograms: false, scrapeClassicHistograms: true}"
    for values, expected in (
        (MONITORS[kind], {}),
        (MONITORS[kind][:-1] + ", " + given, {"scrapeNativeHistograms": False, "scrapeClassicHistograms": True}),
    ):
        [monitor] = [it for it in template(values) if it["kind"] == kind]
        assert expected == {name: value for name, value in monitor["spec"].items() if name in fields}


@pytest.mark.parametrize("kind", MONITORS)
def test_the_instance_is_the_node(kind: str) -> None:
    """The monitor has the node's name as instance, by which cordoned.yaml inhibits the alerts of a cordoned node."""
    [monitor] = [it for it in template(MONITORS[kind]) if it["kind"] == kind]
    [endpoint] = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
    assert {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"} in endpoint["relabelings"]
    [rule] = yaml.safe_load((ROOT / "deploy/alertmanager/cordoned.yaml").read_text())["groups"][0]["rules"]
    assert '"instance", "$1", "node", "(.+)")' in rule["expr"]


@pytest.mark.parametrize("kind", MONITORS)
def test_another_telemetry_path(kind: str) -> None:
    """Prometheus scrapes the path at which the exporter serves."""
    [monitor] = [it for it in template("config: {web: {telemetry-path: /m}}\n" + MONITORS[kind]) if it["kind"] == kind]
    spec = monitor["spec"]
    [endpoint] = spec.get("podMetricsEndpoints") or spec["endpoints"]
    assert "/m" == endpoint["path"]


def test_chart_is_sound() -> None:
    """Helm's own linter has no complaint."""
    linted = helm("lint", "--strict", CHART, values=EVERYTHING)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("values", ["", "privileged: true", EVERYTHING], ids=["defaults", "privileged", "everything"])
@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_are_valid(version: str, values: str) -> None:
    """Each resource is one that this version of Kubernetes takes, with no field that it does not know."""
    for document in template(values):
        if document["kind"] not in OPERATED:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("privilegd: true", "privilegd"),
        ("port: 0", "port"),
        ("extraArgs: [log.level=debug]", "extraArgs"),
        ("podMonitor: {interval: soon}", "interval"),
        ("image: {repository: ''}", "repository"),
        ("image: {tag: 'sha256:0123'}", "tag"),
        ("podMonitor: {enabled: true, endpoint: {port: http}}", "endpoint"),
        ("podMonitor: {enabled: true}\nserviceMonitor: {enabled: true}", "scraped twice"),
        ("podMonitor: {enabled: true, interval: 1m, scrapeTimeout: 1m1ms}", "podMonitor.scrapeTimeout 1m1ms: longer"),
        ("serviceMonitor: {enabled: true, interval: 5s}", "serviceMonitor.scrapeTimeout 10s: longer"),
        ("prometheusRule: {enabled: true, disabled: [GpuLost, GpuLots]}", "there is no alert GpuLots"),
        ("prometheusRule: {enabled: true, alerts: {GpuLots: {for: 1m}}}", "there is no alert GpuLots"),
        ("prometheusRule: {alerts: {GpuLost: {for: 1}}}", "for"),
        ("extraEnv: [{name: A, value: 1}]", "extraEnv"),
        ("extraEnv: [{name: A, valeu: b}]", "extraEnv"),
        ("extraEnv: [{name: ''}]", "extraEnv"),
    ],
)
def test_wrong_values_are_refused(values: str, expected: str) -> None:
    """A misspelt or impossible value is an error that names it."""
    refused = helm("template", "accel-exporter", CHART, values=values)
    assert refused.returncode != 0
    assert expected in refused.stderr


def test_capabilities() -> None:
    """A container gets those that the exporter keeps, and no others."""
    granted = container(template())["securityContext"]["capabilities"]
    assert ["ALL"] == granted["drop"]
    assert KEPT == {f"CAP_{name}" for name in granted["add"]}


def test_arguments_are_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter takes every argument of the container, and the configuration beside them."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")  # as in every pod
    found = discover.collectors()
    documents = template(EVERYTHING.replace("webConfigSecret: web", ""))
    [config] = (it for it in documents if it["kind"] == "ConfigMap" and it["metadata"]["name"] == "accel-exporter")
    (tmp_path / "config.yaml").write_text(config["data"]["config.yaml"])
    (tmp_path / "sys").mkdir()
    given = [it.replace("/etc/accel-exporter/", f"{tmp_path}/") for it in container(documents)["args"]]
    given = [it.replace("/host/sys", f"{tmp_path}/sys") for it in given]
    parser = make_parser(found.values())
    chosen = option_sources.from_flags(parser, given, all_options(found.values()))
    settings = load(chosen, {}, list(found.values()))
    assert ("debug", 5) == (settings.log.level, settings.collectors["cuda"]["spans-per-second"])


def test_rules_are_all_there() -> None:
    """The PrometheusRule has every rule of alerts/, but for those switched off, with links to where runbooks are."""
    [made] = (it for it in template(EVERYTHING) if it["kind"] == "PrometheusRule")
    written = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    expected = [
        {**rule, "annotations": dict(_linked(*it) for it in rule["annotations"].items())} if "alert" in rule else rule
        for group in written
        for rule in group["rules"]
        if rule.get("alert") != "NodeRebooted"
    ]
    assert expected == [rule for group in made["spec"]["groups"] for rule in group["rules"]]


def _linked(name: str, text: str) -> tuple[str, str]:
    """An annotation with a path as one with an address."""
    if name == "dashboard":
        return "dashboard_url", f"https://grafana.example.com{text}"
    if name == "runbook":
        return "runbook_url", text.replace("docs/runbooks/", "https://example.com/runbooks/")
    return name, text


def test_dashboards_are_all_there() -> None:
    """Each dashboard is a ConfigMap that Grafana's sidecar finds, unchanged."""
    labelled = [
        it["data"]
        for it in template(EVERYTHING)
        if it["kind"] == "ConfigMap" and it["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    boards = {name: json.loads(text) for data in labelled for name, text in data.items()}
    assert {f"accel-exporter-{path.name}": json.loads(path.read_text()) for path in DASHBOARDS} == boards


def test_monitors_give_the_job_that_rules_look_for() -> None:
    """Series scraped through either monitor have job="accel-exporter" and the observed process's own labels."""
    for kind, values in MONITORS.items():
        documents = template(values)
        [monitor] = (it for it in documents if it["kind"].endswith("Monitor"))
        daemon_set = next(it for it in documents if it["kind"] == "DaemonSet")
        assert kind == monitor["kind"]
        [endpoint] = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
        assert endpoint["honorLabels"] is True
        assert "accel-exporter" == daemon_set["spec"]["template"]["metadata"]["labels"][monitor["spec"]["jobLabel"]]


def test_values_are_rendered_as_they_are() -> None:
    """Contents of a value are neither YAML nor a second key; the chart's own labels and annotations stay."""
    documents = template(EVERYTHING)
    daemon_set = next(it for it in documents if it["kind"] == "DaemonSet")
    pod = daemon_set["spec"]["template"]
    reports = next(it for it in pod["spec"]["volumes"] if it["name"] == "fault-reports")
    assert "/var/lib/a b: c" == reports["hostPath"]["path"]
    assert "ml" == pod["metadata"]["annotations"]["team"] == pod["metadata"]["labels"]["team"]
    assert 64 == len(pod["metadata"]["annotations"]["checksum/config"])
    assert "accel-exporter" == pod["metadata"]["labels"]["app.kubernetes.io/name"]
    assert container(documents)["image"].startswith("accel-exporter@sha256:0123")
    security = container(documents)["securityContext"]
    assert ({"type": "Localhost", "localhostProfile": "own.json"}, True) == (
        security["seccompProfile"],
        security["readOnlyRootFilesystem"],
    )
    folders = {it["metadata"]["annotations"]["grafana_folder"] for it in documents if "grafana" in str(it["metadata"])}
    assert {"GPU: all #1"} == folders
    made = helm(
        "template",
        "accel-exporter",
        CHART,
        "--set-string",
        "dashboards.folder=2026",
        values="dashboards: {enabled: true}",
    )
    numbered = [it for it in yaml.safe_load_all(made.stdout) if it and "annotations" in it["metadata"]]
    assert {"2026"} == {it["metadata"]["annotations"]["grafana_folder"] for it in numbered}


def test_a_monitor_can_scrape_what_is_protected() -> None:
    """With TLS or users the monitor has the scheme of the file, and what the endpoint needs to connect."""
    [monitor] = (it for it in template(EVERYTHING) if it["kind"] == "ServiceMonitor")
    [endpoint] = monitor["spec"]["endpoints"]
    assert ("https", "web", "web") == (
        endpoint["scheme"],
        endpoint["tlsConfig"]["ca"]["secret"]["name"],
        endpoint["basicAuth"]["username"]["name"],
    )
    assert (50000, 40, {"node": True}) == tuple(
        monitor["spec"][it] for it in ("sampleLimit", "labelLimit", "attachMetadata")
    )
    users_only = template(f"{POD_MONITOR}\nwebConfigSecret: web\nwebConfigTLS: false")
    [monitor] = (it for it in users_only if it["kind"] == "PodMonitor")
    assert "http" == monitor["spec"]["podMetricsEndpoints"][0]["scheme"]


def test_sysfs_is_read_only_throughout() -> None:
    """Nothing that other file systems are mounted in is mounted from the host's /sys."""
    documents = template()
    mounts = {it["name"]: it for it in container(documents)["volumeMounts"]}
    volumes = next(it for it in documents if it["kind"] == "DaemonSet")["spec"]["template"]["spec"]["volumes"]
    folders = {it["name"]: it["hostPath"]["path"] for it in volumes if "hostPath" in it}
    sys_folders = {name: path for name, path in folders.items() if path.startswith("/sys")}
    assert {"/sys/class", "/sys/bus", "/sys/devices", "/sys/module", "/sys/fs/cgroup"} == set(sys_folders.values())
    assert all(mounts[name]["readOnly"] for name in sys_folders)
    assert {name: f"/host{path}" for name, path in sys_folders.items()} == {
        name: mounts[name]["mountPath"] for name in sys_folders
    }


def test_written_manifests_are_current(tmp_path: Path) -> None:
    """deploy/kubernetes/ is what the chart gives; `make manifests` writes it."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", symlinks=True)
    for folder in ("alerts", "dashboards"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    subprocess.run([tmp_path / "deploy" / "manifests.sh", tmp_path], check=True, timeout=180)
    for name in ("accel-exporter.yaml", "monitoring.yaml", "rules.yaml"):
        assert (tmp_path / name).read_text() == (MANIFESTS / name).read_text()


def test_kustomization_is_complete() -> None:
    """The kustomization names every manifest beside it, and all are valid."""
    named = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in MANIFESTS.glob("*.yaml")} - {"kustomization.yaml"} == set(named)
    documents = [it for name in named for it in yaml.safe_load_all((MANIFESTS / name).read_text()) if it]
    for document in documents:
        if document["kind"] not in OPERATED:
            kubernetes_validate.validate(document, KUBERNETES[-1], strict=True)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kustomize_takes_it() -> None:
    """kubectl's own kustomize builds it."""
    built = subprocess.run(["kubectl", "kustomize", MANIFESTS], capture_output=True, text=True, timeout=180, check=True)
    kinds = [it["kind"] for it in yaml.safe_load_all(built.stdout)]
    assert {"Namespace", "DaemonSet", "Service", "ServiceAccount", "PodMonitor", "PrometheusRule"} == set(kinds)


def test_composition() -> None:
    """Every file that the composition mounts is there, and its exporter has the capabilities that it keeps."""
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    mounts = [it.partition(":")[0] for service in services.values() for it in service.get("volumes", ())]
    assert [] == [it for it in mounts if it.startswith(".") and not (COMPOSE / it).exists()]
    assert KEPT == {f"CAP_{name}" for name in services["exporter"]["cap_add"]}
    assert ["ALL"] == services["exporter"]["cap_drop"]


def test_composed_prometheus(tmp_path: Path) -> None:
    """The composed Prometheus evaluates every rule file, and promtool takes its configuration."""
    text = (COMPOSE / "prometheus.yml").read_text()
    named = [Path(it).name for it in yaml.safe_load(text)["rule_files"]]
    assert [path.name for path in RULES] == named
    if not shutil.which("promtool"):
        pytest.skip("promtool (Debian: prometheus) is not installed")
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/alerts", str(ROOT / "alerts")))
    subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], check=True, timeout=180)


def test_composed_grafana() -> None:
    """The dashboards find their data source and the folder that is mounted; exemplars find their trace."""
    source, traces = yaml.safe_load((COMPOSE / "grafana/datasources/accel-exporter.yaml").read_text())["datasources"]
    assert [{"name": "trace_id", "datasourceUid": traces["uid"]}] == source["jsonData"]["exemplarTraceIdDestinations"]
    assert ("jaeger", "http://traces:16686") == (traces["type"], traces["url"])
    assert "traces" in yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    [provider] = yaml.safe_load((COMPOSE / "grafana/dashboards/accel-exporter.yaml").read_text())["providers"]
    grafana = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]["grafana"]
    assert ("prometheus", "http://prometheus:9090") == (source["type"], source["url"])
    assert f"../../dashboards:{provider['options']['path']}:ro" in grafana["volumes"]


def test_the_charts_version_is_the_exporters() -> None:
    """Chart and exporter are released together."""
    version = re.search(r'__version__ = "([^"]+)"', (ROOT / "exporter/__init__.py").read_text())
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert version
    assert (version[1], version[1]) == (chart["version"], chart["appVersion"])
