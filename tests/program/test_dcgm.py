"""In place of dcgm-exporter: the real exporter on a stand-in for NVML, and the queries of dashboards by Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser

from exporter.compat.dcgm.fields import FIELDS
from exporter.model import Kind
from tests.e2e.backend import Prometheus, end, get
from tests.standins import nvml
from tests.support import PATIENCE, free_port, until

pytestmark = pytest.mark.evidence(feature="dcgm-exporter's series", on="stand-in")

ROOT = Path(__file__).parents[2]
SELECTED = '{instance=~".+", gpu=~".+"}'
GPUS = 2

PANELS: dict[str, tuple[str, list[float]]] = {
    "GPU Temperature": (f"DCGM_FI_DEV_GPU_TEMP{SELECTED}", [41, 42]),
    "GPU Avg. Temp": (f"avg(DCGM_FI_DEV_GPU_TEMP{SELECTED})", [41.5]),
    "GPU Power Usage": (f"DCGM_FI_DEV_POWER_USAGE{SELECTED}", [312.456, 312.456]),
    "GPU Power Total": (f"sum(DCGM_FI_DEV_POWER_USAGE{SELECTED})", [624.912]),
    "GPU SM Clocks": (f"DCGM_FI_DEV_SM_CLOCK{SELECTED} * 1000000", [1755e6, 1755e6]),
    "GPU Utilization": (f"DCGM_FI_DEV_GPU_UTIL{SELECTED}", [63, 63]),
    "GPU Framebuffer Mem Used": (f"DCGM_FI_DEV_FB_USED{SELECTED}", [43008, 43008]),
    "Tensor Core Utilization": (f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{SELECTED}", [0.4875, 0.4875]),
}
"""The queries of dashboard 12239 with all instances and GPUs chosen, and what they have to give here."""

EVERYTHING: dict[str, object] = {
    **{f"gpu.gpm.{number}": 1000 for number in range(248, 261)},
    **{f"gpu.field.{number}": 0 for number in (29, 30, 31, 38, 45, 52, 59)},
}
"""More than an H100 reports by itself: counts of GPM, retired pages and totals of old NVLinks."""


@contextmanager
def exporter(folder: Path, *flags: str, ready: str = "DCGM_FI", **scenario: object) -> Iterator[Exporter]:
    """An exporter with fast readings, once its page has the text `ready`."""
    subject = Exporter(folder, flags, nvml.Scenario(folder, **{"gpus": GPUS, "gpu1.temperature": 42} | scenario))
    try:
        until(lambda: ready in (subject.page() or ""), f"{ready} is on the page")
        yield subject
    finally:
        end(subject.process)


class Exporter:
    def __init__(self, folder: Path, flags: tuple[str, ...], scenario: nvml.Scenario) -> None:
        self.listen, self.scenario, self.log = f"127.0.0.1:{free_port()}", scenario, folder / "exporter.log"
        command = [sys.executable, "-m", "exporter", f"--web.listen-address={self.listen}"]
        command += ["--collector.disable-defaults", "--collector.nvml"]
        command += [f"--collector.nvml.{name}-interval=0.5" for name in ("fast", "processes", "slow")]
        environment = {**os.environ, **scenario.environment(), "NODE_NAME": "node-1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, *flags], cwd=ROOT, env=environment, stdout=log, stderr=log)

    def page(self) -> str | None:
        return get(f"http://{self.listen}/metrics")

    def whole(self) -> str:
        """A page for which NVML was read in time, as on a machine that is not busy."""
        read = 'accel_exporter_source_stalled{source="nvml"} 0'
        return until(lambda: it if read in (it := self.page() or "") else "", "NVML answers")

    def names(self) -> set[str]:
        return set(re.findall(r"^(DCGM_\w+)\{", self.page() or "", re.M))


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    nvml.build()


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    with exporter(
        tmp_path_factory.mktemp("dcgm"), "--compat.dcgm", ready="DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{"
    ) as made:
        yield made


@pytest.fixture(scope="module")
def prometheus(subject: Exporter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    if not shutil.which("prometheus"):
        pytest.skip("prometheus (Debian package) is not installed")
    with Prometheus(tmp_path_factory.mktemp("prometheus"), subject.listen, []) as made:
        until(lambda: made.query("DCGM_FI_DEV_GPU_TEMP"), "Prometheus has scraped")
        yield made


@pytest.mark.parametrize("panel", PANELS)
def test_dashboard_12239(prometheus: Prometheus, panel: str) -> None:
    """Each panel's query returns NVML's values, in the unit that the panel expects."""
    query, expected = PANELS[panel]

    def found() -> list[float]:
        return sorted(prometheus.query(query).values())

    until(lambda: expected == pytest.approx(found()), found)


def test_variables_of_12239(prometheus: Prometheus, subject: Exporter) -> None:
    """The dashboard's variables, instance and gpu, have values to choose."""

    def found() -> dict[str, set[str | None]]:
        return {
            it: {dict(labels).get(it) for labels in prometheus.query(f"group by ({it}) (DCGM_FI_DEV_GPU_TEMP)")}
            for it in ("instance", "gpu")
        }

    until(lambda: {"instance": {subject.listen}, "gpu": {"0", "1"}} == found(), found)


