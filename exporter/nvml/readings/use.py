"""Readings of use, memory, temperature, power, clocks, PCIe and modes of a GPU."""

from __future__ import annotations

from typing import Any

from exporter.nvml import metrics
from exporter.nvml.reading import KB, MHZ, MILLI, NANO, PERCENT, Call, FieldValue, Reading, item, member, wide

_MEMORY_V2 = 0x0200_0028
_VGPU_FEATURE = 1
_CLOCKS = ("graphics", "sm", "memory", "video")
"""NVML's clocks, from number 0."""
_LIMITS = ("shutdown", "slowdown", "memory_max", "gpu_max")
"""NVML's thresholds of temperature, from number 0."""


def _licensed(features: Any) -> int:
    listed = [features.gridLicensableFeatures[i] for i in range(features.licensableFeaturesCount)]
    return int(any(one.featureCode == _VGPU_FEATURE and one.featureState for one in listed))


def _memory(name: str) -> Call:
    return Call("nvmlDeviceGetMemoryInfo", member(name), (_MEMORY_V2,))


def _older_memory(name: str) -> Call:
    """Returns the call of older drivers, which count reserved memory as used: never mixed with the newer call."""
    return Call("nvmlDeviceGetMemoryInfo", member(name), unless="memory_bytes")


def _slowed(reason: str, field: str, policy: int | None = None) -> Reading:
    fallback = None
    if policy is not None:
        fallback = Call("nvmlDeviceGetViolationStatus", member("violationTime"), (policy,))
    return Reading(f"slowed_{reason}_ns", FieldValue(field), metrics.SLOWED, NANO, {"reason": reason}, fallback)


def _power_limit(limit: str, field: str, fallback: Call) -> Reading:
    return Reading(f"power_limit_{limit}_mw", FieldValue(field), metrics.POWER_LIMIT, MILLI, {"limit": limit}, fallback)


MEMORY = (
    Reading(
        "memory_bytes",
        _memory("total"),
        metrics.MEMORY_LIMIT,
        fallback=_older_memory("total"),
        mig=(metrics.MIG_MEMORY_LIMIT, {}),
    ),
    Reading(
        "memory_used_bytes",
        _memory("used"),
        metrics.MEMORY_USED,
        fallback=_older_memory("used"),
        mig=(metrics.MIG_MEMORY_USED, {}),
    ),
    Reading("memory_free_bytes", _memory("free"), metrics.MEMORY_FREE, fallback=_older_memory("free")),
    Reading("memory_reserved_bytes", _memory("reserved"), metrics.MEMORY_RESERVED),
)
"""Readings of GPUs and of MIG devices."""

FAST = (
    *MEMORY,
    Reading(
        "utilization_percent",
        Call("nvmlDeviceGetUtilizationRates", member("gpu")),
        metrics.UTILIZATION,
        PERCENT,
        {"task": "general"},
    ),
    *(
        Reading(f"{task}_percent", Call(function, item(0)), metrics.UTILIZATION, PERCENT, {"task": task})
        for task, function in {
            "encoder": "nvmlDeviceGetEncoderUtilization",
            "decoder": "nvmlDeviceGetDecoderUtilization",
            "jpeg": "nvmlDeviceGetJpgUtilization",
            "ofa": "nvmlDeviceGetOfaUtilization",
        }.items()
    ),
    Reading(
        "memory_copy_percent", Call("nvmlDeviceGetUtilizationRates", member("memory")), metrics.MEMORY_BUSY, PERCENT
    ),
    Reading(
        "temperature_c",
        Call("nvmlDeviceGetTemperatureV", arguments=(0,)),
        metrics.TEMPERATURE,
        labels={"sensor": "gpu"},
        fallback=Call("nvmlDeviceGetTemperature", arguments=(0,)),
    ),
    Reading("memory_temperature_c", FieldValue("DEV_MEMORY_TEMP"), metrics.TEMPERATURE, labels={"sensor": "memory"}),
    Reading("temperature_margin_c", Call("nvmlDeviceGetMarginTemperature"), metrics.MARGIN),
    Reading("power_mw", Call("nvmlDeviceGetPowerUsage"), metrics.POWER, MILLI),
    Reading("power_average_mw", FieldValue("DEV_POWER_AVERAGE"), metrics.POWER_DRAW, MILLI, {"kind": "average"}),
    Reading("power_instant_mw", FieldValue("DEV_POWER_INSTANT"), metrics.POWER_DRAW, MILLI, {"kind": "instant"}),
    Reading(
        "energy_mj",
        FieldValue("DEV_TOTAL_ENERGY_CONSUMPTION"),
        metrics.ENERGY,
        MILLI,
        fallback=Call("nvmlDeviceGetTotalEnergyConsumption", wide),
    ),
    *(
        Reading(
            f"clock_{clock}_mhz",
            Call("nvmlDeviceGetClockInfo", arguments=(place,)),
            metrics.CLOCK,
            MHZ,
            {"clock": clock},
        )
        for place, clock in enumerate(_CLOCKS)
    ),
    Reading(
        "clocks_event_reasons",
        Call("nvmlDeviceGetCurrentClocksEventReasons", wide),
        fallback=Call("nvmlDeviceGetCurrentClocksThrottleReasons", wide),
    ),
    _slowed("power_cap", "DEV_PERF_POLICY_POWER", 0),
    _slowed("thermal", "DEV_PERF_POLICY_THERMAL", 1),
    _slowed("sync_boost", "DEV_PERF_POLICY_SYNC_BOOST", 2),
    _slowed("board_limit", "DEV_PERF_POLICY_BOARD_LIMIT", 3),
    _slowed("low_utilization", "DEV_PERF_POLICY_LOW_UTILIZATION", 4),
    _slowed("reliability", "DEV_PERF_POLICY_RELIABILITY", 5),
    _slowed("sw_thermal", "DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN"),
    _slowed("hw_thermal", "DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN"),
    _slowed("hw_power_brake", "DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN"),
    Reading("performance_state", Call("nvmlDeviceGetPerformanceState"), metrics.PERFORMANCE_STATE),
    Reading("pcie_generation", Call("nvmlDeviceGetCurrPcieLinkGeneration"), metrics.PCIE_GENERATION),
    Reading("pcie_width", Call("nvmlDeviceGetCurrPcieLinkWidth"), metrics.PCIE_WIDTH),
)

