"""Readings from field values and GPU performance metrics, by key; docs/gpu.md has details.

Field names are NVML's constants without `NVML_FI_`; fields that nvidia-ml-py does not know are not requested.
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""Fields of the fast set, with the scope of all links."""
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
"""Fields of each link: `{link}` stands in the names of fields per link, other fields have the link as scope."""

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
"""Ids of NVML's GPU performance metrics: means over the time between two samples."""
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
"""Ids of counts since the driver was loaded; only newer drivers have them."""