def test_energy_is_a_counter_to_prometheus(prometheus: Prometheus) -> None:
    """A rate of the energy, in mJ per second, is the power that the stand-in draws, in mW."""
    query = "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[10s])"

    def rates() -> list[float]:
        return list(prometheus.query(query).values())

    until(lambda: [312_456, 312_456] == pytest.approx(rates(), rel=0.25), rates)


def test_every_default_row(subject: Exporter) -> None:
    """Every row that dcgm-exporter shows by default is there for each GPU, with its type, and no other is."""
    page = subject.whole()
    expected = {field.name: field.kind.value for field in FIELDS if field.default and field.kind}

    assert expected == dict(re.findall(r"^# TYPE (DCGM_\w+) (\w+)$", page, re.M))
    assert {name: GPUS for name in expected} == {name: page.count(f"\n{name}{{") for name in expected}


def test_labels(subject: Exporter) -> None:
    """The labels are dcgm-exporter's."""
    [line] = re.findall(r'^DCGM_FI_DEV_GPU_TEMP\{(.*gpu="1".*)\} 42$', subject.whole(), re.M)

    assert {
        "gpu": "1",
        "UUID": nvml.UUID.format(1),
        "pci_bus_id": "00000000:19:00.0",
        "device": "nvidia1",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "node-1",
        "DCGM_FI_DRIVER_VERSION": "580.95.05",
    } == dict(re.findall(r'(\w+)="([^"]*)"', line))


def test_promtool_complains_of_its_names_only(subject: Exporter) -> None:
    """promtool finds what it finds with dcgm-exporter: names of counters, a type in a name, labels in camelCase."""
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    checked = subprocess.run([promtool, "check", "metrics"], input=subject.whole(), capture_output=True, text=True)
    complaints = {tuple(line.split(" ", 1)) for line in checked.stderr.splitlines()}

    counters = {field.name for field in FIELDS if field.default and field.kind is Kind.COUNTER}
    gauges = {field.name for field in FIELDS if field.default and field.kind is Kind.GAUGE}
    assert {
        *((name, "label names should be written in 'snake_case' not 'camelCase'") for name in counters | gauges),
        *((name, 'counter metrics should have "_total" suffix') for name in counters),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "metric name should not include type 'counter'"),
    } == complaints


