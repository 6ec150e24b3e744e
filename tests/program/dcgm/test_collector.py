"""The collector as a whole: its switches and settings, and the series of its three sources."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exporter import discover, option_sources, settings
from exporter.collectors import dcgm
from exporter.collectors.dcgm import Dcgm, configure
from exporter.compat.dcgm import profiling
from exporter.model import Sample, Unavailable
from exporter.nvml.snapshot import Event, GpuProcess, GpuSnapshot
from exporter.options import SettingsError
from tests.program.dcgm.test_endpoint import give, served
from tests.program.dcgm.test_profiling import BINDINGS, GPUS
from tests.support import until
from tests.unit.dcgm.gpus import MadeGpus, gpu

DEFAULTS = {option.name: option.default for option in dcgm.OPTIONS}


def given(**words: Any) -> dict[str, Any]:
    """Returns settings by name, with `_` for `.` and `-`."""
    names = {name.replace(".", "_").replace("-", "_"): name for name in DEFAULTS}
    made = configure({**DEFAULTS, **{names[word]: value for word, value in words.items()}})
    assert made is not None
    return dict(made)


@contextmanager
def running(made: MadeGpus, **words: Any) -> Iterator[Dcgm]:
    subject = Dcgm(made.node(settings=given(**words)))
    subject.start()
    try:
        yield subject
    finally:
        subject.close()


def values_once(collect: Callable[[], list[Sample]], condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Waits for the condition. Returns the values by name and GPU."""

    def found() -> dict[str, Any] | None:
        values = {_key(sample): sample.value for sample in collect()}
        return values if condition(values) else None

    return until(found) or {}


def _key(sample: Sample) -> str:
    place = sample.labels.get("gpu") or sample.labels.get("source") or ""
    return f"{sample.metric.name} {place}".strip()


def load(*arguments: str) -> settings.Settings:
    found = list(discover.collectors().values())
    declared = settings.all_options(found)
    return settings.load(option_sources.from_flags(settings.make_parser(found), arguments, declared), {}, found)


def test_off_by_default() -> None:
    """The collector is off by default; any of its three switches turns it on."""
    assert None is configure(DEFAULTS)
    assert "dcgm" not in load().collectors
    assert "dcgm" in load("--compat.dcgm").collectors
    assert "dcgm" in load("--dcgm.url=http://localhost:9400/metrics").collectors
    assert "dcgm" in load(f"--dcgm.bindings={BINDINGS}").collectors


def test_default_rows() -> None:
    """Without a file the rows are those that dcgm-exporter shows by default."""
    rows = load("--compat.dcgm").collectors["dcgm"]["rows"]

    assert 26 == len(rows)


def test_a_changed_file_is_a_changed_setting(tmp_path: Path) -> None:
    """A reload follows a change of the file."""
    file = tmp_path / "counters.csv"
    file.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
    before = load("--compat.dcgm", f"--compat.dcgm.csv={file}")
    file.write_text("DCGM_FI_DEV_GPU_UTIL, gauge, x\n")
    after = load("--compat.dcgm", f"--compat.dcgm.csv={file}")

    assert ["DCGM_FI_DEV_GPU_TEMP"] == [row.name for row in before.collectors["dcgm"]["rows"]]
    assert before.collectors != after.collectors


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"compat_dcgm_csv": "x.csv"}, "compat.dcgm.csv has no effect without compat.dcgm; give both"),
        ({"compat_dcgm": True, "compat_dcgm_csv": "/no/x.csv"}, "/no/x.csv cannot be read: No such file or directory"),
        ({"dcgm_url": "localhost:9400"}, "'localhost:9400' is not a URL such as http://localhost:9400/metrics"),
        ({"dcgm_bindings": "/no"}, "there is no pydcgm.py in /no; DCGM 4 has it in /usr/share"),
    ],
)
def test_mistakes(words: dict[str, Any], expected: str) -> None:
    """A wrong setting is an error before the start."""
    with pytest.raises(SettingsError) as raised:
        given(**words)
    assert expected in str(raised.value)


def test_shows_what_nvml_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every GPU that NVML reads has the default series, with the node's name."""
    monkeypatch.setenv("NODE_NAME", "node-7")
    with running(MadeGpus(gpu(0), gpu(1)), compat_dcgm=True) as subject:
        found = list(subject.collect())

    assert {"0", "1"} == {sample.labels["gpu"] for sample in found}
    assert {"node-7"} == {sample.labels["Hostname"] for sample in found}
    assert 24 * 2 == len(found)


def test_no_nvml() -> None:
    """Without NVML the collector is unavailable, with NVML's reason."""
    made = MadeGpus()
    made.now = GpuSnapshot("absent", "libnvidia-ml.so.1 is not there")
    with running(made, compat_dcgm=True) as subject, pytest.raises(Unavailable, match="libnvidia-ml.so.1 is not there"):
        list(subject.collect())


def test_xid() -> None:
    """The last Xid of NVML is shown until the next."""
    made = MadeGpus(gpu())
    with running(made, compat_dcgm=True) as subject:
        made.gpus.publish(Event("GPU-0", time.time(), "xid", 79))
        found = {sample.metric.name: sample.value for sample in subject.collect()}

    assert 79 == found["DCGM_FI_DEV_XID_ERRORS"]
    made.gpus.publish(Event("GPU-0", time.time(), "xid", 13))  # no listener is left, and nothing fails


