"""Metrics of what is probed in windows."""

from __future__ import annotations

from exporter.model import Kind, Metric

_OF = ("probe", "symbol", "library")
SAMPLED = Metric(
    "accel_exporter.probe.sampled.ratio",
    "Share of the last minute for which the symbol's calls were probed: 1 while each call is counted; below it counts "
    "of its calls are estimates. Symbols that may be probed in windows only, to stay within --overhead.max-ratio.",
    Kind.GAUGE,
    "1",
    labels=_OF,
)
LEVEL = Metric(
    "accel_exporter.probe.throttle.level",
    "Reduction of probing to stay within --overhead.max-ratio: 0 none, 1 the symbol is probed in windows. A window "
    "covers all processes that use the file, from Linux 6.11 on without those in which launches cost less; the process "
    "with the highest cost for its CPU time decides.",
    Kind.GAUGE,
    labels=_OF,
)
THROTTLED = Metric(
    "accel_exporter.probe.throttles",
    "Times a file's symbols went from all calls to windows, to stay within --overhead.max-ratio.",
    Kind.COUNTER,
    labels=("probe",),
)
USED = Metric(
    "accel_exporter.overhead.budget.used.ratio",
    "Cost of the probes of CUDA, NCCL, RDMA and cuFile in the process for which it is highest, in parts of what "
    "--overhead.max-ratio allows of that process's CPU time, over the last seconds; of processes in which this probe's "
    "symbols cost enough to matter, 0 without one. Above 1 for long: the cost is of symbols that are not probed in "
    "windows.",
    Kind.GAUGE,
    "1",
    labels=("probe",),
)
NODE_USED = Metric(
    "accel_exporter.overhead.node.used.ratio",
    "Cost of the probes of all processes together, in parts of --overhead.max-cores, over the last 10 seconds; as "
    "accel_exporter_overhead_seconds_total. Absent without that bound, and while the cost of a probe is not known. "
    "Above 1 for long: the cost is of symbols that are not probed in windows.",
    Kind.GAUGE,
    "1",
)
