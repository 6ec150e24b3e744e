"""Which readings there are: their keys, and the NVML field or call behind each. docs/gpu.md tells more.

Field names are NVML's constants less `NVML_FI_`; one that nvidia-ml-py does not know is never asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from exporter.nvml.snapshot import FAST, SLOW

ALL_LINKS = 0xFFFF_FFFF

FIELDS: Mapping[str, Mapping[str, str]] = {
    FAST: {
        "memory_temperature_c": "DEV_MEMORY_TEMP",
        "energy_mj": "DEV_TOTAL_ENERGY_CONSUMPTION",
        "power_average_mw": "DEV_POWER_AVERAGE",
        "power_instant_mw": "DEV_POWER_INSTANT",
        "pcie_replays": "DEV_PCIE_REPLAY_COUNTER",
        "slowed_power_cap_ns": "DEV_PERF_POLICY_POWER",
        "slowed_thermal_ns": "DEV_PERF_POLICY_THERMAL",
        "slowed_sync_boost_ns": "DEV_PERF_POLICY_SYNC_BOOST",
        "slowed_board_limit_ns": "DEV_PERF_POLICY_BOARD_LIMIT",
        "slowed_low_utilization_ns": "DEV_PERF_POLICY_LOW_UTILIZATION",
        "slowed_reliability_ns": "DEV_PERF_POLICY_RELIABILITY",
        "slowed_sw_thermal_ns": "DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
        "slowed_hw_thermal_ns": "DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
        "slowed_hw_power_brake_ns": "DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
        "recovery_action": "DEV_GET_GPU_RECOVERY_ACTION",
    },
    SLOW: {
        "ecc_enabled": "DEV_ECC_CURRENT",
        "ecc_pending": "DEV_ECC_PENDING",
        **{
            f"ecc_{error}_{lifetime}_{location}": f"DEV_ECC_{bits}_{scope}_{place}"
            for error, bits in {"corrected": "SBE", "uncorrected": "DBE"}.items()
            for lifetime, scope in {"volatile": "VOL", "aggregate": "AGG"}.items()
            for location, place in {
                "total": "TOTAL",
                "l1": "L1",
                "l2": "L2",
                "dram": "DEV",
                "register": "REG",
                "texture": "TEX",
                "cbu": "CBU",
            }.items()
            if (bits, place) != ("SBE", "CBU")
        },
        "retired_pages_single_bit": "DEV_RETIRED_SBE",
        "retired_pages_double_bit": "DEV_RETIRED_DBE",
        "retired_pages_pending": "DEV_RETIRED_PENDING",
        "remapped_rows_correctable": "DEV_REMAPPED_COR",
        "remapped_rows_uncorrectable": "DEV_REMAPPED_UNC",
        "remapped_rows_pending": "DEV_REMAPPED_PENDING",
        "remapped_rows_failure": "DEV_REMAPPED_FAILURE",
        "power_limit_min_mw": "DEV_POWER_MIN_LIMIT",
        "power_limit_max_mw": "DEV_POWER_MAX_LIMIT",
        "power_limit_default_mw": "DEV_POWER_DEFAULT_LIMIT",
        "power_limit_requested_mw": "DEV_POWER_REQUESTED_LIMIT",
        "power_limit_enforced_mw": "DEV_POWER_CURRENT_LIMIT",
        "margin_limit_shutdown_c": "DEV_TEMPERATURE_SHUTDOWN_TLIMIT",
        "margin_limit_slowdown_c": "DEV_TEMPERATURE_SLOWDOWN_TLIMIT",
        "margin_limit_memory_max_c": "DEV_TEMPERATURE_MEM_MAX_TLIMIT",
        "margin_limit_gpu_max_c": "DEV_TEMPERATURE_GPU_MAX_TLIMIT",
        "pcie_replay_rollovers": "DEV_PCIE_REPLAY_ROLLOVER_COUNTER",
        "pcie_recoveries": "DEV_PCIE_L0_TO_RECOVERY_COUNTER",
        "pcie_correctable_errors": "DEV_PCIE_COUNT_CORRECTABLE_ERRORS",
        "pcie_naks_received": "DEV_PCIE_COUNT_NAKS_RECEIVED",
        "pcie_naks_sent": "DEV_PCIE_COUNT_NAKS_SENT",
        "pcie_receiver_errors": "DEV_PCIE_COUNT_RECEIVER_ERROR",
        "pcie_bad_tlps": "DEV_PCIE_COUNT_BAD_TLP",
        "pcie_bad_dllps": "DEV_PCIE_COUNT_BAD_DLLP",
        "pcie_non_fatal_errors": "DEV_PCIE_COUNT_NON_FATAL_ERROR",
        "pcie_fatal_errors": "DEV_PCIE_COUNT_FATAL_ERROR",
        "pcie_unsupported_requests": "DEV_PCIE_COUNT_UNSUPPORTED_REQ",
        "pcie_lcrc_errors": "DEV_PCIE_COUNT_LCRC_ERROR",
        "pcie_lane_errors": "DEV_PCIE_COUNT_LANE_ERROR",
        "nvlink_crc_flit_errors": "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "nvlink_crc_data_errors": "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "nvlink_replays": "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "nvlink_recoveries": "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "nvlink_ecc_data_errors": "DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL",
    },
}
TOTALS: Mapping[str, str] = {
    "nvlink_tx_kib": "DEV_NVLINK_THROUGHPUT_DATA_TX",
    "nvlink_rx_kib": "DEV_NVLINK_THROUGHPUT_DATA_RX",
}
"""Of the fast set, with the scope of all links."""
LINK_FIELDS: Mapping[str, Mapping[str, str]] = {
    FAST: {
        "tx_kib": "DEV_NVLINK_THROUGHPUT_DATA_TX",
        "rx_kib": "DEV_NVLINK_THROUGHPUT_DATA_RX",
        "tx_bytes": "DEV_NVLINK_COUNT_XMIT_BYTES",
        "rx_bytes": "DEV_NVLINK_COUNT_RCV_BYTES",
    },
    SLOW: {
        "crc_flit_errors": "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L{link}",
        "crc_data_errors": "DEV_NVLINK_CRC_DATA_ERROR_COUNT_L{link}",
        "ecc_data_errors": "DEV_NVLINK_ECC_DATA_ERROR_COUNT_L{link}",
        "replays": "DEV_NVLINK_REPLAY_ERROR_COUNT_L{link}",
        "recoveries": "DEV_NVLINK_RECOVERY_ERROR_COUNT_L{link}",
        "dl_replays": "DEV_NVLINK_ERROR_DL_REPLAY",
        "dl_recoveries": "DEV_NVLINK_ERROR_DL_RECOVERY",
        "dl_crc_errors": "DEV_NVLINK_ERROR_DL_CRC",
        "malformed_packets": "DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
        "buffer_overruns": "DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
        "receive_errors": "DEV_NVLINK_COUNT_RCV_ERRORS",
        "receive_remote_errors": "DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS",
        "receive_general_errors": "DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS",
        "link_integrity_errors": "DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
        "transmit_discards": "DEV_NVLINK_COUNT_XMIT_DISCARDS",
        "recovery_successes": "DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
        "recovery_failures": "DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
        "effective_errors": "DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
        "symbol_errors": "DEV_NVLINK_COUNT_SYMBOL_ERRORS",
        "speed_mbps": "DEV_NVLINK_GET_SPEED",
    },
}
"""By link: `{link}` stands in fields of one link's own, the others take the link as their scope."""

