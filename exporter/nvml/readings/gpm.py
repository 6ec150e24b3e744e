"""Readings of NVML's GPU performance metrics (GPM), which Hopper and newer have, also by MIG device."""

from __future__ import annotations

from exporter.model import Metric
from exporter.nvml import metrics
from exporter.nvml.reading import MIB, PERCENT, GpmCount, GpmMean, Reading


def _active(key: str, number: int, metric: Metric, part: str) -> Reading:
    """Returns a share of time; `part` is its label on MIG devices."""
    return Reading(key, GpmMean(number), metric, PERCENT, mig=(metrics.MIG_ACTIVE, {"part": part}))


def _pipe(pipe: str, number: int) -> Reading:
    return Reading(f"{pipe}_active_cycles", GpmCount(number), metrics.PIPE_CYCLES, labels={"pipe": pipe})


FAST = (
    _active("graphics_active_percent", 1, metrics.GRAPHICS_ACTIVE, "graphics"),
    _active("sm_active_percent", 2, metrics.SM_ACTIVE, "sm"),
    _active("sm_occupancy_percent", 3, metrics.SM_OCCUPANCY, "sm_occupancy"),
    _active("integer_active_percent", 4, metrics.INTEGER_ACTIVE, "integer"),
    _active("tensor_active_percent", 5, metrics.TENSOR_ACTIVE, "tensor"),
    _active("dram_active_percent", 10, metrics.DRAM_ACTIVE, "dram"),
    _active("fp64_active_percent", 11, metrics.FP64_ACTIVE, "fp64"),
    _active("fp32_active_percent", 12, metrics.FP32_ACTIVE, "fp32"),
    _active("fp16_active_percent", 13, metrics.FP16_ACTIVE, "fp16"),
    *(
        Reading(f"tensor_{kind}_active_percent", GpmMean(number), metrics.TENSOR_KIND_ACTIVE, PERCENT, {"pipe": kind})
        for kind, number in {"dfma": 6, "hmma": 7, "dmma": 8, "imma": 9}.items()
    ),
    *(
        Reading(key, GpmMean(number), metric, MIB, {"direction": direction})
        for key, number, metric, direction in (
            ("pcie_tx_mib_per_s", 20, metrics.PCIE_RATE, "transmit"),
            ("pcie_rx_mib_per_s", 21, metrics.PCIE_RATE, "receive"),
            ("nvlink_rx_mib_per_s", 60, metrics.NVLINK_RATE, "receive"),
            ("nvlink_tx_mib_per_s", 61, metrics.NVLINK_RATE, "transmit"),
        )
    ),
    Reading("sm_cycles", GpmCount(248), metrics.SM_CYCLES),
    _pipe("sm", 249),
    _pipe("tensor", 250),
    _pipe("tensor_dmma", 251),
    _pipe("tensor_hmma", 252),
    _pipe("tensor_imma", 253),
    _pipe("tensor_dfma", 254),
    Reading("pcie_tx_bytes", GpmCount(255), metrics.PCIE_IO, labels={"direction": "transmit"}),
    Reading("pcie_rx_bytes", GpmCount(256), metrics.PCIE_IO, labels={"direction": "receive"}),
    _pipe("integer", 257),
    _pipe("fp64", 258),
    _pipe("fp32", 259),
    _pipe("fp16", 260),
)