def test_rates_between_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVLink's rate is known at the first scrape: snapshots are taken between scrapes."""
    monkeypatch.setattr(dcgm, "LOOK_SECONDS", 0.02)
    made = MadeGpus(gpu(at=100.0))
    with running(made, compat_dcgm=True) as subject:
        until(subject._looker.read_once.is_set, "a snapshot is taken")
        made.now = MadeGpus(gpu(at=110.0, fast={"nvlink_tx_kib": 11_000})).now
        found = {sample.metric.name: sample.value for sample in subject.collect()}

    assert 1.0 == found["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"]


def test_job_of_the_processes() -> None:
    """The Slurm job of the processes on a GPU is its hpc_job."""
    made = MadeGpus(gpu(processes=(GpuProcess(7, "compute", 0),)), processes={7: {"slurm_job_id": "42"}})
    with running(made, compat_dcgm=True) as subject:
        jobs = {sample.labels.get("hpc_job") for sample in subject.collect()}

    assert {"42"} == jobs


def test_unfilled_rows_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A field that only DCGM reports is logged with its line, once, and the other rows are shown."""
    file = tmp_path / "counters.csv"
    file.write_text("# x\nDCGM_EXP_GPU_HEALTH_STATUS, gauge, x\nDCGM_FI_DEV_GPU_TEMP, gauge, warm\n")
    with (
        caplog.at_level(logging.WARNING),
        running(MadeGpus(gpu()), compat_dcgm=True, compat_dcgm_csv=str(file)) as subject,
    ):
        found = list(subject.collect())

    assert ["DCGM_FI_DEV_GPU_TEMP"] == [sample.metric.name for sample in found]
    assert ["DCGM_EXP_GPU_HEALTH_STATUS (line 2) is not filled: Findings of DCGM's own health watches."] == [
        record.getMessage() for record in caplog.records
    ]


PAGE = """\
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0"} 77
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-0"} 0.5
"""


def test_beside_a_dcgm_exporter() -> None:
    """Series of the page are passed on, and other fields are filled from NVML: each series once."""
    with (
        served(give(PAGE.encode())) as url,
        running(MadeGpus(gpu(0), gpu(1)), compat_dcgm=True, dcgm_url=url, dcgm_interval=60.0) as subject,
    ):
        found = values_once(
            lambda: list(subject.collect()), lambda found: found["accel_exporter.dcgm.success endpoint"]
        )
        assert [] == list(subject.problems())

    assert (77, 41) == (found["DCGM_FI_DEV_GPU_TEMP 0"], found["DCGM_FI_DEV_GPU_TEMP 1"])
    assert (0.5, 63) == (found["DCGM_FI_PROF_SM_ACTIVE 0"], found["DCGM_FI_DEV_GPU_UTIL 0"])
    assert found["accel_exporter.source.age dcgm_endpoint"] < 5
    assert 0 == found["accel_exporter.dcgm.lines.refused"]


def test_only_a_dcgm_exporter() -> None:
    """Without NVML the page's series are shown; a failure of the page is a metric and a problem."""
    made = MadeGpus()
    made.now = GpuSnapshot("absent", "no library")
    with served(give(PAGE.encode())) as url, running(made, dcgm_url=url, dcgm_interval=1.0) as subject:
        found = values_once(lambda: list(subject.collect()), lambda found: "DCGM_FI_DEV_GPU_TEMP 0" in found)
        assert {"DCGM_FI_DEV_GPU_TEMP 0", "DCGM_FI_PROF_SM_ACTIVE 0"} == {
            key for key in found if key.startswith("DCGM")
        }
    with running(made, dcgm_url="http://127.0.0.1:1/", dcgm_interval=1.0) as subject:
        values_once(lambda: list(subject.collect()), lambda found: found == {"accel_exporter.dcgm.success endpoint": 0})
        assert ["dcgm-exporter cannot be read"] == [problem.partition(":")[0] for problem in subject.problems()]


def test_dcgm_fills_what_nvml_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiling fields of a GPU without GPM are DCGM's, here and in snapshots, until the collector closes."""
    scenario = tmp_path / "scenario.json"
    scenario.write_text(json.dumps({"gpus": GPUS}))
    monkeypatch.setenv("DCGM_STANDIN", str(scenario))
    monkeypatch.setattr(profiling, "FRESH", 60)  # on a busy machine the child may be late
    made = MadeGpus(gpu(0, fast={"tensor_active_percent": None}))
    with running(made, compat_dcgm=True, dcgm_bindings=str(BINDINGS), dcgm_interval=1.0) as subject:
        found = values_once(lambda: list(subject.collect()), lambda found: "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE 0" in found)
        in_snapshot = made.gpus.snapshot().gpus[0].value("tensor_active_percent")

    assert (0.25, 0.57) == (found["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE 0"], found["DCGM_FI_PROF_GR_ENGINE_ACTIVE 0"])
    assert (1, 25.0) == (found["accel_exporter.dcgm.success bindings"], in_snapshot)
    assert None is made.gpus.snapshot().gpus[0].value("tensor_active_percent")
