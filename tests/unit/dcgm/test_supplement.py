"""Readings from another source beside NVML's."""

from __future__ import annotations

from exporter.nvml.snapshot import Readings
from tests.unit.dcgm.gpus import MadeGpus, gpu


def test_added() -> None:
    """Readings that NVML lacks are in the snapshot as a set of their own; NVML's readings have precedence."""
    made = MadeGpus(gpu(0, fast={"tensor_active_percent": None}), gpu(1))
    more = {"GPU-0": Readings(9.0, {"tensor_active_percent": 20.0, "dram_active_percent": 1.0}), "GPU-7": Readings(9.0)}
    made.gpus.supplement("dcgm", lambda: more)

    first, second = made.gpus.snapshot().gpus

    assert 20.0 == first.value("tensor_active_percent")
    assert Readings(9.0, {"tensor_active_percent": 20.0}) == first.sets["dcgm"]
    assert "dcgm" not in second.sets

    made.gpus.supplement("dcgm", None)
    assert made.now == made.gpus.snapshot()


def test_lost_gpu_has_none() -> None:
    """A lost GPU has no readings, also none of another source."""
    made = MadeGpus(gpu(0, state="lost"))
    made.gpus.supplement("dcgm", lambda: {"GPU-0": Readings(9.0, {"tensor_active_percent": 20.0})})

    assert {} == made.gpus.snapshot().gpus[0].sets
