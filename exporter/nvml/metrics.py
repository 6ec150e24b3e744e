"""Metrics of GPUs from NVML. Names are those of the semantic conventions (hw.*) where these have one."""

from __future__ import annotations

from exporter.model import Kind, Metric

GPU = ("gpu", "gpu_uuid")
HARDWARE = ("hw_type", *GPU)


def _gauge(name: str, help_text: str, unit: str = "", *labels: str) -> Metric:
    return Metric(name, help_text, Kind.GAUGE, unit, labels=(*GPU, *labels))


def _counter(name: str, help_text: str, unit: str = "", *labels: str) -> Metric:
    return Metric(name, help_text, Kind.COUNTER, unit, labels=(*GPU, *labels))


INFO = _gauge(
    "hw.gpu.info",
    "Always 1: identity of the GPU, its driver and its firmware. device is the N of /dev/nvidiaN.",
    "",
    *("name", "pci_bus_id", "serial", "device", "brand", "compute_capability", "board_part_number"),
    *("vbios", "inforom_image", "driver_version", "nvml_version", "cuda_version", "mig", "virtualization"),
)
STATUS = Metric(
    "hw.status",
    "1 for the current state of the GPU, else 0. ok: the GPU answers and requests no action. degraded: the GPU "
    "answers and requests an action (gpu_recovery_action). failed: the GPU needs a reset, or nothing can be read. "
    "lost: the GPU fell off the bus or was removed. stalled: a call about the GPU did not return, so no calls about "
    "it are made.",
    Kind.GAUGE,
    labels=(*HARDWARE, "state"),
)
UTILIZATION = _gauge(
    "hw.gpu.utilization",
    "Share of the last sample period in which the engine was in use. task=general: one or more kernels ran, however "
    "small; for the part of the GPU in use see gpu_sm_active_ratio.",
    "1",
    "task",
)
MEMORY_BUSY = _gauge(
    "gpu.memory.busy",
    "Share of the last sample period in which device memory was read or written at all. Not its bandwidth.",
    "1",
)
MEMORY_USED = _gauge("hw.gpu.memory.usage", "Allocated device memory, without reserved memory.", "By")
MEMORY_LIMIT = _gauge("hw.gpu.memory.limit", "Size of the device memory, reserved memory included.", "By")
MEMORY_SHARE = _gauge("hw.gpu.memory.utilization", "Allocated device memory as a share of its size.", "1")
MEMORY_FREE = _gauge("gpu.memory.free", "Device memory not allocated.", "By")
MEMORY_RESERVED = _gauge("gpu.memory.reserved", "Device memory reserved by driver and firmware.", "By")
BAR1_USED = _gauge("gpu.bar1.usage", "BAR1 address space in use. The host and peers map GPU memory through it.", "By")
BAR1_LIMIT = _gauge("gpu.bar1.limit", "Size of the BAR1 address space.", "By")
TEMPERATURE = Metric("hw.temperature", "Temperature of a sensor.", Kind.GAUGE, "Cel", labels=(*HARDWARE, "sensor"))
TEMPERATURE_LIMIT = Metric(
    "hw.temperature.limit",
    "Temperature at which the GPU slows down or shuts down, or that it should not exceed. Newer GPUs report margins "
    "instead.",
    Kind.GAUGE,
    "Cel",
    labels=(*HARDWARE, "limit"),
)
MARGIN = _gauge(
    "gpu.temperature.margin", "Temperature margin to the GPU's thermal limit; negative beyond the limit.", "Cel"
)
MARGIN_LIMIT = _gauge(
    "gpu.temperature.margin.limit",
    "Value of gpu_temperature_margin_celsius at which the limit is reached.",
    "Cel",
    "limit",
)
POWER = Metric(
    "hw.power",
    "Power draw of the board: mean of one second on most GPUs since Ampere, else momentary.",
    Kind.GAUGE,
    "W",
    labels=HARDWARE,
)
POWER_DRAW = _gauge(
    "gpu.power.draw", "Power draw of the board, by kind: mean of one second, or momentary.", "W", "kind"
)
POWER_LIMIT = _gauge(
    "gpu.power.limit", "Power limits of the board: the limit in force, and the limits of its setting.", "W", "limit"
)
ENERGY = Metric("hw.energy", "Energy used since the driver was loaded.", Kind.COUNTER, "J", labels=HARDWARE)
CLOCK = _gauge("gpu.clock", "Current clock frequency.", "Hz", "clock")
CLOCK_MAX = _gauge("gpu.clock.max", "Maximum clock frequency.", "Hz", "clock")
SLOWED = _counter(
    "gpu.clock.slowed",
    "Time for which clocks were lowered, by reason. Reasons overlap: do not add them.",
    "s",
    "reason",
)
CLOCK_EVENT = _gauge("gpu.clock.event", "1 while this reason limits the clocks, else 0.", "", "reason")
PERFORMANCE_STATE = _gauge("gpu.performance_state", "Performance state: 0 is the highest, 15 the lowest.")
FAN = Metric(
    "hw.fan.speed_ratio", "Intended speed of the fan as a share of the highest.", Kind.GAUGE, "1", labels=HARDWARE
)
PERSISTENCE = _gauge(
    "gpu.persistence_mode", "1 while persistence mode is on (the driver stays loaded without users), else 0."
)
COMPUTE_MODE = _gauge(
    "gpu.compute_mode", "Compute mode of the GPU, by the number of processes that may compute: 0 any, 2 none, 3 one."
)

