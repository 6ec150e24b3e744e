"""The exporter's own metrics about its probes."""

from __future__ import annotations

from exporter.model import Kind, Metric

ATTACHED = Metric(
    "accel_exporter.probe.attached",
    "1 if every probe of the symbol is attached in this library (in windows included), else 0; the landing page has "
    "the reason. A hit is cheap with placement=emulated, and costs a second trap with placement=stepped. Copies of a "
    "library, equal in build id and functions, are one series, under the path of the first; files of root are "
    "separate from files of others. A long path is cut; libraries beyond 32 are together in library=(others).",
    Kind.GAUGE,
    labels=("probe", "symbol", "library", "placement"),
)
HITS = Metric(
    "accel_exporter.probe.hits",
    "Calls of the symbol seen by the probe.",
    Kind.COUNTER,
    labels=("probe", "symbol"),
)
RETURNS_SKIPPED = Metric(
    "accel_exporter.probe.returns.skipped",
    "Calls on a higher stack inside another call, as by a signal handler on its sigaltstack. A return probe would "
    "kill the process there, so values that depend on the result (bytes, frees, waits, errors) are not counted.",
    Kind.COUNTER,
    labels=("probe",),
)
RUN = Metric(
    "accel_exporter.probe.run",
    "Time spent in the probe's BPF programs, measured by the kernel. Only while the kernel's BPF statistics are on.",
    Kind.COUNTER,
    unit="s",
    labels=("probe",),
)
MISSING = Metric(
    "accel_exporter.probe.symbols.missing",
    "Symbols of the probe that are absent from this library; other versions of the library have them.",
    Kind.GAUGE,
    labels=("probe", "library"),
)
UNCOVERED = Metric(
    "accel_exporter.probe.symbols.uncovered",
    "Functions of this library that should probably be probed and are not. Calls of them are not counted.",
    Kind.GAUGE,
    labels=("probe", "library"),
)
OVERHEAD = Metric(
    "accel_exporter.overhead",
    "Time that the probes took from the observed threads, estimated: calls times the cost of their traps and "
    "programs, as measured without load on this node once a library is probed. For cuFile, and for RDMA's polls, "
    "extended and control calls, with the cost of traps and small programs. Where libraries differ in placement, "
    "calls count at the cost of the most expensive one probed by then. Before Linux 6.12 hits on many processors at "
    "once wait for each other; this time is not included.",
    Kind.COUNTER,
    unit="s",
    labels=("probe",),
)
