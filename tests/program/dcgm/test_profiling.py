"""DCGM by NVIDIA's bindings, on a stand-in: values, hangs and crashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.compat.dcgm import profiling
from exporter.compat.dcgm.engine import EMBEDDED, ProfilingReading, decode, encode
from exporter.compat.dcgm.fields import FIELDS
from exporter.compat.dcgm.profiling import DcgmProfiling
from exporter.nvml.snapshot import Readings
from tests.support import PATIENCE, until

pytestmark = pytest.mark.evidence(feature="DCGM's own readings", on="stand-in")

BINDINGS = Path(__file__).parents[2] / "standins" / "dcgm"
GPUS = [
    {"uuid": "GPU-0", "values": {"1001": 0.57, "1004": 0.25, "1005": None, "1009": 1048576, "155": 300.0}},
    {"uuid": "GPU-1", "values": {"1004": 0.75}},
]


class Scenario:
    def __init__(self, file: Path) -> None:
        self._file = file
        self.set()

    def set(self, **words: Any) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"gpus": GPUS, **words}))
        new.rename(self._file)

    def calls(self, name: str) -> list[list[Any]]:
        """Returns the arguments of every call of a function."""
        log = Path(f"{self._file}.calls")
        lines = log.read_text().splitlines() if log.exists() else []
        return [arguments for call, *arguments in map(json.loads, lines) if call == name]


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    monkeypatch.setenv("DCGM_STANDIN", str(tmp_path / "scenario.json"))
    return Scenario(tmp_path / "scenario.json")


@pytest.fixture
def subject(scenario: Scenario) -> Iterator[DcgmProfiling]:
    made = DcgmProfiling(BINDINGS, "localhost", 0.2)
    yield made
    made.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is slow, as on a busy machine, is not taken for one that hangs, and its values stay."""
    monkeypatch.setattr(profiling, "FRESH", PATIENCE / 0.2)
    monkeypatch.setattr(DcgmProfiling, "close_seconds", PATIENCE)


@pytest.mark.usefixtures("patient")
def test_values(subject: DcgmProfiling) -> None:
    """Profiling fields of each GPU have exact values by name; blanks and other fields are absent."""
    subject.start()
    until(lambda: subject.values("GPU-1"))

    assert {
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.57,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.25,
        "DCGM_FI_PROF_PCIE_TX_BYTES": 1048576,
    } == subject.values("GPU-0")
    assert ({}, "", True) == (subject.values("GPU-7"), subject.failure, 0 < (subject.age() or 0) < PATIENCE)


@pytest.mark.usefixtures("patient")
def test_in_units_of_nvml(subject: DcgmProfiling) -> None:
    """Readings for snapshots have NVML's keys and units: percent, and MiB per second."""
    subject.start()
    until(subject.readings)

    readings = subject.readings()
    assert {"tensor_active_percent": 75.0} == readings["GPU-1"].values
    assert 1.0 == readings["GPU-0"].values["pcie_tx_mib_per_s"]
    assert isinstance(readings["GPU-0"], Readings)


@pytest.mark.usefixtures("patient")
def test_watch(subject: DcgmProfiling, scenario: Scenario) -> None:
    """The host engine watches the profiling fields at our interval; the watch ends with the child."""
    subject.start()
    until(lambda: len(scenario.calls("GetLatest")) > 1)
    subject.close()

    assert [["localhost", 1]] == scenario.calls("DcgmHandle")
    [[fields]] = scenario.calls("DcgmFieldGroup")
    assert {field.field_id for field in FIELDS if field.field_id} == set(fields)
    [[interval, keep, _]] = scenario.calls("WatchFields")
    assert (200_000, True) == (interval, keep >= 0.2)
    assert [[]] == scenario.calls("UnwatchFields") == scenario.calls("Delete") == scenario.calls("Shutdown")


@pytest.mark.usefixtures("patient")
def test_gpus_that_lack_fields(subject: DcgmProfiling, scenario: Scenario) -> None:
    """Only fields of all GPUs with profiling are watched, and GPUs without are left out: else DCGM refuses all."""
    scenario.set(
        gpus=[{**GPUS[0], "fields": [1001, 1004]}, {**GPUS[1], "fields": [1004, 1005]}, {**GPUS[1], "fields": []}]
    )
    subject.start()
    until(lambda: scenario.calls("WatchFields"))

    assert [[[1004]]] == scenario.calls("DcgmFieldGroup")
    assert [[[0, 1]]] == scenario.calls("GetGroupWithGpuIds")


def test_no_profiling(subject: DcgmProfiling, scenario: Scenario) -> None:
    """GPUs without profiling are an error with a reason."""
    scenario.set(gpus=[{**GPUS[0], "fields": []}])
    subject.start()
    until(lambda: "NoProfiling: DCGM has no profiling for the GPUs here; its log has the reason" == subject.failure)


@pytest.mark.usefixtures("patient")
def test_embedded(scenario: Scenario) -> None:
    """Without a host engine one runs in the child: the bindings get no address."""
    subject = DcgmProfiling(BINDINGS, EMBEDDED, 0.2)
    subject.start()
    until(lambda: scenario.calls("DcgmHandle"))
    subject.close()

    assert [[None, 1]] == scenario.calls("DcgmHandle")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"raise": "DcgmHandle"}, "DCGMError: Host engine connection invalid/disconnected"),
        ({"raise": "GetLatest"}, "DCGMError: Host engine connection invalid/disconnected"),
        ({"crash": "DcgmHandle"}, "the child crashed or was killed"),
    ],
)
def test_fails(subject: DcgmProfiling, scenario: Scenario, words: dict[str, str], expected: str) -> None:
    """An exception or a crash in the bindings is reported; a new child, after a pause, gives values again."""
    scenario.set(**words)
    subject.start()
    until(lambda: subject.failure == expected)
    assert {} == subject.values("GPU-0")

    scenario.set()
    until(lambda: not subject.failure)
    assert subject.values("GPU-0")


def test_hangs(subject: DcgmProfiling, scenario: Scenario) -> None:
    """Values are valid for three intervals after a call that hangs; the child is replaced."""
    subject.start()
    until(lambda: subject.values("GPU-0"))
    scenario.set(hang="GetLatest")
    until(lambda: not subject.values("GPU-0"))
    until(lambda: "has not answered" in subject.failure)

    scenario.set()
    until(lambda: subject.values("GPU-0"))


def test_no_bindings(tmp_path: Path, scenario: Scenario) -> None:
    """The error about a folder without the bindings has the missing module."""
    subject = DcgmProfiling(tmp_path, "localhost", 0.2)
    subject.start()
    until(lambda: "pydcgm" in subject.failure)
    subject.close()

    assert "ModuleNotFoundError: No module named 'pydcgm'" == subject.failure


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"x",
        b'{"at": 1, "values": [], "problem": ""}',
        b'{"at": 1, "values": {"a": {"b": "c"}}}',
        b"1",
    ],
)
def test_no_reading(line: bytes) -> None:
    """A line that is no reading raises ValueError."""
    with pytest.raises(ValueError):
        decode(line)


def test_reading() -> None:
    """A reading survives the pipe unchanged."""
    reading = ProfilingReading(1.5, {"GPU-0": {"DCGM_FI_PROF_DRAM_ACTIVE": 0.1}}, "")

    assert reading == decode(encode(reading))
