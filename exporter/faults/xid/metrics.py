"""Metrics of Xids, SXids and GPUs that left the bus."""

from __future__ import annotations

from exporter.model import Kind, Metric

_GPU = ("gpu", "gpu_uuid", "pci_bus_id")
_XID = (*_GPU, "xid", "action", "category", "unit", "overflow")
_SXID = ("pci_bus_id", "nvswitch", "sxid", "severity", "category", "overflow")
_BUS = (*_GPU, "category", "overflow")

XIDS = Metric(
    "gpu.xid.errors",
    "Xids since the exporter started: lines of the kernel log, and NVML's events that the log does not have. `action` "
    "is the immediate action by NVIDIA's catalog, `category` the kind of fault, `unit` the part of NVLink 5 (Xids 144 "
    "to 150). 0 where all Xids are older. See docs/xid.md.",
    Kind.COUNTER,
    labels=_XID,
)
XID_BURSTS = Metric(
    "gpu.xid.bursts",
    "Groups of the same Xid on the same GPU with 3 minutes of silence between them, since the exporter started.",
    Kind.COUNTER,
    labels=_XID,
)
XIDS_REPLAYED = Metric(
    "gpu.xid.replayed",
    "Xids that the kernel log already held when the exporter started, back to its oldest record: not in the counters.",
    Kind.GAUGE,
    labels=_XID,
)
XID_LAST = Metric(
    "gpu.xid.last_timestamp",
    "Unix time of the newest Xid, also of one from before the exporter started.",
    Kind.GAUGE,
    "s",
    labels=_XID,
)
RECOVERY = Metric(
    "gpu.xid.recovery_action",
    "Recovery that the driver last requested by Xid 154, in the kernel log as far as the log reaches back: 0 nothing, "
    "1 GPU reset, 2 reboot, 3 an end of peer access, 4 GPU reset once the jobs have ended.",
    Kind.GAUGE,
    labels=_GPU,
)
SXIDS = Metric(
    "gpu.sxid.errors",
    "Errors of NVSwitches (SXids) since the exporter started, with the severity that the driver reports.",
    Kind.COUNTER,
    labels=_SXID,
)
SXIDS_REPLAYED = Metric(
    "gpu.sxid.replayed",
    "SXids that the kernel log already held when the exporter started: not in the counter.",
    Kind.GAUGE,
    labels=_SXID,
)
SXID_LAST = Metric(
    "gpu.sxid.last_timestamp",
    "Unix time of the newest SXid, also of one from before the exporter started.",
    Kind.GAUGE,
    "s",
    labels=_SXID,
)
LOSSES = Metric(
    "gpu.bus.losses",
    "Lines in which the driver reports that a GPU has fallen off the bus, since the exporter started, without the "
    "Xid 79 that may come with such a line.",
    Kind.COUNTER,
    labels=_BUS,
)
LOSSES_REPLAYED = Metric(
    "gpu.bus.losses.replayed",
    "Lines about a GPU off the bus that the kernel log already held when the exporter started: not in the counter.",
    Kind.GAUGE,
    labels=_BUS,
)
LOSS_LAST = Metric(
    "gpu.bus.loss.last_timestamp",
    "Unix time at which the driver last reported that a GPU has fallen off the bus, also before the exporter started.",
    Kind.GAUGE,
    "s",
    labels=_BUS,
)
SOURCE = Metric(
    "accel_exporter.xid.source",
    "1 while Xids are read from this source: kmsg (the kernel log; SXids and lost GPUs are only there) or nvml (its "
    "events).",
    Kind.GAUGE,
    labels=("source",),
)