def test_openmetrics(subject: Exporter) -> None:
    """The OpenMetrics page is valid with these names on it, and has the same series."""
    request = urllib.request.Request(
        f"http://{subject.listen}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        families = {it.name: it for it in openmetrics_parser.text_string_to_metric_families(answer.read().decode())}

    assert subject.names() == {name for name in families if name.startswith("DCGM")}
    assert "unknown" == families["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"].type
    assert "gauge" == families["DCGM_FI_DEV_GPU_TEMP"].type


def test_xid(subject: Exporter) -> None:
    """An Xid that NVML reports is the GPU's last one at the next scrape; the other GPU has none."""
    subject.scenario.set({"event.1": "1 8 79"})
    until(lambda: _values(subject, "DCGM_FI_DEV_XID_ERRORS") == ["0", "79"], "the Xid is shown")


def test_file_and_reload(tmp_path: Path) -> None:
    """A file chooses the rows, by either name; it is followed on SIGHUP, and what it was stays when it is wrong."""
    file = tmp_path / "counters.csv"
    file.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, warm\nDCGM_FI_DEV_SERIAL, label, number\n")
    with exporter(tmp_path, "--compat.dcgm", f"--compat.dcgm.csv={file}", "--compat.dcgm.names=both") as subject:
        page = subject.page() or ""
        assert {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"} == subject.names()
        assert "# HELP DCGM_FI_DEV_GPU_TEMP warm\n" in page
        assert 'DCGM_FI_DEV_SERIAL="165000000000"' in page

        file.write_text("DCGM_FI_DEV_GPU_TMP, gauge, x\n")
        subject.process.send_signal(signal.SIGHUP)
        until(lambda: "counters.csv:1: unknown field" in subject.log.read_text(), "the mistake is logged")
        assert "DCGM_FI_DEV_GPU_TEMP" in subject.names()

        file.write_text("DCGM_FI_DEV_GPU_UTIL_RATIO, gauge, x\n")
        subject.process.send_signal(signal.SIGHUP)
        until(lambda: {"DCGM_FI_DEV_GPU_UTIL_RATIO"} == subject.names(), "the file is followed")


def test_every_field(tmp_path: Path) -> None:
    """Each field is there for a GPU that reports everything, but for those that only GPUs without GPM have."""
    file = tmp_path / "counters.csv"
    file.write_text("".join(f"{it.name}, {it.kind.value if it.kind else 'label'}, x\n" for it in FIELDS))
    old = {f"DCGM_FI_DEV_PCIE_{name}_THROUGHPUT" for name in ("TX", "RX")}
    expected = {field.name for field in FIELDS if field.kind} - old
    with exporter(tmp_path, "--compat.dcgm", f"--compat.dcgm.csv={file}", **EVERYTHING) as subject:
        until(lambda: "power_cap" in (subject.page() or ""), "the reason that clocks are lowered for is seen")
        subject.scenario.set({"gpu.reasons": "0x24", "event.1": "0 8 79"})
        until(lambda: expected <= subject.names(), "every field is shown")
        labels = set(re.findall(r'(DCGM_\w+)="[^"]+"', subject.page() or ""))

    assert {field.name for field in FIELDS if field.kind is None} - {"DCGM_FI_DEV_POWER_INFOROM_VER"} == labels


def test_before_hopper(tmp_path: Path) -> None:
    """A GPU without GPM has no profiling fields, and PCIe traffic where a file has it."""
    file = tmp_path / "counters.csv"
    rows = ("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_GPU_TEMP")
    file.write_text("".join(f"{name}, gauge, x\n" for name in rows))
    with exporter(
        tmp_path, "--compat.dcgm", f"--compat.dcgm.csv={file}", **{"gpu.gpm": 0, "gpu.pcie_throughput.0": 9}
    ) as subject:
        until(lambda: set(rows[1:]) == subject.names(), "the fields it has are shown")


def test_wrong_file(tmp_path: Path) -> None:
    """With a field that DCGM does not know the exporter does not start; a line has field, place and what is near."""
    file = tmp_path / "counters.csv"
    file.write_text("# clocks\nDCGM_FI_DEV_SM_CLOK, gauge, x\n")
    command = [sys.executable, "-m", "exporter", "--compat.dcgm", f"--compat.dcgm.csv={file}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)

    error = f"accel-exporter: {file}:2: unknown field 'DCGM_FI_DEV_SM_CLOK'; did you mean DCGM_FI_DEV_SM_CLOCK?\n"
    assert (2, error) == (ended.returncode, ended.stderr)


def test_mig(tmp_path: Path) -> None:
    """A divided GPU is shown as its seven instances, each with its own memory; the other GPU as a whole."""
    with exporter(tmp_path, "--compat.dcgm", ready="GPU_I_ID", **{"gpu0.mig": 7}) as subject:
        until(lambda: len(_values(subject, "DCGM_FI_DEV_FB_USED")) == 8, "all instances are shown")
        page = subject.page() or ""
        places = re.findall(r'^DCGM_FI_DEV_FB_USED\{.*?GPU_I_ID="(\d+)",GPU_I_PROFILE="([^"]*)".*gpu="0"', page, re.M)

    assert {"1g.10gb"} == {profile for _, profile in places}
    assert 7 == len({instance for instance, _ in places})


def test_beside_a_dcgm_exporter(subject: Exporter, tmp_path: Path) -> None:
    """Another exporter's page is passed on with gpu_uuid; when it goes, so do its series, and that is a metric."""
    served = Exporter(tmp_path, ("--compat.dcgm",), nvml.Scenario(tmp_path, gpus=1))
    try:
        until(lambda: served.names(), "it has series")
        folder = tmp_path / "second"
        folder.mkdir()
        flags = (f"--dcgm.url=http://{served.listen}/metrics", "--dcgm.interval=1s")
        with exporter(folder, *flags, gpus=1) as second:
            [line] = re.findall(r"^DCGM_FI_DEV_GPU_TEMP\{.*", second.page() or "", re.M)
            assert f'gpu_uuid="{nvml.UUID.format(0)}"' in line and 'Hostname="node-1"' in line
            assert 'accel_exporter_dcgm_success{source="endpoint"} 1' in (second.page() or "")
            end(served.process)
            until(
                lambda: "accel_exporter_dcgm_success" in (second.page() or "") and not second.names(), "its series go"
            )
            assert 'accel_exporter_dcgm_success{source="endpoint"} 0' in (second.page() or "")
    finally:
        end(served.process)


def test_dcgm_beside_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU without GPM DCGM's values are in its own names and in ours; a child that is killed is replaced."""
    scenario = tmp_path / "dcgm.json"
    scenario.write_text(json.dumps({"gpus": [{"uuid": nvml.UUID.format(0), "values": {"1004": 0.25}}]}))
    monkeypatch.setenv("DCGM_STANDIN", str(scenario))
    flags = ("--compat.dcgm", f"--dcgm.bindings={ROOT / 'tests' / 'standins' / 'dcgm'}", "--dcgm.interval=1s")
    with exporter(tmp_path, *flags, gpus=1, **{"gpu.gpm": 0}) as subject:
        until(lambda: _values(subject, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") == ["0.25"], "DCGM's value is shown")
        assert ["0.25"] == _values(subject, "gpu_tensor_active_ratio")
        [child] = [
            it for it in psutil.Process(subject.process.pid).children() if "exporter.compat.dcgm.engine" in it.cmdline()
        ]
        scenario.rename(tmp_path / "away")  # the next child fails, so that what is noticed stays
        child.kill()
        until(lambda: 'accel_exporter_dcgm_success{source="bindings"} 0' in (subject.page() or ""), "it is noticed")
        (tmp_path / "away").rename(scenario)
        until(lambda: 'accel_exporter_dcgm_success{source="bindings"} 1' in (subject.page() or ""), "it is replaced")


def _values(subject: Exporter, name: str) -> list[str]:
    return sorted(re.findall(rf"^{name}\{{.*\}} (\S+)$", subject.page() or "", re.M))
