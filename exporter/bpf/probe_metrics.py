"""The exporter's own metrics about its probes."""

from __future__ import annotations

from exporter.model import Kind, Metric

ATTACHED = Metric(
    "accel_exporter.probe.attached",
    "1 if every probe of the symbol is attached in this library, also in windows, else 0; the landing page has why. "
    "A hit costs little at placement=emulated, and a second trap at placement=stepped. Copies of a library, by its "
    "build id and functions, are one, under the path of the first; files of root apart from those of others. A long "
    "path is cut, and beyond 32 libraries the rest is (others).",
    Kind.GAUGE,
    labels=("probe", "symbol", "library", "placement"),
)
HITS = Metric(
    "accel_exporter.probe.hits",
    "Calls of the symbol that the probe saw.",
    Kind.COUNTER,
    labels=("probe", "symbol"),
)
RETURNS_SKIPPED = Metric(
    "accel_exporter.probe.returns.skipped",
    "Calls made on a higher stack inside another call, as by a signal handler on its sigaltstack: to probe their "
    "returns would kill the process, so what depends on their result (bytes, frees, waits, errors) is not counted.",
    Kind.COUNTER,
    labels=("probe",),
)
RUN = Metric(
    "accel_exporter.probe.run",
    "Time spent in the probe's BPF programs, as the kernel measured it; only while its BPF statistics are switched on.",
    Kind.COUNTER,
    unit="s",
    labels=("probe",),
)
MISSING = Metric(
    "accel_exporter.probe.symbols.missing",
    "Symbols of the probe that this library lacks; other versions of it have them.",
    Kind.GAUGE,
    labels=("probe", "library"),
)
UNCOVERED = Metric(
    "accel_exporter.probe.symbols.uncovered",
    "Functions of this library that look as if they should be probed and are not: calls of them are not counted.",
    Kind.GAUGE,
    labels=("probe", "library"),
)
OVERHEAD = Metric(
    "accel_exporter.overhead",
    "Time the probes took from the observed threads: calls times the cost of their traps and programs, as "
    "measured on this node once a library is probed, undisturbed; of cuFile, and of RDMA's polls, extended and control "
    "calls, that of traps and small programs. "
    "Where libraries differ in placement, calls count at the cost of the most expensive one probed by then. Before "
    "Linux 6.12 hits on many processors at once wait for each other, which is not included.",
    Kind.COUNTER,
    unit="s",
    labels=("probe",),
)
