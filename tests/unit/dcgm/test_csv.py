"""dcgm-exporter's file of fields: its meaning, and one sentence for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.compat.dcgm import csv
from exporter.compat.dcgm.aliases import Aliases
from exporter.model import Kind
from exporter.options import SettingsError

ITS_OWN = """\
# Format
# If line starts with a '#' it is considered a comment
# DCGM FIELD, Prometheus metric type, help message

# Clocks
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).
# DCGM_FI_DEV_POWER_VIOLATION,       counter, Throttling duration due to power constraints (in ns).
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL,            counter, "Bandwidth, all lanes"

DCGM_FI_DRIVER_VERSION,        label, Driver Version
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "counters.csv"


def error(file: Path, text: str | bytes) -> str:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SettingsError) as raised:
        csv.read(file)
    return str(raised.value).replace(str(file), "FILE")


def test_its_own_file(file: Path) -> None:
    """dcgm-exporter's own file is read as dcgm-exporter does: comments, padding, quotes, types and help texts."""
    file.write_text(ITS_OWN)

    rows = csv.read(file)

    assert [
        ("DCGM_FI_DEV_SM_CLOCK", Kind.GAUGE, "SM clock frequency (in MHz)."),
        ("DCGM_FI_DEV_DEC_UTIL", Kind.GAUGE, "Decoder utilization (in %)."),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", Kind.COUNTER, "Bandwidth, all lanes"),
        ("DCGM_FI_DRIVER_VERSION", None, "Driver Version"),
    ] == [(row.name, row.kind, row.help) for row in rows]
    assert ["clock_sm_mhz", "decoder_percent", "nvlink_mb_per_s", "driver"] == [
        row.field.key for row in rows if row.field
    ]


def test_new_names(file: Path) -> None:
    """Names of DCGM 4.6 in a file mean the same fields and are shown as written."""
    file.write_text("DCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, warm\n")

    [row] = csv.read(file)

    assert "temperature_c" == (row.field.key if row.field else "")
    assert ("DCGM_FI_DEV_GPU_TEMP_CELSIUS",) == row.names("old", Aliases())
    assert ("DCGM_FI_DEV_GPU_TEMP_CELSIUS",) == row.names("both", Aliases())


def test_which_names() -> None:
    """A row is shown by its old name, its new name or both; once where both are equal."""
    rows = {row.name: row for row in csv.default()}
    power, clock = rows["DCGM_FI_DEV_POWER_USAGE"], rows["DCGM_FI_DEV_SM_CLOCK"]

    assert ("DCGM_FI_DEV_POWER_USAGE",) == power.names("old", Aliases())
    assert ("DCGM_FI_DEV_BOARD_POWER_WATTS",) == power.names("new", Aliases())
    assert ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS") == power.names("both", Aliases())
    assert ("DCGM_FI_DEV_SM_CLOCK",) == clock.names("both", Aliases())


@pytest.mark.parametrize(
    "name",
    ["DCGM_EXP_GPU_HEALTH_STATUS", "DCGM_EXP_P2P_STATUS", "DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS"],
)
def test_known_but_unread(file: Path, name: str) -> None:
    """A field of DCGM that NVML lacks is no mistake: the row is there, with the reason why nothing fills it."""
    file.write_text(f"{name}, gauge, x\n")

    [row] = csv.read(file)

    assert (name, None) == (row.name, row.field)
    assert csv.why_unread(name).endswith(".") or "--dcgm.url" in csv.why_unread(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "DCGM_FI_DEV_GPU_TMP, gauge, x",
            "FILE:1: unknown field 'DCGM_FI_DEV_GPU_TMP'; did you mean DCGM_FI_DEV_GPU_TEMP?",
        ),
        ("\n# a\nbogus, gauge, x", "FILE:3: unknown field 'bogus'; docs/dcgm-fields.md lists what there is"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "FILE:1: 2 values in place of three: field, type, help"),
        (
            "DCGM_FI_DEV_GPU_TEMP, gauge, a, b",
            'FILE:1: 4 values in place of three: field, type, help; a help with commas needs "quotes"',
        ),
        ("DCGM_FI_DEV_GPU_TEMP, histogram, x", "FILE:1: 'histogram' is no type of a row; use gauge, counter or label"),
        ("DCGM_FI_DEV_BRAND, gauge, x", "FILE:1: DCGM_FI_DEV_BRAND is a text; its type has to be label"),
        (
            "DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, x",
            "FILE:2: DCGM_FI_DEV_GPU_TEMP_CELSIUS is in line 1 already; remove one",
        ),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, "x', "FILE:1: not valid CSV"),
        (b"\xff", "compat.dcgm.csv: FILE is not UTF-8 text (byte 0)"),
        (b"#" * (1 << 20) + b"##", "compat.dcgm.csv: FILE is larger than 1048576 bytes"),
    ],
)
def test_mistakes(file: Path, text: str | bytes, expected: str) -> None:
    """Each mistake is one sentence with the line and the remedy."""
    assert expected in error(file, text)


def test_no_file(file: Path) -> None:
    """The error about a missing file has its name."""
    with pytest.raises(SettingsError, match="counters.csv cannot be read: No such file or directory"):
        csv.read(file)