PCIE_GENERATION = _gauge("gpu.pcie.generation", "Current PCIe generation of the link; it drops when the GPU is idle.")
PCIE_GENERATION_MAX = _gauge("gpu.pcie.generation.max", "Highest PCIe generation that GPU and slot support.")
PCIE_WIDTH = _gauge("gpu.pcie.width", "Current number of PCIe lanes of the link.")
PCIE_WIDTH_MAX = _gauge("gpu.pcie.width.max", "Maximum number of PCIe lanes that GPU and slot support.")
PCIE_IO = _counter("hw.gpu.io", "Bytes over PCIe since the driver was loaded, seen from the GPU.", "By", "direction")
PCIE_RATE = _gauge(
    "gpu.pcie.throughput",
    "Throughput of PCIe, seen from the GPU: mean since the previous sample, or of 20 ms on GPUs before Hopper.",
    "By/s",
    "direction",
)
PCIE_REPLAYS = _counter("gpu.pcie.replays", "PCIe packets retransmitted.")
PCIE_ERRORS = _counter("gpu.pcie.errors", "PCIe errors and recoveries, by kind, as the GPU counts them.", "", "error")

NVLINK_IO = _counter("gpu.nvlink.io", "Bytes of data over all NVLinks, seen from the GPU.", "By", "direction")
NVLINK_RATE = _gauge(
    "gpu.nvlink.throughput", "Throughput of all NVLinks together: mean since the previous sample.", "By/s", "direction"
)
NVLINK_ERRORS = _counter(
    "gpu.nvlink.errors",
    "Errors and recoveries of all NVLinks of the GPU together, by kind. NVLink 4 and older.",
    "",
    "error",
)
LINK_IO = _counter("gpu.nvlink.link.io", "Bytes over one NVLink, seen from the GPU.", "By", "link", "direction")
LINK_ERRORS = _counter("gpu.nvlink.link.errors", "Errors and recoveries of one NVLink, by kind.", "", "link", "error")
LINK_UP = _gauge("gpu.nvlink.link.up", "1 when the NVLink is active, else 0.", "", "link")
LINK_SPEED = _gauge("gpu.nvlink.link.speed", "Speed of one NVLink in one direction.", "By/s", "link")

