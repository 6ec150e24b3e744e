"""GPUs made by hand, as NVML reports them, and a node with these GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from exporter.model import Labels
from exporter.node import Node
from exporter.nvml.gpus import Gpus
from exporter.nvml.snapshot import (
    FAST,
    PROCESSES,
    SLOW,
    DriverVersions,
    Gpu,
    GpuIdentity,
    GpuProcess,
    GpuSnapshot,
    Mig,
    Readings,
)
from exporter.resolve.allocations import Allocations
from tests.nodes import make_node

FAST_VALUES: dict[str, int | float] = {
    "clock_sm_mhz": 1755,
    "clock_memory_mhz": 2619,
    "memory_temperature_c": 52,
    "temperature_c": 41,
    "power_mw": 312456,
    "energy_mj": 2**53 + 1,
    "pcie_replays": 3,
    "utilization_percent": 63,
    "memory_copy_percent": 38,
    "encoder_percent": 0,
    "decoder_percent": 0,
    "clocks_event_reasons": 0x4,
    "memory_bytes": 80 << 30,
    "memory_used_bytes": (42 << 30) + 1048575,
    "memory_free_bytes": 37 << 30,
    "memory_reserved_bytes": 610 << 20,
    "nvlink_tx_kib": 1000,
    "nvlink_rx_kib": 1000,
    "graphics_active_percent": 64.5,
    "tensor_active_percent": 48.75,
    "dram_active_percent": 37.5,
    "pcie_tx_mib_per_s": 512.0,
    "pcie_rx_mib_per_s": 256.0,
}
SLOW_VALUES: dict[str, int | float] = {
    "remapped_rows_uncorrectable": 0,
    "remapped_rows_correctable": 2,
    "remapped_rows_failure": 0,
    "ecc_corrected_volatile_total": 7,
}


def gpu(
    index: int = 0,
    at: float = 100.0,
    fast: Mapping[str, int | float | None] | None = None,
    migs: tuple[Mig, ...] = (),
    own: Mapping[str, Mapping[str, int | float]] | None = None,
    processes: tuple[GpuProcess, ...] = (),
    state: str = "ok",
    links: Mapping[int, Mapping[str, int | float]] | None = None,
) -> Gpu:
    """Returns an H100 with every default reading; `fast` changes readings, and a value None removes one."""
    values = {key: value for key, value in {**FAST_VALUES, **(fast or {})}.items() if value is not None}
    identity = GpuIdentity(
        uuid=f"GPU-{index}",
        index=index,
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        serial="165",
        brand="Nvidia",
        vbios="96.00",
        inforom={"image": "G520", "oem": "2.1"},
        links=len(links or {}),
        mig_enabled=bool(migs),
        migs=migs,
    )
    sets = {
        FAST: Readings(at, values, links or {}, own or {}),
        PROCESSES: Readings(at, processes=processes),
        SLOW: Readings(at, SLOW_VALUES),
    }
    return Gpu(identity, state, sets if state == "ok" else {})


def mig(instance: int, compute: int = 0, profile: str = "1g.10gb") -> Mig:
    return Mig(f"MIG-{instance}-{compute}", instance, profile, instance, compute)


def snapshot(*gpus: Gpu) -> GpuSnapshot:
    return GpuSnapshot("running", "", DriverVersions("580.95.05", "13.580.95.05", 13000), gpus)


class MadeGpus:
    """GPUs of a node with the snapshot `now`, and processes by pid."""

    def __init__(self, *gpus: Gpu, processes: Mapping[int, Labels] | None = None) -> None:
        self.now = snapshot(*gpus)
        self.gpus = Gpus()
        self.gpus.serve(lambda: self.now, lambda _: True)
        self.processes = Mock()
        self.processes.labels = lambda pid: {"pid": str(pid), **(processes or {}).get(pid, {})}

    def node(self, **words: Any) -> Node:
        settings = words.pop("settings")
        return make_node(
            settings=settings,
            processes=self.processes,
            targets=Mock(),
            spans=Mock(),
            gpus=self.gpus,
            allocations=words.pop("allocations", Allocations()),
            proc=Path("/proc"),
        )
