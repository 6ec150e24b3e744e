"""The metrics of AMD's GPUs, from files of the kernel's driver amdgpu."""

from __future__ import annotations

from exporter.model import Kind, Metric

GPU = ("card", "pci_bus_id")
PEER = ("peer_pci_bus_id", "link")


def _gauge(name: str, help_text: str, unit: str = "", *labels: str) -> Metric:
    return Metric(f"gpu.amd.{name}", help_text, Kind.GAUGE, unit, labels=(*GPU, *labels))


INFO = _gauge(
    "info",
    "Always 1; what identifies the AMD GPU. card is the name in /dev/dri, unique_id and serial are the driver's.",
    "",
    *("name", "unique_id", "serial", "vbios", "pci_device_id"),
)
SUCCESS = Metric(
    "accel_exporter.amdgpu.success",
    "1 when the last reading of the AMD GPU ended in time, else 0.",
    Kind.GAUGE,
    labels=("card",),
)
SUSPENDED = _gauge(
    "suspended",
    "1 while the GPU is suspended by the kernel, else 0. Its sensors and errors are not read then, since that would "
    "wake the GPU.",
)
BUSY = _gauge(
    "busy",
    "Share of time in which the engine (gpu) or the memory (vram) was in use, as the GPU's firmware estimates it; over "
    "which time the kernel does not specify.",
    "1",
    "engine",
)
MEMORY_USED = _gauge(
    "memory.usage",
    "Bytes in use of a memory of the GPU: vram, the part of it that the host can address (vis_vram), and host memory "
    "that the GPU may address (gtt).",
    "By",
    "memory",
)
MEMORY_LIMIT = _gauge(
    "memory.limit", "Size of a memory of the GPU: vram, vis_vram (part of vram) or gtt (of the host).", "By", "memory"
)
POWER = _gauge(
    "power",
    "Power of the GPU: average or, where the driver has only that, momentary (kind). On APUs it includes the CPU.",
    "W",
    "kind",
)
POWER_LIMIT = _gauge("power.limit", "Power limit that is set for the GPU.", "W")
TEMPERATURE = _gauge(
    "temperature", "Temperature of a sensor of the GPU: edge, junction (the hottest place) or mem.", "Cel", "sensor"
)
CLOCK = _gauge("clock", "Clock frequency now: sclk of the engine, mclk of the memory.", "Hz", "clock")
ERRORS = Metric(
    "gpu.amd.ras.errors",
    "Errors since the driver was loaded, by the block of the GPU: umc is memory (HBM). corrected, uncorrected, or "
    "deferred: found and not yet used.",
    Kind.COUNTER,
    labels=(*GPU, "block", "error_type"),
)
PCIE_REPLAYS = Metric(
    "gpu.amd.pcie.replays", "PCIe packets retransmitted, as the driver counts them.", Kind.COUNTER, labels=GPU
)
LINK = _gauge(
    "link.info",
    "Always 1; a link from the GPU to another one (peer_pci_bus_id), as amdkfd lists it: xgmi or pcie. A link that is "
    "listed may be down.",
    "",
    *PEER,
)
LINK_BANDWIDTH = _gauge(
    "link.bandwidth.max",
    "Bandwidth of the link one way as amdkfd has it from the firmware. Nothing is measured.",
    "By/s",
    *PEER,
)
PROCESS_MEMORY = Metric(
    "gpu.amd.process.memory.usage",
    "Bytes of the GPU's memory that the process has by amdkfd: what HIP and others allocated there, not what graphics "
    "did.",
    Kind.GAUGE,
    "By",
    labels=GPU,
    process=True,
)
