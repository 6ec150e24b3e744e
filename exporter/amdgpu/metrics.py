"""The metrics of AMD's GPUs, from files of the kernel's driver amdgpu."""

from __future__ import annotations

from exporter.model import Kind, Metric

GPU = ("card", "pci_bus_id")
PEER = ("peer_pci_bus_id", "link")


def _gauge(name: str, help_text: str, unit: str = "", *labels: str) -> Metric:
    return Metric(f"gpu.amd.{name}", help_text, Kind.GAUGE, unit, labels=(*GPU, *labels))


INFO = _gauge(
    "info",
    "Always 1: identity of the AMD GPU. card is the name in /dev/dri; unique_id and serial come from the driver.",
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
    "1 while the kernel has suspended the GPU, else 0. Its sensors and errors are then not read, because a reading "
    "would wake the GPU.",
)
BUSY = _gauge(
    "busy",
    "Share of time in which the engine (gpu) or the memory (vram) was in use, as estimated by the GPU's firmware. The "
    "kernel does not specify the period.",
    "1",
    "engine",
)
MEMORY_USED = _gauge(
    "memory.usage",
    "GPU memory in use, by kind: vram, vis_vram (the part of vram that the host can address), gtt (host memory that "
    "the GPU may address).",
    "By",
    "memory",
)
MEMORY_LIMIT = _gauge(
    "memory.limit", "Size of GPU memory, by kind: vram, vis_vram (part of vram), gtt (host memory).", "By", "memory"
)
POWER = _gauge(
    "power",
    "GPU power, by kind: average, or momentary where the driver has no average. On APUs it includes the CPU.",
    "W",
    "kind",
)
POWER_LIMIT = _gauge("power.limit", "Power limit set for the GPU.", "W")
TEMPERATURE = _gauge(
    "temperature", "GPU temperature, by sensor: edge, junction (the hottest place), mem.", "Cel", "sensor"
)
CLOCK = _gauge("clock", "Current clock frequency: sclk of the engine, mclk of the memory.", "Hz", "clock")
ERRORS = Metric(
    "gpu.amd.ras.errors",
    "Errors since the driver was loaded, by block of the GPU (umc is memory, HBM) and type: corrected, uncorrected, "
    "or deferred (found in data not yet used).",
    Kind.COUNTER,
    labels=(*GPU, "block", "error_type"),
)
PCIE_REPLAYS = Metric(
    "gpu.amd.pcie.replays", "PCIe packets retransmitted, as the driver counts them.", Kind.COUNTER, labels=GPU
)
LINK = _gauge(
    "link.info",
    "Always 1: a link (xgmi or pcie) from the GPU to the GPU peer_pci_bus_id, as listed by amdkfd. A listed link may "
    "be down.",
    "",
    *PEER,
)
LINK_BANDWIDTH = _gauge(
    "link.bandwidth.max",
    "Nominal bandwidth of the link in one direction, which amdkfd has from the firmware. Not measured.",
    "By/s",
    *PEER,
)
PROCESS_MEMORY = Metric(
    "gpu.amd.process.memory.usage",
    "GPU memory of the process according to amdkfd: allocations by HIP and other compute software, without graphics.",
    Kind.GAUGE,
    "By",
    labels=GPU,
    process=True,
)
