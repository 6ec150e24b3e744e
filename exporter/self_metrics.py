"""The exporter's metrics about itself: its build and its process."""

from __future__ import annotations

import resource

import psutil

from exporter.model import Kind, Metric, Sample
from exporter.version import Build

BUILD_INFO = Metric(
    "accel_exporter.build_info",
    "Always 1: version and revision of the exporter, its Python and its platform.",
    Kind.GAUGE,
    labels=("version", "revision", "python_version", "platform"),
)
# The process_* names are those of every Prometheus client library, with their meaning.
CPU = Metric("process.cpu", "User and system CPU time of the exporter's process.", Kind.COUNTER, "s")
RESIDENT = Metric("process.resident_memory", "Resident memory of the exporter's process.", Kind.GAUGE, "By")
VIRTUAL = Metric("process.virtual_memory", "Virtual memory of the exporter's process.", Kind.GAUGE, "By")
OPEN_FDS = Metric("process.open_fds", "Open file descriptors of the exporter's process.", Kind.GAUGE)
MAX_FDS = Metric("process.max_fds", "Maximum number of open file descriptors of the exporter's process.", Kind.GAUGE)
THREADS = Metric("process.threads", "Threads of the exporter's process.", Kind.GAUGE)
START_TIME = Metric("process.start_time", "Unix time at which the exporter's process started.", Kind.GAUGE, "s")


def build_info(build: Build) -> list[Sample]:
    """Return the build_info sample, without an unknown revision."""
    labels = {
        "version": build.version,
        "revision": "" if build.revision == "unknown" else build.revision,
        "python_version": build.python,
        "platform": build.platform,
    }
    return [BUILD_INFO.sample(1, labels)]


def process() -> list[Sample]:
    """Return the process_* samples of this process."""
    me = psutil.Process()
    with me.oneshot():
        cpu, memory = me.cpu_times(), me.memory_info()
        return [
            CPU.sample(cpu.user + cpu.system),
            RESIDENT.sample(memory.rss),
            VIRTUAL.sample(memory.vms),
            OPEN_FDS.sample(me.num_fds()),
            MAX_FDS.sample(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            THREADS.sample(me.num_threads()),
            START_TIME.sample(me.create_time()),
        ]
