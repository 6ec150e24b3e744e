"""The table of fields, compared with dcgm-exporter's list, NVML's readings and DCGM's renames."""

from __future__ import annotations

import pytest

from exporter.compat.dcgm.aliases import Aliases
from exporter.compat.dcgm.fields import FIELDS, UNREAD
from exporter.model import Kind

DEFAULT = """
gauge SM_CLOCK MEM_CLOCK MEMORY_TEMP GPU_TEMP POWER_USAGE GPU_UTIL MEM_COPY_UTIL ENC_UTIL DEC_UTIL XID_ERRORS
gauge FB_FREE FB_USED FB_RESERVED NVLINK_BANDWIDTH_TOTAL VGPU_LICENSE_STATUS ROW_REMAP_FAILURE
counter TOTAL_ENERGY_CONSUMPTION PCIE_REPLAY_COUNTER UNCORRECTABLE_REMAPPED_ROWS CORRECTABLE_REMAPPED_ROWS
"""
PROFILING = "GR_ENGINE_ACTIVE PIPE_TENSOR_ACTIVE DRAM_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES"
ON_REQUEST = """
DEV_POWER_VIOLATION DEV_THERMAL_VIOLATION DEV_SYNC_BOOST_VIOLATION DEV_BOARD_LIMIT_VIOLATION DEV_LOW_UTIL_VIOLATION
DEV_RELIABILITY_VIOLATION DEV_ECC_SBE_VOL_TOTAL DEV_ECC_DBE_VOL_TOTAL DEV_ECC_SBE_AGG_TOTAL DEV_ECC_DBE_AGG_TOTAL
DEV_RETIRED_SBE DEV_RETIRED_DBE DEV_RETIRED_PENDING DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
DEV_NVLINK_BANDWIDTH_L0 NVML_VERSION DEV_BRAND DEV_SERIAL DEV_OEM_INFOROM_VER DEV_ECC_INFOROM_VER
DEV_POWER_INFOROM_VER DEV_INFOROM_IMAGE_VER DEV_VBIOS_VERSION PROF_SM_ACTIVE PROF_SM_OCCUPANCY PROF_PIPE_FP64_ACTIVE
PROF_PIPE_FP32_ACTIVE PROF_PIPE_FP16_ACTIVE PROF_SM_CYCLES_ELAPSED_TOTAL PROF_SM_CYCLES_ACTIVE_TOTAL
PROF_MMA_CYCLES_ACTIVE_TOTAL PROF_DMMA_CYCLES_ACTIVE_TOTAL PROF_HMMA_CYCLES_ACTIVE_TOTAL
PROF_IMMA_CYCLES_ACTIVE_TOTAL PROF_DFMA_CYCLES_ACTIVE_TOTAL PROF_PCIE_TX_BYTES_TOTAL PROF_PCIE_RX_BYTES_TOTAL
PROF_INT_CYCLES_ACTIVE_TOTAL PROF_FP64_CYCLES_ACTIVE_TOTAL PROF_FP32_CYCLES_ACTIVE_TOTAL PROF_FP16_CYCLES_ACTIVE_TOTAL
"""


def test_default_rows() -> None:
    """Default rows are those without a comment sign in default-counters.csv, with the same types."""
    expected = {"DCGM_FI_DRIVER_VERSION": None}
    for line in DEFAULT.split("\n"):
        kind, *names = line.split() or [""]
        expected |= {f"DCGM_FI_DEV_{name}": Kind(kind) for name in names}
    expected |= {f"DCGM_FI_PROF_{name}": Kind.GAUGE for name in PROFILING.split()}

    assert expected == {field.name: field.kind for field in FIELDS if field.default}


def test_commented_rows() -> None:
    """Every row with a comment sign in default-counters.csv can be selected, except those that only DCGM reports."""
    names = {field.name for field in FIELDS}

    assert set() == {f"DCGM_FI_{name}" for name in ON_REQUEST.split()} - names
    assert {"DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT"} < names
    assert set() == names & UNREAD.keys()


def test_declared_once() -> None:
    """No field is declared twice, and each help text is a sentence."""
    names = [field.name for field in FIELDS]

    assert sorted(set(names)) == sorted(names)
    assert [] == [field.name for field in FIELDS if not field.help.endswith(".")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
        ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL"),
        ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION"),
        ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED"),
    ],
)
def test_renames(old: str, new: str) -> None:
    """A renamed field is known by both names, another field by its own."""
    aliases = Aliases()

    assert (new, old) == (aliases.new(old), aliases.old(new))
    assert (new, old) == (aliases.new(new), aliases.old(old))


def test_renames_are_one_to_one() -> None:
    """No name is both old and new, and no two fields have one new name."""
    names = list(Aliases())

    assert len(set(names)) == len(names) > 600
