"""Calls in place of field values that the driver refuses, on the stand-in library."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from exporter.nvml import readings
from exporter.nvml.reading import FieldValue
from exporter.nvml.snapshot import FAST, SLOW, Readings
from tests.standins.nvml import LIBRARY, OLD_LIBRARY, Scenario, Worker

pytestmark = pytest.mark.evidence(feature="NVML readings", on="stand-in")

GPU = (*readings.GPU[FAST], *readings.GPU[SLOW])
TYPES = {
    "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}
LIFETIMES = {"volatile": pynvml.NVML_VOLATILE_ECC, "aggregate": pynvml.NVML_AGGREGATE_ECC}
LOCATIONS = {
    "l1": pynvml.NVML_MEMORY_LOCATION_L1_CACHE,
    "l2": pynvml.NVML_MEMORY_LOCATION_L2_CACHE,
    "dram": pynvml.NVML_MEMORY_LOCATION_DRAM,
    "register": pynvml.NVML_MEMORY_LOCATION_REGISTER_FILE,
    "texture": pynvml.NVML_MEMORY_LOCATION_TEXTURE_MEMORY,
    "cbu": pynvml.NVML_MEMORY_LOCATION_CBU,
}
ANSWERS = {
    "energy_mj": "energy_mj",
    "pcie_replays": "pcie_replays",
    "slowed_power_cap_ns": f"violation.{pynvml.NVML_PERF_POLICY_POWER}",
    "slowed_thermal_ns": f"violation.{pynvml.NVML_PERF_POLICY_THERMAL}",
    "slowed_sync_boost_ns": f"violation.{pynvml.NVML_PERF_POLICY_SYNC_BOOST}",
    "slowed_board_limit_ns": f"violation.{pynvml.NVML_PERF_POLICY_BOARD_LIMIT}",
    "slowed_low_utilization_ns": f"violation.{pynvml.NVML_PERF_POLICY_LOW_UTILIZATION}",
    "slowed_reliability_ns": f"violation.{pynvml.NVML_PERF_POLICY_RELIABILITY}",
    "power_limit_min_mw": "power_min_mw",
    "power_limit_max_mw": "power_max_mw",
    "power_limit_default_mw": "power_default_mw",
    "power_limit_requested_mw": "power_requested_mw",
    "power_limit_enforced_mw": "power_limit_mw",
    "ecc_enabled": "ecc_mode",
    "ecc_pending": "ecc_pending",
    "retired_pages_single_bit": f"retired.{pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS}",
    "retired_pages_double_bit": f"retired.{pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR}",
    "retired_pages_pending": "retired_pending",
    "remapped_rows_correctable": "remapped_correctable",
    "remapped_rows_uncorrectable": "remapped_uncorrectable",
    "remapped_rows_pending": "remapped_pending",
    "remapped_rows_failure": "remapped_failure",
    **{
        f"ecc_{error}_{lifetime}_total": f"ecc.{TYPES[error]}.{LIFETIMES[lifetime]}"
        for error in TYPES
        for lifetime in LIFETIMES
    },
    **{
        f"ecc_{error}_{lifetime}_{location}": f"ecc.{TYPES[error]}.{LIFETIMES[lifetime]}.{number}"
        for error in TYPES
        for lifetime in LIFETIMES
        for location, number in LOCATIONS.items()
        if (error, location) != ("corrected", "cbu")
    },
}
"""By key of a reading: the stand-in's key of what the call answers."""
VALUES = {key: 101 + place for place, key in enumerate(ANSWERS)}
WIDE = {"energy_mj": 2**40 + 1, "slowed_thermal_ns": 2**41 + 1, "ecc_corrected_volatile_total": 2**32 - 1}
LINK_ERRORS = {
    "replays": pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    "recoveries": pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    "crc_flit_errors": pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    "crc_data_errors": pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
    "ecc_data_errors": pynvml.NVML_NVLINK_ERROR_DL_ECC_DATA,
}


def _field(key: str) -> int:
    [source] = [reading.source for reading in GPU if reading.key == key]
    assert isinstance(source, FieldValue)
    number: int = getattr(pynvml, f"NVML_FI_{source.name}")
    return number


ANSWERED = {f"gpu0.{name}": (VALUES | WIDE)[key] for key, name in ANSWERS.items()}
UNANSWERED = {f"gpu.{name}": "none" for name in ANSWERS.values()}
FIELDS = {f"gpu0.field.{_field(key)}": value for key, value in (VALUES | WIDE).items()}
FIELDS |= {f"gpu0.type.{_field(key)}": "ull" for key in VALUES}


def _refused(code: int) -> dict[str, str]:
    return {name: f"error:{code}" for name in FIELDS if name.startswith("gpu0.field.")}


def _read(scenario: Scenario, library: Path = LIBRARY) -> dict[str, int | float]:
    with Worker(scenario, library=library) as worker:
        fast, slow = worker.read().readings, worker.read(SLOW).readings
        assert fast is not None and slow is not None
    return {key: value for key, value in {**fast.values, **slow.values}.items() if key in ANSWERS}