GPM: Mapping[str, int] = {
    "graphics_active_percent": 1,
    "sm_active_percent": 2,
    "sm_occupancy_percent": 3,
    "integer_active_percent": 4,
    "tensor_active_percent": 5,
    "tensor_dfma_active_percent": 6,
    "tensor_hmma_active_percent": 7,
    "tensor_dmma_active_percent": 8,
    "tensor_imma_active_percent": 9,
    "dram_active_percent": 10,
    "fp64_active_percent": 11,
    "fp32_active_percent": 12,
    "fp16_active_percent": 13,
    "pcie_tx_mib_per_s": 20,
    "pcie_rx_mib_per_s": 21,
    "nvlink_rx_mib_per_s": 60,
    "nvlink_tx_mib_per_s": 61,
}
"""Ids of NVML's GPU performance metrics: means over the time between two samples of ours."""
GPM_COUNTERS: Mapping[str, int] = {
    "sm_cycles": 248,
    "sm_active_cycles": 249,
    "tensor_active_cycles": 250,
    "tensor_dmma_active_cycles": 251,
    "tensor_hmma_active_cycles": 252,
    "tensor_imma_active_cycles": 253,
    "tensor_dfma_active_cycles": 254,
    "pcie_tx_bytes": 255,
    "pcie_rx_bytes": 256,
    "integer_active_cycles": 257,
    "fp64_active_cycles": 258,
    "fp32_active_cycles": 259,
    "fp16_active_cycles": 260,
}
"""Counts since the driver was loaded, which newer drivers have."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call about one device, and what of its result is kept: None stands for what it does not tell.

    It is left out once known not to be supported, and while `unless` was read otherwise.
    """

    function: str
    keep: Callable[[Any], Mapping[str, int | None]]
    arguments: tuple[int, ...] = ()
    unless: str = ""
    structure: str = ""
    """A class of nvidia-ml-py that knows its version: an instance is passed by reference and is the result."""


def _told(value: int, size: int) -> int | None:
    """NVML says NVML_VALUE_NOT_AVAILABLE, all bits set, for what it does not know."""
    return None if value == (1 << 8 * size) - 1 else value


def _one(key: str) -> Callable[[Any], Mapping[str, int | None]]:
    return lambda result: {key: _told(result, 4)}


def _first(key: str) -> Callable[[Any], Mapping[str, int | None]]:
    return lambda result: {key: _told(result[0], 4)}


def _members(**keys: str) -> Callable[[Any], Mapping[str, int | None]]:
    """Members of a structure by key."""
    return lambda result: {
        key: _told(getattr(result, member), getattr(type(result), member).size) for key, member in keys.items()
    }


def _licensed(features: Any) -> Mapping[str, int | None]:
    listed = [features.gridLicensableFeatures[i] for i in range(features.licensableFeaturesCount)]
    return {"vgpu_licensed": int(any(it.featureCode == _VGPU_FEATURE and it.featureState for it in listed))}


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
"""The older one counts what is reserved as used. Both also about MIG devices."""
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
    """What is asked about each NVLink, in the slow set."""
    return (Call("nvmlDeviceGetNvLinkState", _one("active"), (link,)),)


PCIE_THROUGHPUT = tuple(
    Call("nvmlDeviceGetPcieThroughput", _one(f"pcie_{name}_kb_per_s"), (number,))
    for number, name in enumerate(("tx", "rx"))
)
"""Measured over 20 ms, for which each call blocks: only asked where there is no GPM."""