ERRORS = Metric(
    "hw.errors",
    "ECC errors of the whole GPU, by lifetime: volatile (since the driver was loaded), aggregate (in the GPU's life).",
    Kind.COUNTER,
    "{error}",
    labels=(*HARDWARE, "error_type", "lifetime"),
)
ECC = _counter("gpu.ecc.errors", "ECC errors by location.", "", "error_type", "lifetime", "location")
SRAM_UNITS = _counter(
    "gpu.ecc.sram.errors", "Uncorrected errors of on-chip memory in the GPU's life, by unit.", "", "unit"
)
SRAM_THRESHOLD = _gauge(
    "gpu.ecc.sram.threshold_exceeded", "1 when uncorrected errors of on-chip memory exceed NVIDIA's limit, else 0."
)
ECC_ENABLED = _gauge("gpu.ecc.enabled", "1 while ECC is on, else 0.")
RETIRED = _counter("gpu.memory.retired_pages", "Pages of memory retired (before Ampere), by cause.", "", "cause")
RETIRED_PENDING = _gauge("gpu.memory.retired_pages.pending", "1 while pages wait for a reboot to be retired, else 0.")
REMAPPED = _counter(
    "gpu.memory.remapped_rows", "Memory rows remapped to spare rows, by type of error.", "", "error_type"
)
REMAP_PENDING = _gauge("gpu.memory.row_remap.pending", "1 while rows wait for a reset to be remapped, else 0.")
REMAP_FAILURE = _gauge(
    "gpu.memory.row_remap.failure", "1 when a row could not be remapped (the GPU must be replaced), else 0."
)
ROW_BANKS = _gauge("gpu.memory.row_remap.banks", "Memory banks, by number of spare rows that remain.", "", "spare_rows")
RECOVERY = _gauge(
    "gpu.recovery_action",
    "Action that the driver requests: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain peers, 4 drain and reset, "
    "5 recover IMEX, 6 bus reset, 7 system reboot.",
)
FABRIC_STATE = _gauge(
    "gpu.fabric.state", "Progress of the registration with the fabric: 1 not started, 2 in progress, 3 completed."
)
FABRIC_STATUS = _gauge(
    "gpu.fabric.status", "Result of the registration with the fabric, as an NVML return code: 0 is success."
)
FABRIC_CLIQUE = _gauge(
    "gpu.fabric.clique", "Clique of the GPU in the fabric; 0 without a partition. Absent until the GPU is registered."
)
FABRIC_CLUSTER = _gauge(
    "gpu.fabric.cluster_assigned",
    "1 when the fabric has assigned a cluster UUID to the GPU; 0 when the UUID is all zeros, as within one node. "
    "Absent until the GPU is registered.",
)
FABRIC_INFO = _gauge(
    "gpu.fabric_info",
    "Always 1: membership of the GPU in an NVLink domain of several nodes, by cluster UUID and clique.",
    "",
    "cluster_uuid",
    "clique_id",
)
FABRIC_HEALTH = _gauge("gpu.fabric.condition", "1 while the condition of the fabric holds, else 0.", "", "condition")

GRAPHICS_ACTIVE = _gauge(
    "gpu.graphics.active", "Share of time in which any graphics or compute work was resident.", "1"
)
SM_ACTIVE = _gauge("gpu.sm.active", "Share of time in which an SM had a warp resident, mean of all SMs.", "1")
SM_OCCUPANCY = _gauge("gpu.sm.occupancy", "Resident warps as a share of the maximum of an SM, mean of all SMs.", "1")
TENSOR_ACTIVE = _gauge(
    "gpu.tensor.active", "Share of time in which tensor cores were in use. Activity, not model FLOPs utilisation.", "1"
)
TENSOR_KIND_ACTIVE = _gauge(
    "gpu.tensor.pipe.active", "Share of time in which tensor cores were in use, by kind of operation.", "1", "pipe"
)
DRAM_ACTIVE = _gauge("gpu.dram.active", "Device memory bandwidth in use as a share of the peak.", "1")
INTEGER_ACTIVE = _gauge("gpu.integer.active", "Share of time in which integer pipes were in use.", "1")
FP64_ACTIVE = _gauge("gpu.fp64.active", "Share of time in which FP64 pipes were in use, without tensor cores.", "1")
FP32_ACTIVE = _gauge("gpu.fp32.active", "Share of time in which FP32 pipes were in use, without tensor cores.", "1")
FP16_ACTIVE = _gauge("gpu.fp16.active", "Share of time in which FP16 pipes were in use, without tensor cores.", "1")
SM_CYCLES = _counter("gpu.sm.cycles", "Elapsed cycles of the SMs. Only newer drivers count them.")
PIPE_CYCLES = _counter(
    "gpu.pipe.active_cycles",
    "Cycles in which a pipe was in use; for pipe=sm, in which a warp was resident. Divide its rate by the rate of "
    "gpu_sm_cycles_total.",
    "",
    "pipe",
)

