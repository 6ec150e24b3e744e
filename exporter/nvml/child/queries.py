"""Readings with a call of their own, by key; fields.py has the readings that come many in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from exporter.nvml.snapshot import FAST, SLOW


@dataclass(frozen=True, slots=True)
class Call:
    """A call about one device. `keep` returns readings by key out of the result; None for a value not available.

    A call is skipped once known to be unsupported, and while the key `unless` has a value from elsewhere.
    """

    function: str
    keep: Callable[[Any], Mapping[str, int | None]]
    arguments: tuple[int, ...] = ()
    unless: str = ""
    structure: str = ""
    """Versioned class of nvidia-ml-py: an instance is passed by reference and is the result."""


def _available(value: int, size: int) -> int | None:
    """Returns the value; None for NVML_VALUE_NOT_AVAILABLE, which has all bits of `size` bytes set."""
    return None if value == (1 << 8 * size) - 1 else value


def _one(key: str) -> Callable[[Any], Mapping[str, int | None]]:
    return lambda result: {key: _available(result, 4)}


def _first(key: str) -> Callable[[Any], Mapping[str, int | None]]:
    return lambda result: {key: _available(result[0], 4)}


def _members(**keys: str) -> Callable[[Any], Mapping[str, int | None]]:
    """Returns a `keep` for members of a structure, by key."""
    return lambda result: {
        key: _available(getattr(result, member), getattr(type(result), member).size) for key, member in keys.items()
    }


def _licensed(features: Any) -> Mapping[str, int | None]:
    listed = [features.gridLicensableFeatures[i] for i in range(features.licensableFeaturesCount)]
    return {"vgpu_licensed": int(any(one.featureCode == _VGPU_FEATURE and one.featureState for one in listed))}


_VGPU_FEATURE = 1
_MEMORY_V2 = 0x0200_0028
MEMORY = (
    Call(
        "nvmlDeviceGetMemoryInfo",
        _members(
            memory_bytes="total", memory_used_bytes="used", memory_free_bytes="free", memory_reserved_bytes="reserved"
        ),
        (_MEMORY_V2,),
    ),
    Call(
        "nvmlDeviceGetMemoryInfo",
        _members(memory_bytes="total", memory_used_bytes="used", memory_free_bytes="free"),
        unless="memory_bytes",
    ),
)
"""The older version counts reserved memory as used. Both versions also take MIG devices."""
CALLS: Mapping[str, tuple[Call, ...]] = {
    FAST: (
        Call("nvmlDeviceGetTemperatureV", _one("temperature_c"), (0,)),
        Call("nvmlDeviceGetTemperature", _one("temperature_c"), (0,), unless="temperature_c"),
        Call("nvmlDeviceGetMarginTemperature", _one("temperature_margin_c")),
        Call("nvmlDeviceGetPowerUsage", _one("power_mw")),
        Call(
            "nvmlDeviceGetUtilizationRates",
            _members(utilization_percent="gpu", memory_copy_percent="memory"),
        ),
        Call("nvmlDeviceGetEncoderUtilization", _first("encoder_percent")),
        Call("nvmlDeviceGetDecoderUtilization", _first("decoder_percent")),
        Call("nvmlDeviceGetJpgUtilization", _first("jpeg_percent")),
        Call("nvmlDeviceGetOfaUtilization", _first("ofa_percent")),
        *(
            Call("nvmlDeviceGetClockInfo", _one(f"clock_{name}_mhz"), (number,))
            for number, name in enumerate(("graphics", "sm", "memory", "video"))
        ),
        Call("nvmlDeviceGetCurrentClocksEventReasons", _one("clocks_event_reasons")),
        Call("nvmlDeviceGetCurrentClocksThrottleReasons", _one("clocks_event_reasons"), unless="clocks_event_reasons"),
        *MEMORY,
        Call("nvmlDeviceGetPerformanceState", _one("performance_state")),
        Call("nvmlDeviceGetCurrPcieLinkGeneration", _one("pcie_generation")),
        Call("nvmlDeviceGetCurrPcieLinkWidth", _one("pcie_width")),
    ),
    SLOW: (
        *(
            Call("nvmlDeviceGetMaxClockInfo", _one(f"clock_{name}_max_mhz"), (number,))
            for number, name in enumerate(("graphics", "sm", "memory", "video"))
        ),
        Call("nvmlDeviceGetMaxPcieLinkGeneration", _one("pcie_generation_max")),
        Call("nvmlDeviceGetMaxPcieLinkWidth", _one("pcie_width_max")),
        Call("nvmlDeviceGetMemoryBusWidth", _one("memory_bus_bits")),
        Call("nvmlDeviceGetBAR1MemoryInfo", _members(bar1_bytes="bar1Total", bar1_used_bytes="bar1Used")),
        Call("nvmlDeviceGetEnforcedPowerLimit", _one("power_limit_enforced_mw"), unless="power_limit_enforced_mw"),
        Call(
            "nvmlDeviceGetPowerManagementDefaultLimit", _one("power_limit_default_mw"), unless="power_limit_default_mw"
        ),
        *(
            Call("nvmlDeviceGetTemperatureThreshold", _one(f"temperature_limit_{name}_c"), (number,))
            for number, name in enumerate(("shutdown", "slowdown", "memory_max", "gpu_max"))
        ),
        Call("nvmlDeviceGetPersistenceMode", _one("persistence_mode")),
        Call("nvmlDeviceGetComputeMode", _one("compute_mode")),
        Call("nvmlDeviceGetGridLicensableFeatures", _licensed),
        Call("nvmlDeviceGetActiveVgpus", lambda vgpus: {"vgpus": len(vgpus)}),
        Call("nvmlDeviceGetFanSpeed", _one("fan_percent")),
        Call(
            "nvmlDeviceGetRowRemapperHistogram",
            _members(
                row_banks_max="max",
                row_banks_high="high",
                row_banks_partial="partial",
                row_banks_low="low",
                row_banks_none="none",
            ),
        ),
        Call(
            "nvmlDeviceGetSramEccErrorStatus",
            _members(
                sram_corrected_volatile="volatileCor",
                sram_corrected_aggregate="aggregateCor",
                sram_parity_volatile="volatileUncParity",
                sram_parity_aggregate="aggregateUncParity",
                sram_secded_volatile="volatileUncSecDed",
                sram_secded_aggregate="aggregateUncSecDed",
                sram_uncorrected_l2="aggregateUncBucketL2",
                sram_uncorrected_sm="aggregateUncBucketSm",
                sram_uncorrected_pcie="aggregateUncBucketPcie",
                sram_uncorrected_mcu="aggregateUncBucketMcu",
                sram_uncorrected_other="aggregateUncBucketOther",
                sram_threshold_exceeded="bThresholdExceeded",
            ),
            structure="c_nvmlEccSramErrorStatus_v1_t",
        ),
        Call(
            "nvmlDeviceGetGpuFabricInfoV",
            _members(fabric_state="state", fabric_status="status", fabric_health="healthMask"),
            structure="c_nvmlGpuFabricInfo_v2_t",
        ),
    ),
}


def link_calls(link: int) -> tuple[Call, ...]:
    """Returns the calls about one NVLink, in the slow set."""
    return (Call("nvmlDeviceGetNvLinkState", _one("active"), (link,)),)


PCIE_THROUGHPUT = tuple(
    Call("nvmlDeviceGetPcieThroughput", _one(f"pcie_{name}_kb_per_s"), (number,))
    for number, name in enumerate(("tx", "rx"))
)
"""A measurement over 20 ms, for which each call blocks: only for GPUs without GPM."""
