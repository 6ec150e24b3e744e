"""Readings from elsewhere beside NVML's."""

from __future__ import annotations

from exporter.nvml.snapshot import Readings
from tests.unit.dcgm.gpus import Told, gpu


def test_added() -> None:
    """What NVML does not say is in the snapshot as a set of its own; what it does say stays NVML's."""
    told = Told(gpu(0, fast={"tensor_active_percent": None}), gpu(1))
    more = {"GPU-0": Readings(9.0, {"tensor_active_percent": 20.0, "dram_active_percent": 1.0}), "GPU-7": Readings(9.0)}
    told.gpus.supplement("dcgm", lambda: more)

    first, second = told.gpus.snapshot().gpus

    assert 20.0 == first.value("tensor_active_percent")
    assert Readings(9.0, {"tensor_active_percent": 20.0}) == first.sets["dcgm"]
    assert "dcgm" not in second.sets

    told.gpus.supplement("dcgm", None)
    assert told.now == told.gpus.snapshot()


def test_lost_gpu_has_none() -> None:
    """Of a GPU that is lost nothing is said, whoever remembers readings."""
    told = Told(gpu(0, state="lost"))
    told.gpus.supplement("dcgm", lambda: {"GPU-0": Readings(9.0, {"tensor_active_percent": 20.0})})

    assert {} == told.gpus.snapshot().gpus[0].sets
