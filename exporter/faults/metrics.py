"""The metrics of faults, and of the hardware's own counters that they come from."""

from __future__ import annotations

from exporter.model import Kind, Metric

_FAULT = ("category", "component", "signal", "overflow")
_DEVICE = ("pci_bus_id", "kind", "root_port")

FAULTS = Metric(
    "accel.node.fault",
    "Faults since the exporter started, by signal (docs/faults.md lists them), by category (a row of the Llama 3 table "
    "of interruptions), and by the component that failed. 0 where all of them are older.",
    Kind.COUNTER,
    labels=_FAULT,
)
FAULT_LAST = Metric(
    "accel.node.fault.last_timestamp",
    "Unix time of the newest fault of the series, also of one from before the exporter started; for a state that lasts "
    "(an alarm, a dead drive) the time at which the state was last read.",
    Kind.GAUGE,
    "s",
    labels=_FAULT,
)
FAULTS_REPLAYED = Metric(
    "accel.node.fault.replayed",
    "Faults that were there when the exporter started, in the kernel log or as a state that lasts: not in the counter.",
    Kind.GAUGE,
    labels=_FAULT,
)
SOURCE = Metric(
    "accel.node.fault.source_available",
    "1 if this source of faults can be read on this node. 0 means that faults of this source are not seen, not that "
    "there are none.",
    Kind.GAUGE,
    labels=("source",),
)
AER = Metric(
    "accel.node.pci.aer.errors",
    "Errors that a PCIe device reported since the machine started (AER), by type: correctable, nonfatal, "
    "fatal. For GPUs, NICs, NVMe drives and the ports between them and the CPU.",
    Kind.COUNTER,
    labels=(*_DEVICE, "type"),
)
LINK_WIDTH = Metric(
    "accel.node.pci.link.width", "Lanes of the PCIe link to the device now.", Kind.GAUGE, labels=_DEVICE
)
LINK_WIDTH_MOST = Metric(
    "accel.node.pci.link.width_max",
    "Lanes that the device could use; its slot may have fewer.",
    Kind.GAUGE,
    labels=_DEVICE,
)
LINK_SPEED = Metric(
    "accel.node.pci.link.speed",
    "Transfers a second of each lane, in 10^9. GPUs lower it while they are idle.",
    Kind.GAUGE,
    labels=_DEVICE,
)
EDAC = Metric(
    "accel.node.edac.errors",
    "Memory errors since the machine started, as the memory controller's driver counts them: corrected, uncorrected. "
    "dimm is the label of the module where the driver knows it.",
    Kind.COUNTER,
    labels=("controller", "dimm", "type"),
)
ALARM = Metric(
    "accel.node.hwmon.alarm",
    "1 while a sensor of the machine (hwmon) reports a temperature, fan, voltage or power supply out of its limits.",
    Kind.GAUGE,
    labels=("chip", "sensor"),
)
IPMI = Metric(
    "accel.node.ipmi.sensor.state",
    "State of a sensor of the management controller: 0 nominal, 1 warning, 2 critical, as FreeIPMI interprets the "
    "reading. Sensors that do not answer are left out; category is the category of the sensor's faults.",
    Kind.GAUGE,
    labels=("sensor", "type", "category"),
)
NVME_LIVE = Metric(
    "accel.node.nvme.live",
    "1 while the NVMe controller is live, 0 in any other state.",
    Kind.GAUGE,
    labels=("device", "state"),
)
NVME_WARNING = Metric(
    "accel.node.nvme.critical_warning",
    "The NVMe drive's critical warning byte (SMART log): 1 spare low, 2 temperature, 4 reliability degraded, 8 read "
    "only, 16 backup failed, added up.",
    Kind.GAUGE,
    labels=("device",),
)
NVME_USED = Metric(
    "accel.node.nvme.used",
    "Share of the NVMe drive's rated endurance that is used; may exceed 1.",
    Kind.GAUGE,
    "1",
    ("device",),
)
NVME_SPARE = Metric(
    "accel.node.nvme.spare", "Share of the NVMe drive's spare blocks that is left.", Kind.GAUGE, "1", ("device",)
)
NVME_MEDIA = Metric(
    "accel.node.nvme.media.errors",
    "Data integrity errors of the NVMe drive over its life.",
    Kind.COUNTER,
    labels=("device",),
)
BOOT = Metric(
    "accel.node.boot.timestamp",
    "Unix time at which the kernel started; boot_id is the kernel's.",
    Kind.GAUGE,
    "s",
    ("boot_id",),
)
SHUTDOWN = Metric(
    "accel.node.shutdown.timestamp",
    "Unix time for which systemd-logind has a shutdown scheduled; mode is the kind of shutdown, such as reboot.",
    Kind.GAUGE,
    "s",
    ("mode",),
)
CPUS = Metric("accel.node.cpus.online", "Online CPUs.", Kind.GAUGE)
MEMORY = Metric(
    "accel.node.memory.usable",
    "Memory that the kernel can allocate: installed memory without that reserved by firmware and kernel (MemTotal).",
    Kind.GAUGE,
    "By",
)
EXPECTED = Metric(
    "accel.node.devices.expected",
    "Devices that the node should have working, by kind, as --collector.faults.expected gives them.",
    Kind.GAUGE,
    labels=("kind",),
)
SERVICE = Metric(
    "accel.node.service.running",
    "1 while a process of this service of NVIDIA's driver runs on the node, else 0. Absent without the driver, and "
    "where the exporter is not in the host's PID namespace.",
    Kind.GAUGE,
    labels=("service",),
)
BLOCKED = Metric(
    "gpu.processes.blocked",
    "Processes on GPUs, as NVML lists them, with a thread that has not run for a minute or more, waiting in the kernel "
    "where no signal wakes it (state D).",
    Kind.GAUGE,
)
CLOCK_SYNCHRONIZED = Metric(
    "accel.node.clock.synchronized",
    "1 while the kernel considers its clock synchronized (adjtimex: STA_UNSYNC is not set), else 0.",
    Kind.GAUGE,
)
CLOCK_ERROR = Metric(
    "accel.node.clock.max_error",
    "Greatest error that the synchronized clock may have, as the kernel counts it (adjtimex: maxerror).",
    Kind.GAUGE,
    "s",
)
REPORT = Metric(
    "accel.node.report.timestamp",
    "Unix time from which a fault or a maintenance counts that was reported by a file in "
    "--collector.faults.reports; absent when the file is removed.",
    Kind.GAUGE,
    "s",
    ("category", "component"),
)
ACTIVE_TEST = Metric(
    "accel.node.diagnostic.last_pass.timestamp",
    "Unix time at which the last active test of this node's GPUs passed: the modification time of the file given with "
    "--collector.faults.diagnostic-stamp, which the test touches.",
    Kind.GAUGE,
    "s",
)