MIG_LABELS = ("mig_uuid", "profile", "gpu_instance", "compute_instance")
MIG_INFO = _gauge("gpu.mig.info", "Always 1: a MIG device of the GPU.", "", *MIG_LABELS)
MIG_MEMORY_USED = _gauge("gpu.mig.memory.usage", "Allocated memory of the MIG device.", "By", *MIG_LABELS)
MIG_MEMORY_LIMIT = _gauge("gpu.mig.memory.limit", "Memory size of the MIG device.", "By", *MIG_LABELS)
MIG_ACTIVE = _gauge(
    "gpu.mig.active",
    "Share of time in which a part of the MIG device's GPU instance was in use, by part, defined like "
    "gpu_PART_active_ratio of a whole GPU; also the SM occupancy.",
    "1",
    *MIG_LABELS,
    "part",
)
VGPU_LICENSED = _gauge("gpu.vgpu.licensed", "1 when the vGPU of this machine is licensed, else 0.")
VGPUS = _gauge("gpu.vgpu.instances", "vGPUs of this GPU that virtual machines on this host use.")

PROCESS_MEMORY = Metric(
    "gpu.process.memory.usage",
    "Device memory of a process according to NVML: its context, modules and allocations. kind: compute, graphics or "
    "mps.",
    Kind.GAUGE,
    "By",
    labels=("kind", "gpu_instance", "compute_instance"),
    process=True,
)
PROCESS_UTILIZATION = Metric(
    "gpu.process.utilization",
    "Share of time in which an engine worked for the process, from NVML's newest sample. Absent with MIG.",
    Kind.GAUGE,
    "1",
    labels=("engine",),
    process=True,
)

PEAK_FLOPS = Metric(
    "gpu.peak.dense.flops",
    "Peak operations per second from the model's data sheet, without sparsity. docs/gpu.md has the sources and an "
    "override.",
    Kind.GAUGE,
    labels=(*GPU, "precision"),
)
PEAK_BANDWIDTH = _gauge(
    "gpu.peak.memory_bandwidth",
    "Peak bandwidth of device memory: bus width times the highest memory clock, twice a cycle.",
    "By/s",
)

SOURCE_STALLED = Metric(
    "accel_exporter.source.stalled",
    "1 while the source does not answer, or while a part of it is not called because it did not answer, else 0. The "
    "last values of the source are then dropped.",
    Kind.GAUGE,
    labels=("source",),
)
RELEASED = Metric(
    "accel_exporter.nvml.released",
    "1 while every GPU handle is closed on request (POST /-/release-gpus), else 0.",
    Kind.GAUGE,
)
CALLS = Metric("accel_exporter.nvml.calls", "NVML calls made.", Kind.COUNTER)
RESTARTS = Metric(
    "accel_exporter.nvml.restarts",
    "NVML child processes that were replaced, because they ended or were abandoned, by reason.",
    Kind.COUNTER,
    labels=("reason",),
)
CHILDREN = Metric(
    "accel_exporter.nvml.children",
    "NVML child processes: the current one, and those that hang in the driver and cannot be killed.",
    Kind.GAUGE,
    labels=("state",),
)
RESIDENT = Metric("accel_exporter.nvml.resident_memory", "Resident memory of the NVML child process.", Kind.GAUGE, "By")
