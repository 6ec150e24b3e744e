"""Readings of errors and repairs: ECC, memory, PCIe, and the fabric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exporter.nvml import metrics
from exporter.nvml.reading import Call, FieldValue, Reading, Take, item, member, wide

_TYPES = {"corrected": ("SBE", 0), "uncorrected": ("DBE", 1)}
"""Types of ECC errors: their part in names of fields, and their number in calls."""
_LIFETIMES = {"volatile": ("VOL", 0), "aggregate": ("AGG", 1)}
_LOCATIONS = {"l1": ("L1", 0), "l2": ("L2", 1), "dram": ("DEV", 2), "register": ("REG", 3), "texture": ("TEX", 4)} | {
    "cbu": ("CBU", 6)
}
_UNCORRECTED_ONLY = ("cbu",)
"""Locations without a field of corrected errors."""


def _ecc(error: str, lifetime: str) -> Reading:
    (bits, kind), (scope, counter) = _TYPES[error], _LIFETIMES[lifetime]
    return Reading(
        f"ecc_{error}_{lifetime}_total",
        FieldValue(f"DEV_ECC_{bits}_{scope}_TOTAL"),
        metrics.ERRORS,
        labels={"error_type": error, "lifetime": lifetime},
        fallback=Call("nvmlDeviceGetTotalEccErrors", wide, (kind, counter)),
    )


def _ecc_at(error: str, lifetime: str, location: str) -> Reading:
    (bits, kind), (scope, counter), (place, number) = _TYPES[error], _LIFETIMES[lifetime], _LOCATIONS[location]
    return Reading(
        f"ecc_{error}_{lifetime}_{location}",
        FieldValue(f"DEV_ECC_{bits}_{scope}_{place}"),
        metrics.ECC,
        labels={"error_type": error, "lifetime": lifetime, "location": location},
        fallback=Call("nvmlDeviceGetMemoryErrorCounter", wide, (kind, counter, number)),
    )


def _sram(name: str) -> Call:
    return Call("nvmlDeviceGetSramEccErrorStatus", member(name), structure="c_nvmlEccSramErrorStatus_v1_t")


def _fabric(name: str, take: Callable[[str], Take] = member) -> Call:
    return Call("nvmlDeviceGetGpuFabricInfoV", take(name), structure="c_nvmlGpuFabricInfo_v2_t")


def _number(name: str) -> Take:
    """Returns the Take of the bytes of a member as one number, the first byte being the highest."""

    def take(result: Any) -> int:
        place = getattr(type(result), name)
        return int.from_bytes(bytes(result)[place.offset : place.offset + place.size], "big")

    return take


FAST = (
    Reading(
        "pcie_replays",
        FieldValue("DEV_PCIE_REPLAY_COUNTER"),
        metrics.PCIE_REPLAYS,
        fallback=Call("nvmlDeviceGetPcieReplayCounter"),
    ),
    Reading("recovery_action", FieldValue("DEV_GET_GPU_RECOVERY_ACTION"), metrics.RECOVERY),
)

SLOW = (
    Reading(
        "ecc_enabled",
        FieldValue("DEV_ECC_CURRENT"),
        metrics.ECC_ENABLED,
        fallback=Call("nvmlDeviceGetEccMode", item(0)),
    ),
    Reading("ecc_pending", FieldValue("DEV_ECC_PENDING"), fallback=Call("nvmlDeviceGetEccMode", item(1))),
    *(_ecc(error, lifetime) for error in _TYPES for lifetime in _LIFETIMES),
    *(
        _ecc_at(error, lifetime, location)
        for error in _TYPES
        for lifetime in _LIFETIMES
        for location in _LOCATIONS
        if error == "uncorrected" or location not in _UNCORRECTED_ONLY
    ),
    *(
        Reading(
            f"sram_{short}_{lifetime}",
            _sram(name),
            metrics.ECC,
            labels={"error_type": error, "lifetime": lifetime, "location": "sram"},
        )
        for short, error, lifetime, name in (
            ("corrected", "corrected", "volatile", "volatileCor"),
            ("corrected", "corrected", "aggregate", "aggregateCor"),
            ("parity", "uncorrected_parity", "volatile", "volatileUncParity"),
            ("parity", "uncorrected_parity", "aggregate", "aggregateUncParity"),
            ("secded", "uncorrected_secded", "volatile", "volatileUncSecDed"),
            ("secded", "uncorrected_secded", "aggregate", "aggregateUncSecDed"),
        )
    ),
    *(
        Reading(f"sram_uncorrected_{unit}", _sram(name), metrics.SRAM_UNITS, labels={"unit": unit})
        for unit, name in {
            "l2": "aggregateUncBucketL2",
            "sm": "aggregateUncBucketSm",
            "pcie": "aggregateUncBucketPcie",
            "mcu": "aggregateUncBucketMcu",
            "other": "aggregateUncBucketOther",
        }.items()
    ),
    Reading("sram_threshold_exceeded", _sram("bThresholdExceeded"), metrics.SRAM_THRESHOLD),
    *(
        Reading(
            f"retired_pages_{cause}",
            FieldValue(field),
            metrics.RETIRED,
            labels={"cause": cause},
            fallback=Call("nvmlDeviceGetRetiredPages", len, (number,)),
        )
        for cause, field, number in (("single_bit", "DEV_RETIRED_SBE", 0), ("double_bit", "DEV_RETIRED_DBE", 1))
    ),
    Reading(
        "retired_pages_pending",
        FieldValue("DEV_RETIRED_PENDING"),
        metrics.RETIRED_PENDING,
        fallback=Call("nvmlDeviceGetRetiredPagesPendingStatus"),
    ),
    Reading(
        "remapped_rows_correctable",
        FieldValue("DEV_REMAPPED_COR"),
        metrics.REMAPPED,
        labels={"error_type": "corrected"},
        fallback=Call("nvmlDeviceGetRemappedRows", item(0)),
    ),
    Reading(
        "remapped_rows_uncorrectable",
        FieldValue("DEV_REMAPPED_UNC"),
        metrics.REMAPPED,
        labels={"error_type": "uncorrected"},
        fallback=Call("nvmlDeviceGetRemappedRows", item(1)),
    ),
    Reading(
        "remapped_rows_pending",
        FieldValue("DEV_REMAPPED_PENDING"),
        metrics.REMAP_PENDING,
        fallback=Call("nvmlDeviceGetRemappedRows", item(2)),
    ),
    Reading(
        "remapped_rows_failure",
        FieldValue("DEV_REMAPPED_FAILURE"),
        metrics.REMAP_FAILURE,
        fallback=Call("nvmlDeviceGetRemappedRows", item(3)),
    ),
    *(
        Reading(
            f"row_banks_{left}",
            Call("nvmlDeviceGetRowRemapperHistogram", member(left)),
            metrics.ROW_BANKS,
            labels={"spare_rows": left},
        )
        for left in ("max", "high", "partial", "low", "none")
    ),
    *(
        Reading(f"pcie_{error}", FieldValue(field), metrics.PCIE_ERRORS, labels={"error": error})
        for error, field in {
            "replay_rollovers": "DEV_PCIE_REPLAY_ROLLOVER_COUNTER",
            "recoveries": "DEV_PCIE_L0_TO_RECOVERY_COUNTER",
            "correctable_errors": "DEV_PCIE_COUNT_CORRECTABLE_ERRORS",
            "naks_received": "DEV_PCIE_COUNT_NAKS_RECEIVED",
            "naks_sent": "DEV_PCIE_COUNT_NAKS_SENT",
            "receiver_errors": "DEV_PCIE_COUNT_RECEIVER_ERROR",
            "bad_tlps": "DEV_PCIE_COUNT_BAD_TLP",
            "bad_dllps": "DEV_PCIE_COUNT_BAD_DLLP",
            "non_fatal_errors": "DEV_PCIE_COUNT_NON_FATAL_ERROR",
            "fatal_errors": "DEV_PCIE_COUNT_FATAL_ERROR",
            "unsupported_requests": "DEV_PCIE_COUNT_UNSUPPORTED_REQ",
            "lcrc_errors": "DEV_PCIE_COUNT_LCRC_ERROR",
            "lane_errors": "DEV_PCIE_COUNT_LANE_ERROR",
        }.items()
    ),
    Reading("fabric_state", _fabric("state"), metrics.FABRIC_STATE),
    Reading("fabric_status", _fabric("status")),
    Reading("fabric_health", _fabric("healthMask")),
    Reading("fabric_clique", _fabric("cliqueId")),
    Reading("fabric_cluster", _fabric("clusterUuid", _number)),
)
