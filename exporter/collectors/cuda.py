"""CUDA jobs: launches, memory, copies, waits and errors by process, from probes on the driver."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from exporter.bpf import object_path, process_links
from exporter.bpf.ends import forget
from exporter.bpf.libbpf import Object
from exporter.bpf.library import Library
from exporter.bpf.passing import Passing, PassingProcesses
from exporter.bpf.process_links import LinkedProcesses
from exporter.bpf.process_user import user_of
from exporter.bpf.rehearsal import Rehearsal, small_copy
from exporter.cuda import metrics
from exporter.cuda.activity import Activity, Counted
from exporter.cuda.flags import FLAGS as FLAGS
from exporter.cuda.flags import live_rows
from exporter.cuda.functions import FUNCTIONS, coverable, layer, scene
from exporter.cuda.interposers import passes_on
from exporter.cuda.launches import CudaLaunches
from exporter.cuda.names import Names
from exporter.cuda.records import ContextEnd, CudaSpan
from exporter.cuda.samples import function, held, samples
from exporter.cuda.spans import Exemplars, span
from exporter.governor.subject import Subject
from exporter.ledger import Process
from exporter.model import Labels, Metric, Sample
from exporter.node import Node
from exporter.probe_collector import ProbeCollector, Receivers, Table
from exporter.push import SPANS_DROPPED
from exporter.resolve.process_gpus import UNKNOWN_DEVICE, ProcessGpus
from exporter.stacks import metrics as stack_metrics

if TYPE_CHECKING:
    from exporter.cuda.profiling import CudaProfiling

METRICS: tuple[Metric, ...] = (
    *(value for value in vars(metrics).values() if isinstance(value, Metric)),
    *stack_metrics.METRICS,
)
NVML_SECONDS = 3.0
STACK_IDS, ALLOCATION_BYTES = 16_384, 1 << 20
"""Threads that allocate, and bytes of a ring buffer, while profiles are on."""


def create(node: Node) -> Cuda:
    return Cuda(node)


class Cuda(ProbeCollector[Activity]):
    """The probes of bpf/cuda/cuda.bpf.c."""

    name, api, gather, look = "cuda", "CUDA", 0.02, 0.02

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._unseen: set[int] = set()
        self._joined: dict[int, set[str]] = {}
        """The libraries of a process that may have been called before they were attached to."""
        self._exemplars = Exemplars()
        self.profiling: CudaProfiling | None = None

    def load(self) -> None:
        """Start as any probe; waits NVML_SECONDS at most for the memory of the node's GPUs."""
        self._live_rows = self.node.settings["live-allocations"] or live_rows(self.node.gpus.memory(NVML_SECONDS))
        super().load()

    def start(self) -> None:
        super().start()
        if self.profiling:
            self.profiling.start()

    def _prepare(self) -> None:
        self._names = Names.of(self.object.types)
        self._on_gpus = ProcessGpus(self.node.gpus, self.node.proc)
        self._counted = Counted(self.object.maps, self._drop, self._gpus_of)
        every_error = self.node.settings["all-errors"]
        if self._profiles:
            from exporter.cuda import profiling

            self.profiling = profiling.create(
                self.node, self.object, self._bounded, self._labels_of, self._read_allocations
            )
        self._hooks = {
            it.name: it.hooks(self.object.types, api, every_error, it.layer == self._bounded)
            for api, it in enumerate(FUNCTIONS, 1)
        }
        self._rehearsal = Rehearsal(
            self._copy, self._hooks, {name: scene(it) for name, it in zip(self._hooks, FUNCTIONS, strict=True)}
        )

    def _table(self) -> Table:
        layers = self.node.settings["layers"]
        return {it.name: self._hooks[it.name] for it in FUNCTIONS if layers in (it.layer, "both")}

    def _options(self) -> Mapping[str, Any]:
        maps = self.object.maps
        return {
            "coverable": coverable(self.node.settings["layers"]),
            "family": layer,
            "rehearsal": self._rehearsal,
            "returning": self.object.maps["returning"],
            "withdrawn": self._lose_sight,
            "passing": Passing(
                passes_on,
                partial(user_of, self.node.proc),
                PassingProcesses(maps["passing"], maps["passing_processes"]),
                self._lose_counted,
            ),
            "linked": LinkedProcesses(maps["linked"], maps["linked_processes"]) if process_links.supported() else None,
        }

    def _receivers(self) -> Receivers:
        profiled = {"allocations": self.profiling.allocated} if self.profiling else {}
        return {"cuda_spans": self._receive, "context_ends": self._sweep, **profiled}

    def _read_allocations(self) -> None:
        self._events.flush(self.object.maps["allocations"])

    @property
    def _profiles(self) -> bool:
        return self.node.stack_profiles.wanted

    def _labels_of(self, pid: int, device: int) -> Labels:
        return {**self.node.processes.named(pid, self.node.workloads.of), **self._on_gpus.last(pid, device)}

    @property
    def _bounded(self) -> str:
        """The API layer of which launches may be probed in windows: with both, the runtime's stay exact."""
        return "runtime" if self.node.settings["layers"] == "runtime" else "driver"

    def _subject(self) -> Subject:
        self._launches = CudaLaunches(self.probes, self.object.maps, self._bounded)
        return self._launches

    def _read(self) -> Mapping[int, Activity]:
        seen = self._counted.read()
        if self.watch:
            for pid, activity in seen.items():
                self._launches.add(activity, self.watch.missed(pid))
        return seen

    def _take(self, pids: Collection[int]) -> Mapping[int, Activity]:
        taken = self._counted.take(pids)
        if self.watch:
            for pid in pids:
                activity = taken.get(pid, Activity())
                self._launches.add(activity, self.watch.finish(pid, self._launches.last(activity)))
        return taken

    def _samples(self) -> Iterator[Sample]:
        self._on_gpus.refresh()
        self._events.flush(self.object.maps["context_ends"])  # what these contexts had allocated is in no row below
        processes = self.ledger.processes()
        covered = {pid for pid, _ in self.object.maps["covered"].items()}  # after: one that is replaced is not in both
        missed = self._missed()
        for process in processes:
            exemplars = partial(self._exemplars.of, process.pid)
            unseen = process.pid in self._unseen | missed and not process.ended
            yield from samples(process, self._names, self.node.clock.wall_ns, exemplars, unseen)
            if process.replaced and process.pid in self.ledger and process.pid not in covered:
                # All calls of the program that runs now are among those of the one before, so it has no other series.
                yield metrics.SEEN_FROM_START.sample(0, self.node.processes.labels(process.pid))
            if not process.ended:
                devices = process.activity.devices.keys() - {UNKNOWN_DEVICE}
                only = process.activity.gpus.get(0, {}) if len(devices) <= 1 else {}
                seen = process.pid in covered and (not self.watch or self.watch.whole(process.pid))
                yield metrics.SEEN_FROM_START.sample(int(seen), {**process.labels, **only})
            if not process.ended and process.pid in covered:
                yield from self._unattributed(process)

    def _missed(self) -> set[int]:
        """Return the processes with calls on memory for which the table of calls in flight had no room."""
        if not self.object.globals()["memory_missed"]:
            return set()
        return {pid for pid, it in self.object.maps["processes"].items() if it.missed}

    def _samples_of(self, process: Process[Activity]) -> Iterator[Sample]:
        return samples(process, self._names, self.node.clock.wall_ns, lambda _: {})

    def _unattributed(self, process: Process[Activity]) -> Iterator[Sample]:
        for place, reported in self._on_gpus.memory(process.pid).items():
            if reported is None or place.labels not in process.activity.gpus.values():
                continue
            seen = held(process.activity, place.labels, self._names)
            if seen is not None and reported >= seen:  # less is memory that NVML has not seen yet, or does not count
                yield metrics.UNATTRIBUTED.sample(reported - seen, {**process.labels, **place.labels})

    def _gpus_of(self, pid: int, activity: Activity) -> Mapping[int, Labels]:
        """Contexts older than the probes may be on any GPU: then what came first is not known."""
        first = activity.first
        if first is not None and self.object.maps["covered"].get(pid) is None:
            first = None
        return self._on_gpus.labels(pid, activity.used, first)

    def close(self) -> None:
        if self.profiling:
            self.profiling.close()
        self._rehearsal.close()
        super().close()

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        probed = self.probes.symbols.intersection(library.functions)
        sees_memory = any(layer(name) == "driver" for name in probed) and self.returns
        try:
            if sees_memory:
                self._cover(pid, library, from_first_call)
        finally:  # last: a process that is known is known whole
            super().process_started(pid, library, from_first_call)

    def _cover(self, pid: int, library: Library, from_first_call: bool) -> None:
        """Take note whether all calls of a process are seen: of each library, but those that only pass calls on."""
        if not from_first_call:
            self._joined.setdefault(pid, set()).add(library.path)
        if pid in self._unseen or self._joined.get(pid, set()) - self.probes.passed_by(pid):
            self.object.maps["covered"].take([pid])
        elif from_first_call:
            self.object.maps["covered"].set(pid, 1)

    def _drop(self, pids: Collection[int]) -> None:
        """Remove what the kernel keeps of processes besides their counts. First that all their calls were seen: a copy
        of the program that runs now, of memory in a dropped range, is of an unknown kind.
        """
        self.object.maps["covered"].take(pids)
        forget(self.object, pids)

    def _forget(self, pids: Collection[int]) -> None:
        self._unseen.difference_update(pids)
        for pid in pids:
            self._joined.pop(pid, None)
        self._exemplars.forget(pids)
        for pid in pids:
            self._on_gpus.forget(pid)

    def _sweep(self, end: ContextEnd) -> None:
        self.object.programs["sweep"].run(struct.pack("=3Q", end.tgid, end.context, end.before_ns))

    def _lose_sight(self, pids: Collection[int]) -> None:
        """Mark processes with calls that are not seen for a while: their allocated memory is unknown from then on."""
        self.object.maps["covered"].take(pids)
        self._unseen.update(pids)

    def _lose_counted(self, pids: Collection[int]) -> None:
        """Do the same for those with counts."""
        self._lose_sight([pid for pid in pids if self.object.maps["processes"].get(pid) is not None])

    def _hits(self) -> Mapping[str, int]:
        return {function(api).name: calls for api, calls in self._counted.hits().items()}

    def _losses(self) -> Iterator[Sample]:
        yield from super()._losses()
        counted = self.object.globals()
        yield metrics.COPIES_UNREAD.sample(counted["copies_unread"])
        yield SPANS_DROPPED.sample(counted["spans_limited"], {"reason": "rate_limit"})
        if self.profiling:
            yield from self.profiling.collect()

    def constants(self) -> dict[str, int]:
        settings = self.node.settings
        return {
            "allocation_span_bytes": settings["allocation-span-bytes"],
            "copy_span_bytes": settings["copy-span-bytes"],
            "wait_span_ns": round(settings["wait-span-seconds"] * 1e9),
            "spans_per_second": settings["spans-per-second"],
            "live_most": self._live_rows,
            "profiled": int(self._profiles),
            "launches_every": settings["profile-launches-every"] if self._profiles else 0,
            "launches_of": ("driver", "runtime").index(self._bounded),  # enum layer of bpf/cuda/cuda.h
        }

    def _copy(self, programs: Collection[str]) -> Object:
        """The object once more, to try what its programs cost; it makes no spans."""
        never = dict.fromkeys(("allocation_span_bytes", "copy_span_bytes", "wait_span_ns"), 1 << 62)
        constants = self.constants() | never | {"spans_per_second": 0, "profiled": 0}
        return small_copy(self.object, object_path(self.name), constants, programs)

    def entries(self) -> dict[str, int]:
        profiled = {"stack_ids": STACK_IDS, "allocations": ALLOCATION_BYTES} if self._profiles else {}
        return {"live": self._live_rows, **profiled}

    def _receive(self, record: CudaSpan) -> None:
        called = function(record.api)
        gpu = self._on_gpus.last(record.tgid, record.device)
        process = {**self.node.processes.labels(record.tgid), **gpu}
        made = span(record, called, self._names, self.node.clock, process, self._profiles)
        if called.effect == "wait":
            self._exemplars.add(record.tgid, record.api, record.end_ns - record.start_ns, made)
        self.node.spans(made)
