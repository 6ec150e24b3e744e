"""Mapping of readings to samples: metric, unit and labels, declared once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.model import Labels, Metric
from exporter.nvml import metrics
from exporter.nvml.fields import FIELDS, LINK_FIELDS
from exporter.nvml.snapshot import FAST, SLOW

_MIB, _PERCENT, _MILLI, _NANO, _MHZ = 1 << 20, 100, 1000, 1_000_000_000, 1_000_000


@dataclass(frozen=True, slots=True)
class MappedMetric:
    """The metric and labels of a reading; `times` and `over` convert the reading's unit to that of the metric.

    Integers stay exact as far as the conversion allows.
    """

    metric: Metric
    times: int
    over: int
    labels: Labels

    def value(self, reading: int | float) -> int | float:
        return reading * self.times / self.over if self.over != 1 else reading * self.times


def _percent(metric: Metric, **labels: str) -> MappedMetric:
    return MappedMetric(metric, 1, _PERCENT, labels)


def _metric(metric: Metric, times: int = 1, over: int = 1, **labels: str) -> MappedMetric:
    return MappedMetric(metric, times, over, labels)


def _ecc(error_type: str, lifetime: str, location: str) -> MappedMetric:
    if location == "total":
        return _metric(metrics.ERRORS, error_type=error_type, lifetime=lifetime)
    return _metric(metrics.ECC, error_type=error_type, lifetime=lifetime, location=location)


_CLOCKS = ("graphics", "sm", "memory", "video")
_TENSOR_KINDS = ("dfma", "hmma", "dmma", "imma")
_DIRECTIONS = {"rx": "receive", "tx": "transmit"}
_LIFETIMES = ("volatile", "aggregate")
_MARGINS = ("shutdown", "slowdown", "memory_max", "gpu_max")

GPU_MAPPING: Mapping[str, MappedMetric] = {
    "utilization_percent": _percent(metrics.UTILIZATION, task="general"),
    **{f"{task}_percent": _percent(metrics.UTILIZATION, task=task) for task in ("encoder", "decoder", "jpeg", "ofa")},
    "memory_copy_percent": _percent(metrics.MEMORY_BUSY),
    "memory_bytes": _metric(metrics.MEMORY_LIMIT),
    "memory_used_bytes": _metric(metrics.MEMORY_USED),
    "memory_free_bytes": _metric(metrics.MEMORY_FREE),
    "memory_reserved_bytes": _metric(metrics.MEMORY_RESERVED),
    "bar1_bytes": _metric(metrics.BAR1_LIMIT),
    "bar1_used_bytes": _metric(metrics.BAR1_USED),
    "temperature_c": _metric(metrics.TEMPERATURE, sensor="gpu"),
    "memory_temperature_c": _metric(metrics.TEMPERATURE, sensor="memory"),
    **{f"temperature_limit_{limit}_c": _metric(metrics.TEMPERATURE_LIMIT, limit=limit) for limit in _MARGINS},
    "temperature_margin_c": _metric(metrics.MARGIN),
    **{f"margin_limit_{limit}_c": _metric(metrics.MARGIN_LIMIT, limit=limit) for limit in _MARGINS},
    "power_mw": _metric(metrics.POWER, over=_MILLI),
    "power_average_mw": _metric(metrics.POWER_DRAW, over=_MILLI, kind="average"),
    "power_instant_mw": _metric(metrics.POWER_DRAW, over=_MILLI, kind="instant"),
    **{
        f"power_limit_{limit}_mw": _metric(metrics.POWER_LIMIT, over=_MILLI, limit=limit)
        for limit in ("enforced", "requested", "default", "min", "max")
    },
    "energy_mj": _metric(metrics.ENERGY, over=_MILLI),
    **{f"clock_{clock}_mhz": _metric(metrics.CLOCK, _MHZ, clock=clock) for clock in _CLOCKS},
    **{f"clock_{clock}_max_mhz": _metric(metrics.CLOCK_MAX, _MHZ, clock=clock) for clock in _CLOCKS},
    **{
        key: _metric(metrics.SLOWED, over=_NANO, reason=key[len("slowed_") : -len("_ns")])
        for key in FIELDS[FAST]
        if key.startswith("slowed_")
    },
    "performance_state": _metric(metrics.PERFORMANCE_STATE),
    "fan_percent": _percent(metrics.FAN),
    "persistence_mode": _metric(metrics.PERSISTENCE),
    "compute_mode": _metric(metrics.COMPUTE_MODE),
    "pcie_generation": _metric(metrics.PCIE_GENERATION),
    "pcie_generation_max": _metric(metrics.PCIE_GENERATION_MAX),
    "pcie_width": _metric(metrics.PCIE_WIDTH),
    "pcie_width_max": _metric(metrics.PCIE_WIDTH_MAX),
    "pcie_replays": _metric(metrics.PCIE_REPLAYS),
    **{
        key: _metric(metrics.PCIE_ERRORS, error=key.removeprefix("pcie_"))
        for key in FIELDS[SLOW]
        if key.startswith("pcie_")
    },
    **{
        key: row
        for short, direction in _DIRECTIONS.items()
        for key, row in {
            f"pcie_{short}_bytes": _metric(metrics.PCIE_IO, direction=direction),
            f"pcie_{short}_mib_per_s": _metric(metrics.PCIE_RATE, _MIB, direction=direction),
            f"pcie_{short}_kb_per_s": _metric(metrics.PCIE_RATE, 1000, direction=direction),
            f"nvlink_{short}_kib": _metric(metrics.NVLINK_IO, 1024, direction=direction),
            f"nvlink_{short}_mib_per_s": _metric(metrics.NVLINK_RATE, _MIB, direction=direction),
        }.items()
    },
    **{
        key: _metric(metrics.NVLINK_ERRORS, error=key.removeprefix("nvlink_"))
        for key in FIELDS[SLOW]
        if key.startswith("nvlink_")
    },
    **{
        key: _ecc(*key.split("_")[1:]) for key in FIELDS[SLOW] if key.startswith(("ecc_corrected_", "ecc_uncorrected_"))
    },
    **{
        f"sram_{key}_{lifetime}": _metric(metrics.ECC, error_type=error, lifetime=lifetime, location="sram")
        for key, error in {
            "corrected": "corrected",
            "parity": "uncorrected_parity",
            "secded": "uncorrected_secded",
        }.items()
        for lifetime in _LIFETIMES
    },
    **{
        f"sram_uncorrected_{unit}": _metric(metrics.SRAM_UNITS, unit=unit)
        for unit in ("l2", "sm", "pcie", "mcu", "other")
    },
    "sram_threshold_exceeded": _metric(metrics.SRAM_THRESHOLD),
    "ecc_enabled": _metric(metrics.ECC_ENABLED),
    "retired_pages_single_bit": _metric(metrics.RETIRED, cause="single_bit"),
    "retired_pages_double_bit": _metric(metrics.RETIRED, cause="double_bit"),
    "retired_pages_pending": _metric(metrics.RETIRED_PENDING),
    "remapped_rows_correctable": _metric(metrics.REMAPPED, error_type="corrected"),
    "remapped_rows_uncorrectable": _metric(metrics.REMAPPED, error_type="uncorrected"),
    "remapped_rows_pending": _metric(metrics.REMAP_PENDING),
    "remapped_rows_failure": _metric(metrics.REMAP_FAILURE),
    **{
        f"row_banks_{left}": _metric(metrics.ROW_BANKS, spare_rows=left)
        for left in ("max", "high", "partial", "low", "none")
    },
    "recovery_action": _metric(metrics.RECOVERY),
    "fabric_state": _metric(metrics.FABRIC_STATE),
    "vgpu_licensed": _metric(metrics.VGPU_LICENSED),
    "vgpus": _metric(metrics.VGPUS),
    "graphics_active_percent": _percent(metrics.GRAPHICS_ACTIVE),
    "sm_active_percent": _percent(metrics.SM_ACTIVE),
    "sm_occupancy_percent": _percent(metrics.SM_OCCUPANCY),
    "tensor_active_percent": _percent(metrics.TENSOR_ACTIVE),
    **{f"tensor_{kind}_active_percent": _percent(metrics.TENSOR_KIND_ACTIVE, pipe=kind) for kind in _TENSOR_KINDS},
    "dram_active_percent": _percent(metrics.DRAM_ACTIVE),
    "integer_active_percent": _percent(metrics.INTEGER_ACTIVE),
    "fp64_active_percent": _percent(metrics.FP64_ACTIVE),
    "fp32_active_percent": _percent(metrics.FP32_ACTIVE),
    "fp16_active_percent": _percent(metrics.FP16_ACTIVE),
    "sm_cycles": _metric(metrics.SM_CYCLES),
    **{
        f"{pipe}_active_cycles": _metric(metrics.PIPE_CYCLES, pipe=pipe)
        for pipe in ("sm", "tensor", *(f"tensor_{kind}" for kind in _TENSOR_KINDS), "integer", "fp64", "fp32", "fp16")
    },
}
"""Metrics by key of a reading (fields.py, child/queries.py)."""
LINK_MAPPING: Mapping[str, MappedMetric] = {
    "active": _metric(metrics.LINK_UP),
    "speed_mbps": _metric(metrics.LINK_SPEED, 1_000_000),
    "tx_bytes": _metric(metrics.LINK_IO, direction="transmit"),
    "rx_bytes": _metric(metrics.LINK_IO, direction="receive"),
    "tx_kib": _metric(metrics.LINK_IO, 1024, direction="transmit"),
    "rx_kib": _metric(metrics.LINK_IO, 1024, direction="receive"),
    **{key: _metric(metrics.LINK_ERRORS, error=key) for key in LINK_FIELDS[SLOW] if key != "speed_mbps"},
}
DUPLICATE_OF: Mapping[str, str] = {"tx_bytes": "tx_kib", "rx_bytes": "rx_kib"}
"""Readings of a link that are left out where the other reading, with the same meaning, is there."""
MIG_MAPPING: Mapping[str, MappedMetric] = {
    "memory_used_bytes": _metric(metrics.MIG_MEMORY_USED),
    "memory_bytes": _metric(metrics.MIG_MEMORY_LIMIT),
    **{
        f"{part}_percent": _percent(metrics.MIG_ACTIVE, part=part.removesuffix("_active"))
        for part in (
            "graphics_active",
            "sm_active",
            "sm_occupancy",
            "tensor_active",
            "dram_active",
            "integer_active",
            "fp64_active",
            "fp32_active",
            "fp16_active",
        )
    },
}
CLOCK_EVENTS: Mapping[str, int] = {
    "idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}
"""Bits of clocks_event_reasons."""
FABRIC_CONDITIONS: Mapping[str, int] = {
    "degraded_bandwidth": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
}
"""Position of the two bits in fabric_health: 0 not known, 1 true, 2 false."""