def test_every_fallback_is_tested() -> None:
    """Each field with a call in its place stands in this module."""
    with_fallback = {reading.key for reading in GPU if isinstance(reading.source, FieldValue) and reading.fallback}
    of_links = {reading.key for name in (FAST, SLOW) for reading in readings.LINK[name] if reading.fallback}

    assert with_fallback == set(ANSWERS)
    assert of_links == set(LINK_ERRORS)


@pytest.mark.parametrize(
    ("refused", "library"),
    [
        (_refused(pynvml.NVML_ERROR_NOT_SUPPORTED), LIBRARY),
        (_refused(pynvml.NVML_ERROR_INVALID_ARGUMENT), OLD_LIBRARY),
        ({"gpu0.error.nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}, OLD_LIBRARY),
        ({"gpu0.error.nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_UNKNOWN}, LIBRARY),
    ],
    ids=["not supported", "invalid in an older driver", "no fields at all", "unknown error"],
)
def test_calls_answer(tmp_path: Path, refused: dict[str, object], library: Path) -> None:
    """If fields are refused, calls give the same readings, exactly as the fields did."""
    (tmp_path / "fields").mkdir()
    by_fields = _read(Scenario(tmp_path / "fields", **FIELDS), library)
    by_calls = _read(Scenario(tmp_path, **{**FIELDS, **ANSWERED, **refused}), library)

    assert VALUES | WIDE == by_fields
    assert by_fields == by_calls


def test_one_field_of_several(tmp_path: Path) -> None:
    """A call that answers several readings fills the refused one in, and leaves the others as the fields have them."""
    refused = {f"gpu0.field.{_field('remapped_rows_failure')}": "error:3", "gpu0.remapped_correctable": 9999}
    values = _read(Scenario(tmp_path, **{**FIELDS, **ANSWERED, **refused}))

    assert VALUES["remapped_rows_failure"] == values["remapped_rows_failure"]
    assert VALUES["remapped_rows_correctable"] == values["remapped_rows_correctable"]


def test_both_refused(tmp_path: Path) -> None:
    """If calls are refused too the readings are absent, and neither is requested again."""
    scenario = Scenario(tmp_path, **{**UNANSWERED, **_refused(pynvml.NVML_ERROR_NOT_SUPPORTED)})
    with Worker(scenario) as worker:
        sets = [worker.read().readings for _ in range(4)] + [worker.read(SLOW).readings for _ in range(2)]
        calls = scenario.calls()

    assert not [key for read in sets if read is not None for key in read.values if key in ANSWERS]
    assert (1, 6) == (calls["nvmlDeviceGetTotalEnergyConsumption"], calls["nvmlDeviceGetViolationStatus"])


def test_fields_go_first(tmp_path: Path) -> None:
    """No call is made for readings that fields return."""
    scenario = Scenario(tmp_path, **{**FIELDS, **ANSWERED})
    _read(scenario)
    fallbacks = {reading.fallback.function for reading in GPU if reading.key in ANSWERS and reading.fallback}

    assert not fallbacks & scenario.calls().keys()


def test_not_available(tmp_path: Path) -> None:
    """A call that answers with NVML's number for no value gives no reading."""
    absent = {"gpu0.energy_mj": "na", "gpu0.pcie_replays": 2**32 - 1, "gpu0.violation.0": "na"}
    values = _read(Scenario(tmp_path, **{**ANSWERED, **_refused(pynvml.NVML_ERROR_NOT_SUPPORTED), **absent}))

    assert {"energy_mj", "pcie_replays", "slowed_power_cap_ns"} == ANSWERS.keys() - values.keys()


def _links(scenario: Scenario) -> Readings:
    with Worker(scenario) as worker:
        read = worker.read(SLOW).readings
        assert read is not None
    return read


def test_link_errors(tmp_path: Path) -> None:
    """Errors of a link without fields, old or new, come from calls, each with the link's number."""
    answers = {f"gpu0.link_errors.{link}.{number}": 10 * link + number for link in (0, 3) for number in range(5)}
    without = {f"gpu.field.{number}.link": "none" for number in (161, 162, 163)}
    links = _links(Scenario(tmp_path, **answers, **without)).links

    for link in (0, 3):
        assert {error: 10 * link + number for error, number in LINK_ERRORS.items()}.items() <= links[link].items()
    assert not LINK_ERRORS.keys() & links[1].keys()


def test_link_errors_are_counted_once(tmp_path: Path) -> None:
    """Links with newer counts of the same errors are not called for the older ones."""
    scenario = Scenario(tmp_path, **{f"gpu0.link_errors.0.{number}": 7 for number in range(5)})
    links = _links(scenario).links

    assert {"dl_replays", "dl_recoveries", "dl_crc_errors"} <= links[0].keys()
    assert not LINK_ERRORS.keys() & links[0].keys()
    assert "nvmlDeviceGetNvLinkErrorCounter" not in scenario.calls()
