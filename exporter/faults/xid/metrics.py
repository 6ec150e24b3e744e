"""Metrics of Xids, SXids and GPUs that left the bus."""

from __future__ import annotations

from exporter.model import Kind, Metric

_GPU = ("gpu", "gpu_uuid", "pci_bus_id")
_XID = (*_GPU, "xid", "action", "category", "unit", "overflow")
_SXID = ("pci_bus_id", "nvswitch", "sxid", "severity", "category", "overflow")
_BUS = (*_GPU, "category", "overflow")

XIDS = Metric(
    "gpu.xid.errors",
    "Xids since the exporter started: lines of the kernel log, and NVML's events that are not in the log. `action` is "
    "the immediate action in NVIDIA's catalog, `category` the kind of fault, `unit` the part of NVLink 5 (Xids 144 to "
    "150). 0 where all Xids are older. See docs/xid.md.",
    Kind.COUNTER,
    labels=_XID,
)
XID_BURSTS = Metric(
    "gpu.xid.bursts",
    "Groups of one Xid on one GPU, separated by 3 minutes of silence, since the exporter started.",
    Kind.COUNTER,
    labels=_XID,
)
XIDS_REPLAYED = Metric(
    "gpu.xid.replayed",
    "Xids that were in the kernel log when the exporter started, back to its oldest record. Not included in the "
    "counters.",
    Kind.GAUGE,
    labels=_XID,
)
XID_LAST = Metric(
    "gpu.xid.last_timestamp",
    "Unix time of the newest Xid, Xids from before the exporter's start included.",
    Kind.GAUGE,
    "s",
    labels=_XID,
)
RECOVERY = Metric(
    "gpu.xid.recovery_action",
    "Recovery that the driver last requested by Xid 154, as far as the kernel log reaches back: 0 nothing, 1 GPU "
    "reset, 2 reboot, 3 an end of peer access, 4 GPU reset once the jobs have ended.",
    Kind.GAUGE,
    labels=_GPU,
)
SXIDS = Metric(
    "gpu.sxid.errors",
    "Errors of NVSwitches (SXids) since the exporter started, with the severity from the driver.",
    Kind.COUNTER,
    labels=_SXID,
)
SXIDS_REPLAYED = Metric(
    "gpu.sxid.replayed",
    "SXids that were in the kernel log when the exporter started. Not included in the counter.",
    Kind.GAUGE,
    labels=_SXID,
)
SXID_LAST = Metric(
    "gpu.sxid.last_timestamp",
    "Unix time of the newest SXid, SXids from before the exporter's start included.",
    Kind.GAUGE,
    "s",
    labels=_SXID,
)
LOSSES = Metric(
    "gpu.bus.losses",
    "Lines of the kernel log in which the driver reports that a GPU has fallen off the bus, since the exporter "
    "started. Without the Xid 79 that may come with such a line.",
    Kind.COUNTER,
    labels=_BUS,
)
LOSSES_REPLAYED = Metric(
    "gpu.bus.losses.replayed",
    "Lines about a GPU off the bus that were in the kernel log when the exporter started. Not included in the counter.",
    Kind.GAUGE,
    labels=_BUS,
)
LOSS_LAST = Metric(
    "gpu.bus.loss.last_timestamp",
    "Unix time of the driver's newest report that a GPU has fallen off the bus, reports from before the exporter's "
    "start included.",
    Kind.GAUGE,
    "s",
    labels=_BUS,
)
SOURCE = Metric(
    "accel_exporter.xid.source",
    "1 while Xids are read from this source, else 0: kmsg (the kernel log; SXids and lost GPUs are only there) or "
    "nvml (NVML's events).",
    Kind.GAUGE,
    labels=("source",),
)
