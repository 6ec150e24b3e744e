"""Metrics about the custom probes; the metrics that they measure are declared in their YAML files."""

from __future__ import annotations

from exporter.model import Kind, Metric

UP = Metric(
    "accel_exporter.custom.up",
    "1 while the custom probe is compiled, loaded and read, else 0; the landing page has the reason.",
    Kind.GAUGE,
    labels=("probe",),
)
STARTS = Metric(
    "accel_exporter.custom.restarts",
    "Replacements of the process that runs a custom probe, by reason: refused (the probe does not compile or load, or "
    "does not match its YAML file), failed (the process could not be started), crashed (a signal ended it), ended (it "
    "ended by itself), stalled (it sent nothing for too long).",
    Kind.COUNTER,
    labels=("probe", "reason"),
)
RESIDENT = Metric(
    "accel_exporter.custom.memory.resident",
    "Memory of the process that runs a custom probe, its compiler included.",
    Kind.GAUGE,
    unit="By",
    labels=("probe",),
)
PROCESSOR = Metric(
    "accel_exporter.custom.cpu",
    "Processor time of the process that runs a custom probe, compiling included. The time that its BPF programs take "
    "from other processes is accel_exporter_probe_run_seconds_total.",
    Kind.COUNTER,
    unit="s",
    labels=("probe",),
)
RUNS = Metric(
    "accel_exporter.custom.runs",
    "Runs of a program of a custom probe. Only while the kernel's BPF statistics are on.",
    Kind.COUNTER,
    labels=("probe", "program"),
)
TRACEPOINT = Metric(
    "accel_exporter.custom.tracepoint.attached",
    "1 if the custom probe is attached to this tracepoint of the kernel, else 0; the landing page has the reason.",
    Kind.GAUGE,
    labels=("probe", "tracepoint"),
)
ENTRIES = Metric(
    "accel_exporter.custom.map.entries",
    "Keys in a map of a custom probe at the last reading. A full hash map counts nothing for new keys.",
    Kind.GAUGE,
    labels=("probe", "map"),
)
LIMIT = Metric(
    "accel_exporter.custom.map.max_entries",
    "Maximum number of keys of the map. Absent for LRU maps, which evict old keys.",
    Kind.GAUGE,
    labels=("probe", "map"),
)
UNREAD = Metric(
    "accel_exporter.custom.map.unread",
    "Keys of the map beyond the 10,000 that are read, at the last reading.",
    Kind.GAUGE,
    labels=("probe", "map"),
)
LOST = Metric(
    "accel_exporter.custom.lost",
    "Items that the custom probe's program could not keep, as counted by the map that its YAML file names under "
    "`lost`.",
    Kind.COUNTER,
    labels=("probe",),
)
LIMITED = Metric(
    "accel_exporter.custom.records.limited",
    "Records of a custom probe's buffers that became no spans, because they were beyond --custom.spans-per-second.",
    Kind.COUNTER,
    labels=("probe",),
)
