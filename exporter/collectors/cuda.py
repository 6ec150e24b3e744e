"""CUDA jobs: launches, memory, copies, waits and errors by process, from probes on the driver."""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from exporter.bpf import object_path, process_links
from exporter.bpf.ends import forget
from exporter.bpf.hook import Hook
from exporter.bpf.libbpf import Object
from exporter.bpf.library import Library
from exporter.bpf.passing import Passing, PassingProcesses
from exporter.bpf.process_links import LinkedProcesses
from exporter.bpf.process_user import user_of
from exporter.bpf.rehearsal import Rehearsal, small_copy
from exporter.cuda import loading, metrics
from exporter.cuda.activity import Activity, Counted
from exporter.cuda.flags import FLAGS as FLAGS
from exporter.cuda.flags import live_rows
from exporter.cuda.functions import FUNCTIONS, GROUPS, LAUNCHES, MEMORY, TRANSFERS, coverable, layer, scene
from exporter.cuda.group_calls import Allocations, GroupCalls
from exporter.cuda.interposers import passes_on
from exporter.cuda.launches import CudaLaunches
from exporter.cuda.names import Names
from exporter.cuda.records import ContextEnd, CudaSpan
from exporter.cuda.samples import function, samples, unattributed
from exporter.cuda.sight import Sight, Waiting
from exporter.cuda.spans import Exemplars, span
from exporter.governor.subject import Subject
from exporter.ledger import Process
from exporter.model import Labels, Metric, Sample
from exporter.node import Node
from exporter.probe_collector import ProbeCollector, Receivers, Table
from exporter.push import SPANS_DROPPED
from exporter.resolve.process_gpus import ProcessGpus
from exporter.stacks import metrics as stack_metrics

if TYPE_CHECKING:
    from exporter.cuda.profiling import CudaProfiling

METRICS: tuple[Metric, ...] = (
    *(value for value in vars(metrics).values() if isinstance(value, Metric)),
    *stack_metrics.METRICS,
)
NVML_SECONDS = 3.0
_WINDOW = "in a window"
"""In place of a symbol, in the table of what calls cost."""


def create(node: Node) -> Cuda:
    return Cuda(node)


