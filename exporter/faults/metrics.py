"""The metrics of faults, and of the hardware's own counters that they come from."""

from __future__ import annotations

from exporter.model import Kind, Metric

_FAULT = ("category", "component", "signal", "overflow")
_DEVICE = ("pci_bus_id", "kind", "root_port")

FAULTS = Metric(
    "accel.node.fault",
    "Faults since the exporter started, by signal (docs/faults.md lists them), category (a row of the Llama 3 table "
    "of interruptions) and failed component. 0 where all faults are older.",
    Kind.COUNTER,
    labels=_FAULT,
)
FAULT_LAST = Metric(
    "accel.node.fault.last_timestamp",
    "Unix time of the newest fault of the series, faults from before the exporter's start included. For a state that "
    "lasts (an alarm, a dead drive): the time of the last reading of the state.",
    Kind.GAUGE,
    "s",
    labels=_FAULT,
)
FAULTS_REPLAYED = Metric(
    "accel.node.fault.replayed",
    "Faults that existed when the exporter started, in the kernel log or as a state that lasts. Not included in the "
    "counter.",
    Kind.GAUGE,
    labels=_FAULT,
)
SOURCE = Metric(
    "accel.node.fault.source_available",
    "1 if this source of faults can be read on this node, else 0. At 0 faults of this source are not seen, which does "
    "not mean that there are none.",
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
    "accel.node.pci.link.width", "Current number of lanes of the PCIe link to the device.", Kind.GAUGE, labels=_DEVICE
)
LINK_WIDTH_MOST = Metric(
    "accel.node.pci.link.width_max",
    "Maximum number of PCIe lanes that the device can use; its slot may have fewer.",
    Kind.GAUGE,
    labels=_DEVICE,
)
LINK_SPEED = Metric(
    "accel.node.pci.link.speed",
    "Speed of the PCIe link to the device, in 10^9 transfers a second for each lane. GPUs lower it while they are "
    "idle.",
    Kind.GAUGE,
    labels=_DEVICE,
)
EDAC = Metric(
    "accel.node.edac.errors",
    "Memory errors since the machine started, counted by the memory controller's driver: corrected, uncorrected. dimm "
    "is the module's label, where the driver knows it.",
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
    "reading. Sensors that do not answer are absent; category is the category of the sensor's faults.",
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
    "Critical warning byte of the NVMe drive's SMART log, a sum of 1 spare low, 2 temperature, 4 reliability "
    "degraded, 8 read only, 16 backup failed.",
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
    "accel.node.nvme.spare", "Share of the NVMe drive's spare blocks that remains.", Kind.GAUGE, "1", ("device",)
)
NVME_MEDIA = Metric(
    "accel.node.nvme.media.errors",
    "Data integrity errors of the NVMe drive over its life.",
    Kind.COUNTER,
    labels=("device",),
)
BOOT = Metric(
    "accel.node.boot.timestamp",
    "Unix time at which the kernel started; boot_id is the kernel's identifier of this boot.",
    Kind.GAUGE,
    "s",
    ("boot_id",),
)
SHUTDOWN = Metric(
    "accel.node.shutdown.timestamp",
    "Unix time of the shutdown that systemd-logind has scheduled; mode is its kind, such as reboot.",
    Kind.GAUGE,
    "s",
    ("mode",),
)
CPUS = Metric("accel.node.cpus.online", "Online CPUs.", Kind.GAUGE)
MEMORY = Metric(
    "accel.node.memory.usable",
    "Memory that the kernel can allocate (MemTotal): installed memory, minus memory that firmware and kernel reserve.",
    Kind.GAUGE,
    "By",
)
EXPECTED = Metric(
    "accel.node.devices.expected",
    "Devices that the node should have working, by kind, from --collector.faults.expected.",
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
    "Processes on GPUs, as listed by NVML, with a thread that has waited in the kernel for a minute or more in "
    "uninterruptible sleep (state D: no signal wakes it).",
    Kind.GAUGE,
)
CLOCK_SYNCHRONIZED = Metric(
    "accel.node.clock.synchronized",
    "1 while the kernel considers its clock synchronized (adjtimex: STA_UNSYNC is not set), else 0.",
    Kind.GAUGE,
)
CLOCK_ERROR = Metric(
    "accel.node.clock.max_error",
    "Maximum error of the synchronized clock, according to the kernel (adjtimex: maxerror).",
    Kind.GAUGE,
    "s",
)
REPORT = Metric(
    "accel.node.report.timestamp",
    "Unix time from which a fault or a maintenance counts that a file in --collector.faults.reports reports; absent "
    "when the file is removed.",
    Kind.GAUGE,
    "s",
    ("category", "component"),
)
ACTIVE_TEST = Metric(
    "accel.node.diagnostic.last_pass.timestamp",
    "Unix time at which the last active test of this node's GPUs passed: the modification time of the file "
    "--collector.faults.diagnostic-stamp, which the test touches.",
    Kind.GAUGE,
    "s",
)