SLOW = (
    *(
        Reading(
            f"clock_{clock}_max_mhz",
            Call("nvmlDeviceGetMaxClockInfo", arguments=(place,)),
            metrics.CLOCK_MAX,
            MHZ,
            {"clock": clock},
        )
        for place, clock in enumerate(_CLOCKS)
    ),
    Reading("pcie_generation_max", Call("nvmlDeviceGetMaxPcieLinkGeneration"), metrics.PCIE_GENERATION_MAX),
    Reading("pcie_width_max", Call("nvmlDeviceGetMaxPcieLinkWidth"), metrics.PCIE_WIDTH_MAX),
    Reading("memory_bus_bits", Call("nvmlDeviceGetMemoryBusWidth")),
    Reading("bar1_bytes", Call("nvmlDeviceGetBAR1MemoryInfo", member("bar1Total")), metrics.BAR1_LIMIT),
    Reading("bar1_used_bytes", Call("nvmlDeviceGetBAR1MemoryInfo", member("bar1Used")), metrics.BAR1_USED),
    _power_limit("min", "DEV_POWER_MIN_LIMIT", Call("nvmlDeviceGetPowerManagementLimitConstraints", item(0))),
    _power_limit("max", "DEV_POWER_MAX_LIMIT", Call("nvmlDeviceGetPowerManagementLimitConstraints", item(1))),
    _power_limit("default", "DEV_POWER_DEFAULT_LIMIT", Call("nvmlDeviceGetPowerManagementDefaultLimit")),
    _power_limit("requested", "DEV_POWER_REQUESTED_LIMIT", Call("nvmlDeviceGetPowerManagementLimit")),
    _power_limit("enforced", "DEV_POWER_CURRENT_LIMIT", Call("nvmlDeviceGetEnforcedPowerLimit")),
    *(
        Reading(
            f"temperature_limit_{limit}_c",
            Call("nvmlDeviceGetTemperatureThreshold", arguments=(place,)),
            metrics.TEMPERATURE_LIMIT,
            labels={"limit": limit},
        )
        for place, limit in enumerate(_LIMITS)
    ),
    *(
        Reading(f"margin_limit_{limit}_c", FieldValue(field), metrics.MARGIN_LIMIT, labels={"limit": limit})
        for limit, field in {
            "shutdown": "DEV_TEMPERATURE_SHUTDOWN_TLIMIT",
            "slowdown": "DEV_TEMPERATURE_SLOWDOWN_TLIMIT",
            "memory_max": "DEV_TEMPERATURE_MEM_MAX_TLIMIT",
            "gpu_max": "DEV_TEMPERATURE_GPU_MAX_TLIMIT",
        }.items()
    ),
    Reading("persistence_mode", Call("nvmlDeviceGetPersistenceMode"), metrics.PERSISTENCE),
    Reading("compute_mode", Call("nvmlDeviceGetComputeMode"), metrics.COMPUTE_MODE),
    Reading("vgpu_licensed", Call("nvmlDeviceGetGridLicensableFeatures", _licensed), metrics.VGPU_LICENSED),
    Reading("vgpus", Call("nvmlDeviceGetActiveVgpus", len), metrics.VGPUS),
    Reading("fan_percent", Call("nvmlDeviceGetFanSpeed"), metrics.FAN, PERCENT),
)

WITHOUT_GPM = tuple(
    Reading(
        f"pcie_{short}_kb_per_s",
        Call("nvmlDeviceGetPcieThroughput", arguments=(place,)),
        metrics.PCIE_RATE,
        KB,
        {"direction": direction},
    )
    for place, (short, direction) in enumerate((("tx", "transmit"), ("rx", "receive")))
)
"""Measured over 20 ms, for which each call blocks: of the fast set, and only of GPUs without GPM."""
