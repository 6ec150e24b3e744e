"""NCCL and RCCL jobs: collectives, bytes, communicators and errors by process, from probes on their calls."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from time import monotonic_ns
from typing import Any

from exporter.bpf import object_path, process_links, rehearsal
from exporter.bpf.ends import forget
from exporter.bpf.hook import Hook
from exporter.bpf.libbpf import Object
from exporter.bpf.library import Library
from exporter.bpf.passing import Passing
from exporter.bpf.process_links import LinkedProcesses
from exporter.bpf.process_user import user_of
from exporter.bpf.rehearsal import Rehearsal, small_copy
from exporter.governor.subject import Subject
from exporter.ledger import Process
from exporter.model import Metric, Sample
from exporter.nccl import metrics
from exporter.nccl.activity import Activity, in_flight, pending, read, take
from exporter.nccl.collectives import Collectives
from exporter.nccl.functions import COLLECTIVES, COVERABLE, FUNCTIONS, GROUPS, family, nests, scene
from exporter.nccl.layouts import Layouts
from exporter.nccl.messages import Messages
from exporter.nccl.records import NcclSpan
from exporter.nccl.samples import Kinds, comm_hash, function, samples
from exporter.nccl.sight import Sight, Waiting
from exporter.nccl.slow_calls import LEAST_NS, SlowCalls
from exporter.nccl.spans import Spans
from exporter.nccl.stragglers import stragglers
from exporter.nccl.traces import Traces
from exporter.node import Node, Processes
from exporter.options import Flag
from exporter.probe_collector import ProbeCollector, Receivers, Table
from exporter.push import SPANS_DROPPED
from exporter.resolve.communicators import Member
from exporter.resolve.process_gpus import ProcessesWithGpu, ProcessGpus
from exporter.series import limit_flag
from exporter.stack_profiles.hangs import Standing

METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
FLAGS = (
    Flag(
        "spans-per-second",
        1000,
        "Maximum number of spans a second. Above it collectives are sampled: all ranks on all nodes select the same "
        "collectives.",
        0,
        1 << 30,
    ),
    Flag(
        "slow-call-seconds",
        1.0,
        "Least time of a call that has a span although its trace is not sampled, in seconds.",
        0,
        1_000_000_000,
    ),
    Flag(
        "message-spans",
        False,
        "Time each Send and Recv, in groups too, and export spans of them: two traps a message instead of one.",
    ),
    Flag(
        "group-overhead-seconds",
        0.00001,
        "Maximum cost of the probes of Send and Recv in an average group of them, from calls and calibrated cost, in "
        "seconds. Above it, and above half a percent of a core, messages are probed in windows and estimated by "
        "groups. 0: no such maximum.",
        0,
        1,
    ),
    Flag(
        "compare-across-containers",
        False,
        "Compare the arrival of ranks across pods, jobs and users' processes too. A job that uses the hash of another "
        "job's communicator can then make that job's ranks look late.",
    ),
    Flag(
        "cluster",
        "",
        "Name of the cluster, equal on all nodes, which becomes part of trace ids. Separates clusters that push to "
        "one backend. Empty: none.",
    ),
    limit_flag(10_000),
)

_REHEARSED = 1
"""The number of a known layout, as most libraries have."""
_WINDOW = "in a window"
"""In place of a symbol, in the table of what calls cost."""


def create(node: Node) -> Nccl:
    return Nccl(node)


class Nccl(ProbeCollector[Activity]):
    """The probes of bpf/nccl/nccl.bpf.c."""

    name, api, look = "nccl", "NCCL", 0.05

    def _prepare(self) -> None:
        self._kinds = Kinds.of(self.object.types)
        self._spans = Spans(
            self._kinds,
            self.node.clock.wall_ns,
            Traces(self.node.settings["cluster"]),
            SlowCalls(self.node.settings["slow-call-seconds"]),
            self.node.collectives,
        )
        self._on_gpus = ProcessGpus(self.node.gpus, self.node.proc)
        self._layouts = Layouts(self.object.maps["layouts"])
        self._sight = Sight(self.object, lambda: self.returns, self.node.collectives.forget)
        table = self._table(_REHEARSED)
        [window] = {hook.cookie for hook in table["ncclAllReduce"]}
        self._rehearsal = Rehearsal(
            self._copy,
            {**table, _WINDOW: [Hook("on_window", window)]},
            {it.name: scene(it) for it in FUNCTIONS} | {_WINDOW: (_WINDOW,)},
        )

    def _processes(self) -> Processes:
        return ProcessesWithGpu(self.node.processes, self._on_gpus)

    def _options(self) -> Mapping[str, Any]:
        return {
            "coverable": COVERABLE,
            "family": family,
            "hooks_of": self._hooks_of,
            "passing": Passing(self._layouts.passes_on, partial(user_of, self.node.proc)),
            "rehearsal": self._rehearsal,
            "returning": self.object.maps["returning"],
            "linked": {it: self._linked(it) for it in GROUPS} if process_links.supported() else {},
            "waiting": Waiting(self.object, self._sight),
            "windows": lambda: (self._window_hits(), self._window_price()),
        }

    def _linked(self, group: str) -> LinkedProcesses:
        maps = self.object.maps
        return LinkedProcesses(
            maps["linked"], maps["linked_processes"], GROUPS.index(group), waits=group == COLLECTIVES
        )

    def _window_hits(self) -> Mapping[str, int]:
        seen = self.object.maps["windows"].sums()
        return {function(api).name: calls for api, calls in seen.items() if calls}

    def _window_price(self) -> float:
        """Return the seconds that a call in a window takes longer."""
        costs = self.node.trial.costs
        return self._rehearsal.costs.get(_WINDOW) or (costs and costs.of("emulated", returns=False)) or 0.0

    def _receivers(self) -> Receivers:
        return {"nccl_spans": self._receive}

    def constants(self) -> dict[str, int]:
        settings = self.node.settings
        return {
            "spans_per_second": settings["spans-per-second"] if self.node.wants_spans else 0,
            "slow_ns": min(LEAST_NS, int(settings["slow-call-seconds"] * 1e9)),
            "across_containers": settings["compare-across-containers"],
        }

    def _samples(self) -> Iterator[Sample]:
        members: list[Member] = []
        self._on_gpus.refresh()
        processes = self.ledger.processes()
        for process in processes:
            if not process.ended:
                devices = {it.device for it in process.activity.communicators if it.device >= 0}
                self._on_gpus.places(process.pid, devices)
            yield from samples(process, self._kinds, self.node.clock.wall_ns, self.returns)
            if not process.ended and self._sight.knows(process.pid):
                yield metrics.SEEN_FROM_START.sample(int(self._is_whole(process.pid)), process.labels)
            for it in process.activity.communicators:
                members.append(Member(process.pid, comm_hash(it.hash), it.rank, it.nranks))
        self.node.communicators.replace(members)
        yield from stragglers(processes)

    def _is_whole(self, pid: int) -> bool:
        """Return whether each call of a process was seen, or is in an estimate of messages."""
        messages = not self.watch or self.watch.whole(pid)
        return messages and self._collectives.is_whole(pid) and not self._sight.is_partial(pid)

    def _samples_of(self, process: Process[Activity]) -> Iterator[Sample]:
        return samples(process, self._kinds, self.node.clock.wall_ns, self.returns)

    def start(self) -> None:
        super().start()
        self._collectives.watch = next(iter(self.watches[1:]), None)
        if self.node.stack_profiles.wanted:
            self.node.stack_profiles.standing.add(self.name, self.standing)

    def standing(self) -> Iterator[Standing]:
        for pid, call in in_flight(self.object.maps):
            yield Standing(pid, call.start_ns, function(call.cookie.api).name)
        for pid, work in pending(self.object.maps, monotonic_ns()):
            yield Standing(pid, work.start_ns, function(work.api).name)

    def close(self) -> None:
        self.node.stack_profiles.standing.remove(self.name)
        self._rehearsal.close()
        super().close()

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        if not any(family(name) == "nccl" for name in library.functions):
            return  # a driver: that its process captures graphs is of no interest without NCCL
        try:
            self._sight.start(pid, library, from_first_call)
        finally:  # last: a process that is known is known whole
            super().process_started(pid, library, from_first_call)

    def _read(self) -> Mapping[int, Activity]:
        seen = read(self.object.maps, self._kinds.none, monotonic_ns())
        for pid, activity in seen.items() if self.watch else ():
            self._messages.add(activity, self.watch.missed(pid) if self.watch else {})
            self._collectives.add(activity, self._collectives.missed(pid), self._sight.is_left_out(pid))
        return seen

    def _subjects(self) -> Sequence[Subject]:
        bound, maps = self.node.settings["group-overhead-seconds"] or inf, self.object.maps
        self._collectives = Collectives(self.probes, maps, self._kinds, self._window_price, self._sight)
        self._messages = Messages(self.probes, maps["calls"], self._hits, self._kinds, bound, others=self._collectives)
        return [self._messages, self._collectives]

    def _take(self, pids: Collection[int]) -> Mapping[int, Activity]:
        maps = self.object.maps
        taken = take(maps, pids, self._kinds.none)
        forget(self.object, pids)
        maps["covered"].take(pids)
        for pid in pids:
            if self.watch:
                activity, absent = taken.get(pid, Activity()), self._sight.is_left_out(pid)
                missed = self.watch.finish(pid, self._messages.last(pid, activity))
                self._collectives.add(activity, self._collectives.finish(pid, activity), absent)
                self._messages.add(activity, missed)
            self.node.collectives.forget(pid)
            self._on_gpus.forget(pid)
        return taken

    def _forget(self, pids: Collection[int]) -> None:
        self._sight.forget(pids)

    def _hooks_of(self, library: Library) -> Mapping[str, Sequence[Hook]]:
        """Hooks nothing of a library that only passes calls on to NCCL, as a tracer's does: its calls arrive there."""
        layout = self._layouts.number(library)
        table = self._table(layout or 0, library.functions)
        return table if layout is not None else {it: hooks for it, hooks in table.items() if family(it) != "nccl"}

    def entries(self) -> dict[str, int]:
        return {} if self.node.wants_spans else {"nccl_spans": 4096}  # unused: the least that a ring buffer has

    def _copy(self, programs: Collection[str]) -> Object:
        """The object once more, to try what its programs cost; it makes one span a second at most."""
        one = {"spans_per_second": min(1, self.constants()["spans_per_second"]), "slow_ns": 1 << 62}
        copy = small_copy(self.object, object_path(self.name), self.constants() | one, programs)
        somewhere = rehearsal.COUNTS_AT  # as if a communicator of two ranks were there
        copy.maps["layouts"].set(
            _REHEARSED, copy.types.struct("layout")(identity=somewhere, sequence=somewhere + 0x100)
        )
        return copy

    def _table(self, layout: int = 0, functions: Container[str] = ()) -> Table:
        """Return the hooks in a library of this layout, 0 if it is not known, with these functions.

        A library of an unknown layout may be a tracer. While its calls are seen, those that it passes on do not count.
        """
        times = self.node.settings["message-spans"]
        return {
            it.name: it.hooks(
                self.object.types, api, layout, times, bool(layout) and not times and not nests(it.name, functions)
            )
            for api, it in enumerate(FUNCTIONS, 1)
        }

    def _hits(self) -> Mapping[str, int]:
        counted = {api: calls for api, calls in self.object.maps["hits"].sums().items() if calls}
        return {function(api).name: calls for api, calls in counted.items()}

    def _losses(self) -> Iterator[Sample]:
        yield from super()._losses()
        if self.node.wants_spans:
            counted = self.object.globals()
            yield SPANS_DROPPED.sample(counted["spans_limited"], {"reason": "nccl_rate_limit"})
            yield metrics.UNSAMPLED.sample(counted["spans_unsampled"])

    def _receive(self, record: NcclSpan) -> None:
        labels = self.node.processes.labels(record.tgid)
        gpu = self._on_gpus.last(record.tgid, record.who.device + 1 if record.who.hash else 0)
        if span := self._spans.span(record, {**labels, **gpu}):
            self.node.spans(span)
        if self._sight.is_left_out(record.tgid):
            self.node.collectives.forget(record.tgid)  # RDMA work that is posted now may serve others
