"""Which reading becomes which sample: metric, unit and labels, declared once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.model import Labels, Metric
from exporter.nvml import metrics
from exporter.nvml.fields import FIELDS, LINK_FIELDS
from exporter.nvml.snapshot import FAST, SLOW

_MIB, _PERCENT, _MILLI, _NANO, _MHZ = 1 << 20, 100, 1000, 1_000_000_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """`times` and `over` make the reading's unit the metric's; integers stay exact as far as they go."""

    metric: Metric
    times: int
    over: int
    labels: Labels

    def value(self, reading: int | float) -> int | float:
        return reading * self.times / self.over if self.over != 1 else reading * self.times


def _percent(metric: Metric, **labels: str) -> Row:
    return Row(metric, 1, _PERCENT, labels)


def _row(metric: Metric, times: int = 1, over: int = 1, **labels: str) -> Row:
    return Row(metric, times, over, labels)


def _ecc(error_type: str, lifetime: str, location: str) -> Row:
    if location == "total":
        return _row(metrics.ERRORS, error_type=error_type, lifetime=lifetime)
    return _row(metrics.ECC, error_type=error_type, lifetime=lifetime, location=location)


_CLOCKS = ("graphics", "sm", "memory", "video")
_TENSOR_KINDS = ("dfma", "hmma", "dmma", "imma")
_DIRECTIONS = {"rx": "receive", "tx": "transmit"}
_DIRECTIONS = {"rx": "receive", "tx": "transmit"}
_LIFETIMES = ("volatile", "aggregate")
_MARGINS = ("shutdown", "slowdown", "memory_max", "gpu_max")

GPU_ROWS: Mapping[str, Row] = {
    "utilization_percent": _percent(metrics.UTILIZATION, task="general"),
    **{f"{task}_percent": _percent(metrics.UTILIZATION, task=task) for task in ("encoder", "decoder", "jpeg", "ofa")},
    "memory_copy_percent": _percent(metrics.MEMORY_BUSY),
    "memory_bytes": _row(metrics.MEMORY_LIMIT),
    "memory_used_bytes": _row(metrics.MEMORY_USED),
    "memory_free_bytes": _row(metrics.MEMORY_FREE),
    "memory_reserved_bytes": _row(metrics.MEMORY_RESERVED),
    "bar1_bytes": _row(metrics.BAR1_LIMIT),
    "bar1_used_bytes": _row(metrics.BAR1_USED),
    "temperature_c": _row(metrics.TEMPERATURE, sensor="gpu"),
    "memory_temperature_c": _row(metrics.TEMPERATURE, sensor="memory"),
    **{f"temperature_limit_{limit}_c": _row(metrics.TEMPERATURE_LIMIT, limit=limit) for limit in _MARGINS},
    "temperature_margin_c": _row(metrics.MARGIN),
    **{f"margin_limit_{limit}_c": _row(metrics.MARGIN_LIMIT, limit=limit) for limit in _MARGINS},
    "power_mw": _row(metrics.POWER, over=_MILLI),
    "power_average_mw": _row(metrics.POWER_DRAW, over=_MILLI, kind="average"),
    "power_instant_mw": _row(metrics.POWER_DRAW, over=_MILLI, kind="instant"),
    **{
        f"power_limit_{limit}_mw": _row(metrics.POWER_LIMIT, over=_MILLI, limit=limit)
        for limit in ("enforced", "requested", "default", "min", "max")
    },
    "energy_mj": _row(metrics.ENERGY, over=_MILLI),
    **{f"clock_{clock}_mhz": _row(metrics.CLOCK, _MHZ, clock=clock) for clock in _CLOCKS},
    **{f"clock_{clock}_max_mhz": _row(metrics.CLOCK_MAX, _MHZ, clock=clock) for clock in _CLOCKS},
    **{
        key: _row(metrics.SLOWED, over=_NANO, reason=key[len("slowed_") : -len("_ns")])
        for key in FIELDS[FAST]
        if key.startswith("slowed_")
    },
    "performance_state": _row(metrics.PERFORMANCE_STATE),
    "fan_percent": _percent(metrics.FAN),
    "persistence_mode": _row(metrics.PERSISTENCE),
    "compute_mode": _row(metrics.COMPUTE_MODE),
    "pcie_generation": _row(metrics.PCIE_GENERATION),
    "pcie_generation_max": _row(metrics.PCIE_GENERATION_MAX),
    "pcie_width": _row(metrics.PCIE_WIDTH),
    "pcie_width_max": _row(metrics.PCIE_WIDTH_MAX),
    "pcie_replays": _row(metrics.PCIE_REPLAYS),
    **{
        key: _row(metrics.PCIE_ERRORS, error=key.removeprefix("pcie_"))
        for key in FIELDS[SLOW]
        if key.startswith("pcie_")
    },
    **{
        key: row
        for short, direction in _DIRECTIONS.items()
        for key, row in {
            f"pcie_{short}_bytes": _row(metrics.PCIE_IO, direction=direction),
            f"pcie_{short}_mib_per_s": _row(metrics.PCIE_RATE, _MIB, direction=direction),
            f"pcie_{short}_kb_per_s": _row(metrics.PCIE_RATE, 1000, direction=direction),
            f"nvlink_{short}_kib": _row(metrics.NVLINK_IO, 1024, direction=direction),
            f"nvlink_{short}_mib_per_s": _row(metrics.NVLINK_RATE, _MIB, direction=direction),
        }.items()
    },
    **{
        key: _row(metrics.NVLINK_ERRORS, error=key.removeprefix("nvlink_"))
        for key in FIELDS[SLOW]
        if key.startswith("nvlink_")
    },
    **{
        key: _ecc(*key.split("_")[1:]) for key in FIELDS[SLOW] if key.startswith(("ecc_corrected_", "ecc_uncorrected_"))
    },
    **{
        f"sram_{key}_{lifetime}": _row(metrics.ECC, error_type=error, lifetime=lifetime, location="sram")
        for key, error in {
            "corrected": "corrected",
            "parity": "uncorrected_parity",
            "secded": "uncorrected_secded",
        }.items()
        for lifetime in _LIFETIMES
    },
    **{
        f"sram_uncorrected_{unit}": _row(metrics.SRAM_UNITS, unit=unit) for unit in ("l2", "sm", "pcie", "mcu", "other")
    },
    "sram_threshold_exceeded": _row(metrics.SRAM_THRESHOLD),
    "ecc_enabled": _row(metrics.ECC_ENABLED),
    "retired_pages_single_bit": _row(metrics.RETIRED, cause="single_bit"),
    "retired_pages_double_bit": _row(metrics.RETIRED, cause="double_bit"),
    "retired_pages_pending": _row(metrics.RETIRED_PENDING),
    "remapped_rows_correctable": _row(metrics.REMAPPED, error_type="corrected"),
    "remapped_rows_uncorrectable": _row(metrics.REMAPPED, error_type="uncorrected"),
    "remapped_rows_pending": _row(metrics.REMAP_PENDING),
    "remapped_rows_failure": _row(metrics.REMAP_FAILURE),
    **{
        f"row_banks_{left}": _row(metrics.ROW_BANKS, spare_rows=left)
        for left in ("max", "high", "partial", "low", "none")
    },
    "recovery_action": _row(metrics.RECOVERY),
    "fabric_state": _row(metrics.FABRIC_STATE),
    "vgpu_licensed": _row(metrics.VGPU_LICENSED),
    "vgpus": _row(metrics.VGPUS),
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
    "sm_cycles": _row(metrics.SM_CYCLES),
    **{
        f"{pipe}_active_cycles": _row(metrics.PIPE_CYCLES, pipe=pipe)
        for pipe in ("sm", "tensor", *(f"tensor_{kind}" for kind in _TENSOR_KINDS), "integer", "fp64", "fp32", "fp16")
    },
}
"""By reading (fields.py): what it becomes."""
LINK_ROWS: Mapping[str, Row] = {
    "active": _row(metrics.LINK_UP),
    "speed_mbps": _row(metrics.LINK_SPEED, 1_000_000),
    "tx_bytes": _row(metrics.LINK_IO, direction="transmit"),
    "rx_bytes": _row(metrics.LINK_IO, direction="receive"),
    "tx_kib": _row(metrics.LINK_IO, 1024, direction="transmit"),
    "rx_kib": _row(metrics.LINK_IO, 1024, direction="receive"),
    **{key: _row(metrics.LINK_ERRORS, error=key) for key in LINK_FIELDS[SLOW] if key != "speed_mbps"},
}
INSTEAD: Mapping[str, str] = {"tx_bytes": "tx_kib", "rx_bytes": "rx_kib"}
"""A link's reading is left out where the other is there, which means the same."""
MIG_ROWS: Mapping[str, Row] = {
    "memory_used_bytes": _row(metrics.MIG_MEMORY_USED),
    "memory_bytes": _row(metrics.MIG_MEMORY_LIMIT),
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
"""Where the two bits of fabric_health are: 0 not told, 1 true, 2 false."""