class Cuda(ProbeCollector[Activity]):
    """The probes of bpf/cuda/cuda.bpf.c."""

    name, api, gather, look = "cuda", "CUDA", 0.02, 0.02

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._later: list[GroupCalls] = []
        self._exemplars = Exemplars()
        self.profiling: CudaProfiling | None = None

    def load(self) -> None:
        """Start as any probe; waits NVML_SECONDS at most for the memory of the node's GPUs."""
        self._live_rows = self.node.settings["live-allocations"] or live_rows(self.node.gpus.memory(NVML_SECONDS))
        super().load()

    def _prepare(self) -> None:
        self._names = Names.of(self.object.types)
        self._sight = Sight(self.object)
        self._on_gpus = ProcessGpus(self.node.gpus, self.node.proc)
        self._counted = Counted(self.object.maps, self._drop, self._gpus_of)
        every_error = self.node.settings["all-errors"]
        if self._profiles:
            from exporter.cuda import profiling

            self.profiling = profiling.create(
                self.node, self.object, self._bounded, self._labels_of, self._read_allocations, self._between_windows
            )
        self._hooks = {
            it.name: it.hooks(self.object.types, api, every_error, self._groups if it.layer == self._bounded else ())
            for api, it in enumerate(FUNCTIONS, 1)
        }
        scenes = {name: scene(it) for name, it in zip(self._hooks, FUNCTIONS, strict=True)}
        window = {_WINDOW: [Hook("on_window", gated=True)]}
        self._rehearsal = Rehearsal(self._copy, self._hooks | window, scenes | {_WINDOW: (_WINDOW,)})

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
            "withdrawn": self._sight.lose,
            "passing": Passing(
                passes_on,
                partial(user_of, self.node.proc),
                PassingProcesses(maps["passing"], maps["passing_processes"]),
                self._sight.lose_counted,
            ),
            "linked": {it: self._linked(it) for it in self._groups} if process_links.supported() else {},
            "waiting": Waiting(self.object, self._sight),
            "windows": lambda: (self._window_hits(), self._window_price()),
        }

    def _window_hits(self) -> Mapping[str, int]:
        seen = self.object.maps["windows"].sums()
        return {it.name: seen[api] for api, it in enumerate(FUNCTIONS, 1) if seen[api]}

    def _window_price(self) -> float:
        """Return the seconds that a call in a window takes longer."""
        costs = self.node.trial.costs
        return self._rehearsal.costs.get(_WINDOW) or (costs and costs.of("emulated", returns=False)) or 0.0

    def _linked(self, group: str) -> LinkedProcesses:
        maps, returns = self.object.maps, group != LAUNCHES
        return LinkedProcesses(maps["linked"], maps["linked_processes"], GROUPS.index(group), waits=returns)

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
        return loading.bounded_layer(self.node.settings)

    @property
    def _groups(self) -> Collection[str]:
        """The functions that may be left out in a process. Allocations only where those of others are seen meanwhile,
        and are in no profile.
        """
        memory = process_links.supported() and not self._profiles
        return GROUPS if memory else (LAUNCHES, TRANSFERS)

    def _subjects(self) -> Sequence[Subject]:
        maps, layer = self.object.maps, self._bounded
        self._later = [GroupCalls(TRANSFERS, layer, self.probes, maps, self._window_price)]
        if MEMORY in self._groups:
            totals = [
                (of, kind)
                for of, name in self._names.layer.items()
                for kind, memory in self._names.memory.items()
                if name == layer and memory != "vmm"
            ]
            price, lose = self._window_price, self._sight.lose_allocations
            self._sight.memory = Allocations(layer, self.probes, maps, price, totals, lose, self._sight.meet)
            self._later.append(self._sight.memory)
        self._launches = CudaLaunches(self.probes, maps, layer, others=self._later)
        return [self._launches, *self._later]

    def start(self) -> None:
        super().start()
        for subject, watch in zip(self._later, self.watches[1:], strict=False):
            subject.watch = watch
        if self.profiling:
            self.profiling.start()

    def _read(self) -> Mapping[int, Activity]:
        seen = self._counted.read()
        for pid, activity in seen.items() if self.watch else ():
            self._launches.add(activity, self.watch.missed(pid) if self.watch else {})
            for it in self._later:
                it.add(activity, it.missed(pid), it.leaves_out(pid))
        return seen

    def _take(self, pids: Collection[int]) -> Mapping[int, Activity]:
        taken = self._counted.take(pids)
        for pid in pids if self.watch else ():
            activity = taken.get(pid, Activity())
            absent = [it.leaves_out(pid) for it in self._later]
            if self.watch:
                missed = self.watch.finish(pid, self._launches.last(pid, activity))
                self._launches.add(activity, missed)
                if self.profiling and missed:
                    self.profiling.ended(pid, sum(missed.values()))
            for it, unknown in zip(self._later, absent, strict=True):
                it.add(activity, it.finish(pid, activity), unknown)
        return taken

    def _between_windows(self, pid: int) -> int | None:
        """Return the estimated launches of a process that were not probed; None where they are not known."""
        missed = self.watch.missed(pid) if self.watch else {}
        return None if missed is None else sum(missed.values())

    def _samples(self) -> Iterator[Sample]:
        self._on_gpus.refresh()
        self._events.flush(self.object.maps["context_ends"])  # what these contexts had allocated is in no row below
        processes = self.ledger.processes()
        decided = self._sight.decided()
        missed = self._sight.missed()
        for process in processes:
            exemplars = partial(self._exemplars.of, process.pid)
            unseen = process.pid in self._sight.unknown | missed and not process.ended
            yield from samples(process, self._names, self.node.clock.wall_ns, exemplars, unseen)
            if process.replaced and process.pid in self.ledger:
                yield from decided.of_replacing(process.pid, self.node.processes)
            if not process.ended:
                yield from decided.of(process, self._is_whole)
            if not process.ended and process.pid in decided.covered:
                yield from unattributed(process, self._on_gpus.memory(process.pid), self._names)

    def _is_whole(self, pid: int) -> bool:
        """Return whether no call of a process was left out, or was by an estimate only."""
        left_out = self._sight.is_partial(pid) or any(it.left_out(pid) for it in self._later)
        return not left_out and (not self.watch or self.watch.whole(pid))

    def _samples_of(self, process: Process[Activity]) -> Iterator[Sample]:
        return samples(process, self._names, self.node.clock.wall_ns, lambda _: {})

    def _gpus_of(self, pid: int, activity: Activity) -> Mapping[int, Labels]:
        """Contexts older than the probes may be on any GPU: then what came first is not known."""
        first = activity.first if self._sight.sees_contexts(pid) else None
        since = max(activity.since_ns / 1e9, self._sight.decided_at(pid) or time.monotonic())
        return self._on_gpus.labels(pid, activity.used, first, since)

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
                self._sight.start(pid, library, from_first_call, self.probes.passed_by)
            if sees_memory or not self.returns or self.node.settings["layers"] != "both":  # else its driver is to come
                self._sight.decide(pid)
        finally:  # last: a process that is known is known whole
            super().process_started(pid, library, from_first_call)

    def _drop(self, pids: Collection[int]) -> None:
        """Remove what the kernel keeps of processes besides their counts. First that all their calls were seen: a copy
        of the program that runs now, of memory in a dropped range, is of an unknown kind.
        """
        self.object.maps["covered"].take(pids)
        forget(self.object, pids)

    def _forget(self, pids: Collection[int]) -> None:
        self._sight.forget(pids)
        self._exemplars.forget(pids)
        for pid in pids:
            self._on_gpus.forget(pid)

    def _sweep(self, end: ContextEnd) -> None:
        self.object.programs["sweep"].run(struct.pack("=3Q", end.tgid, end.context, end.before_ns))

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
        return loading.constants(self.node.settings, self._live_rows, self._profiles)

    def entries(self) -> dict[str, int]:
        return loading.entries(self._live_rows, self._profiles)

    def _copy(self, programs: Collection[str]) -> Object:
        """The object once more, to try what its programs cost."""
        return small_copy(self.object, object_path(self.name), loading.without_spans(self.constants()), programs)

    def _receive(self, record: CudaSpan) -> None:
        called = function(record.api)
        gpu = self._on_gpus.last(record.tgid, record.device)
        process = {**self.node.processes.labels(record.tgid), **gpu}
        made = span(record, called, self._names, self.node.clock, process, self._profiles)
        if called.effect == "wait":
            self._exemplars.add(record.tgid, record.api, record.end_ns - record.start_ns, made)
        self.node.spans(made)
