"""State and counts of the search for libraries, for pages and as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from exporter.bpf.events import EVENTS_LOST
from exporter.model import Distribution, Kind, Metric, Sample

LATENCY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

LIBRARIES = Metric(
    "accel_exporter.libraries.attached",
    "Number of different files of this name with attached probes.",
    Kind.GAUGE,
    labels=("library",),
)
PROCESSES = Metric(
    "accel_exporter.library.processes",
    "Running processes that have an attached library of this name mapped.",
    Kind.GAUGE,
    labels=("library",),
)
DISCOVERY = Metric(
    "accel_exporter.discovery",
    "Time from a process's mapping of a library until the process was known and the library had its probes. Not "
    "observed for processes that ran before the exporter or were found by a scan of all processes.",
    Kind.HISTOGRAM,
    "s",
)
FOUND_LATE = Metric(
    "accel_exporter.discovery.late",
    "Processes with an attached library that a scan of all processes found before any event of them arrived.",
    Kind.COUNTER,
)
EXAMINED = Metric(
    "accel_exporter.files.examined",
    "Mapped executable files that were searched for functions to probe.",
    Kind.COUNTER,
)
UNREADABLE = Metric(
    "accel_exporter.files.unreadable",
    "Mapped executable files that could not be read for the search of functions.",
    Kind.COUNTER,
)
REFUSED = Metric(
    "accel_exporter.libraries.refused",
    "Libraries that are not observed, by reason: limit (too many are in use; also a library that lost its place to a "
    "user with fewer libraries), share (its user has too many libraries in use), descriptors (the limit of open files "
    "is reached), error (attaching failed). Each attempt counts.",
    Kind.COUNTER,
    labels=("reason",),
)
UNSEARCHED = Metric(
    "accel_exporter.files.unsearched",
    "Mapped executable files that were not searched for functions to probe, by reason: too_long (the search would "
    "take more time than for any library), stuck (the file system does not respond), share (files of the same user "
    "have taken so much time that this file waits). Each attempt counts.",
    Kind.COUNTER,
    labels=("reason",),
)
ENDED_FOLDED = Metric(
    "accel_exporter.ended_processes.folded",
    "Ended processes that left the page before their five minutes were over. A collector keeps 1,024: the oldest of "
    "the workload with the most of them leaves first; an ended process with the pid of a running one leaves at once. "
    "Their counters and histograms, except NCCL's arrival lags, are added to series labelled overflow=true without "
    "pid. These stay until five minutes after the last such process, as far as the collector's series limit has room.",
    Kind.COUNTER,
    labels=("collector",),
)
ABANDONED = Metric(
    "accel_exporter.file_readers.abandoned",
    "Processes of the exporter that wait for a file system without an answer and cannot be ended.",
    Kind.GAUGE,
)
UNLISTED = Metric(
    "accel_exporter.processes.unlisted",
    "Processes that cannot be searched for libraries now, because the memory map of the process, or of other "
    "processes of its user, is locked. Their calls are not observed, except calls into files that are observed "
    "already.",
    Kind.GAUGE,
)
SOURCE = Metric(
    "accel_exporter.discovery.source_info",
    "Always 1: method of listing mappings. lister=iterator (BPF, real inodes) or proc (no BTF; on overlays a guess).",
    Kind.GAUGE,
    labels=("lister",),
)

SOURCE_AGE = Metric(
    "accel_exporter.source.age",
    "Time since the last complete reading of the source; for processes, since the last scan of all of them.",
    Kind.GAUGE,
    "s",
    labels=("source",),
)


@dataclass(frozen=True, slots=True)
class SearchStatus:
    """One moment of the search. Counts are since the start."""

    lister: str = ""
    """Source of mappings: iterator or proc; empty before the start."""
    libraries: tuple[tuple[str, int], ...] = ()
    """Path and number of processes of each attached library."""
    latencies: Distribution = Distribution(LATENCY_BOUNDS, (0,) * (len(LATENCY_BOUNDS) + 1), 0.0)
    examined: int = 0
    unreadable: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    failed: int = 0
    unsearched: Mapping[str, int] = field(default_factory=dict)
    abandoned: int = 0
    unlisted: int = 0
    lost: int = 0
    late: int = 0

    def samples(self) -> Iterable[Sample]:
        files: Counter[str] = Counter()
        processes: Counter[str] = Counter()
        for path, users in self.libraries:
            files[PurePath(path).name] += 1
            processes[PurePath(path).name] += users
        yield from (LIBRARIES.sample(count, {"library": name}) for name, count in files.items())
        yield from (PROCESSES.sample(count, {"library": name}) for name, count in processes.items())
        yield DISCOVERY.sample(self.latencies)
        yield FOUND_LATE.sample(self.late)
        yield EXAMINED.sample(self.examined)
        yield UNREADABLE.sample(self.unreadable)
        for reason in ("limit", "share", "descriptors"):
            yield REFUSED.sample(self.refused.get(reason, 0), {"reason": reason})
        yield REFUSED.sample(self.failed, {"reason": "error"})
        for reason in ("too_long", "stuck", "share"):
            yield UNSEARCHED.sample(self.unsearched.get(reason, 0), {"reason": reason})
        yield ABANDONED.sample(self.abandoned)
        yield EVENTS_LOST.sample(self.lost, {"stream": "process"})
        if self.lister:
            yield UNLISTED.sample(self.unlisted)
            yield SOURCE.sample(1, {"lister": self.lister})
