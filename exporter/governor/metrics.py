"""Metrics of what is probed in windows."""

from __future__ import annotations

from exporter.model import Kind, Metric

_OF = ("probe", "symbol", "library")
SAMPLED = Metric(
    "accel_exporter.probe.sampled.ratio",
    "Share of the last minute for which the symbol's calls were probed: at 1 each call is counted, below 1 counts of "
    "its calls are estimates. Only for symbols that may be probed in windows, to stay within --overhead.max-ratio.",
    Kind.GAUGE,
    "1",
    labels=_OF,
)
LEVEL = Metric(
    "accel_exporter.probe.throttle.level",
    "Reduction of probing to stay within --overhead.max-ratio: 0 none, 1 the symbol is probed in windows. A window "
    "covers all processes that use the file; from Linux 6.11 on, without processes in which the calls cost less. The "
    "process with the highest cost for its CPU time decides.",
    Kind.GAUGE,
    labels=_OF,
)
UNCOUNTED = Metric(
    "accel_exporter.probe.uncounted.processes",
    "Processes with unknown counts at present: their counters of calls that are probed in windows are absent, as the "
    "windows hold too little to estimate them, or what CUDA copies, waits and allocations or NCCL collectives did, "
    "which is not estimated.",
    Kind.GAUGE,
    labels=("probe",),
)
THROTTLED = Metric(
    "accel_exporter.probe.throttles",
    "Times that a file's symbols changed from probing all calls to probing in windows, to stay within "
    "--overhead.max-ratio.",
    Kind.COUNTER,
    labels=("probe",),
)
USED = Metric(
    "accel_exporter.overhead.budget.used.ratio",
    "Overhead of the probes of CUDA, NCCL, RDMA and cuFile in the process with the highest overhead, as a share of "
    "the CPU time that --overhead.max-ratio allows there, over the last seconds. Only processes in which this probe's "
    "symbols cost enough to matter; 0 without one. A value above 1 for long comes from symbols that are not probed in "
    "windows.",
    Kind.GAUGE,
    "1",
    labels=("probe",),
)
NODE_USED = Metric(
    "accel_exporter.overhead.node.used.ratio",
    "Overhead of the probes in all processes together, as a share of --overhead.max-cores, over the last 10 seconds; "
    "estimated like accel_exporter_overhead_seconds_total. Absent without this limit, and while the cost of a probe "
    "is unknown. A value above 1 for long comes from symbols that are not probed in windows.",
    Kind.GAUGE,
    "1",
)
