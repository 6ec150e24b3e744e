"""What RDMA jobs do: posts, bytes, completions and latencies by queue pair, from probes on verbs and providers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from exporter.bpf import object_path
from exporter.bpf.events import Events
from exporter.bpf.libbpf import BpfError, Object
from exporter.bpf.library import Library
from exporter.bpf.maps import MAP_FULL
from exporter.bpf.probe import Probes
from exporter.bpf.safety import Protection, protection
from exporter.ledger import Ledger
from exporter.model import Metric, Sample, Unavailable
from exporter.node import Node
from exporter.options import Flag, SettingsError, Value
from exporter.push import SPANS_DROPPED
from exporter.series import SeriesLimit, limit_flag
from exporter.verbs import control_samples, metrics, pointers
from exporter.verbs.activity import Activity, read, take
from exporter.verbs.attaching import Attaching
from exporter.verbs.functions import HITS, POSTING, table
from exporter.verbs.gone import Gone
from exporter.verbs.peers import Peers
from exporter.verbs.pointers import Pointers
from exporter.verbs.posted import Sums, Told
from exporter.verbs.samples import Ends, bytes_by_port, samples
from exporter.verbs.spans import span_of
from exporter.verbs.windows import Windows, polls_allowed

METRICS: tuple[Metric, ...] = tuple(
    value for part in (metrics, control_samples) for value in vars(part).values() if isinstance(value, Metric)
)
FLAGS = (
    Flag(
        "queue-pairs",
        2048,
        "Queue pairs whose requests can be followed at once (12.4 KB of kernel memory each).",
        1,
        1 << 20,
    ),
    Flag(
        "poll-window-seconds",
        0.1,
        "For how long poll_cq is probed at a time where it is called often; equal to the interval: always, which costs "
        "programs that poll without pause most of their speed.",
        0.01,
        3600,
    ),
    Flag(
        "poll-interval-seconds",
        10.0,
        "How often poll_cq is probed where it is called often; elsewhere it is always.",
        0.01,
        3600,
    ),
    Flag(
        "span-seconds",
        0.01,
        "Work requests that took this long or longer, and failed ones, become spans.",
        0,
        1_000_000_000,
    ),
    Flag("spans-per-second", 100, "Spans at most; what exceeds it is counted.", 0, 1 << 30),
    limit_flag(10_000),
)
_STREAMS = frozenset({"verbs_spans", "qp_ends", "live_contexts", "extended_told", "poll_busy"})
"""Ring buffers, whose losses their readers count."""
_LEAST_ROWS = 8192
"""Of queue pair and opcode: what is not followed is counted all the same."""
_MISSED = ("requests_unread", "bytes_unread", "failures_unread", "posted_lost", "contexts_lost", "post_flights_lost")
"""Globals of the object that say that bytes posted are not all known."""


def configure(values: Mapping[str, Value]) -> Mapping[str, Any]:
    """Raises SettingsError where the windows would be longer than from one to the next."""
    if float(str(values["poll-interval-seconds"])) < float(str(values["poll-window-seconds"])):
        name = "collector.verbs.poll"
        raise SettingsError(
            f"{name}-interval-seconds is shorter than {name}-window-seconds; make one of them the other"
        )
    return values


def create(node: Node) -> Verbs:
    return Verbs(node)


class Verbs:
    """The probes of bpf/verbs.bpf.c: on libibverbs and post_send all the time, on poll_cq as it can be borne."""

    name = "verbs"

    def __init__(self, node: Node) -> None:
        self._node = node
        self._limit = SeriesLimit(self.name, node.settings["series-limit"])

    def start(self) -> None:
        """Loads the programs; providers are attached to as Targets finds them. Unavailable where BPF cannot be used."""
        settings = self._node.settings
        try:
            entries = _entries(settings["queue-pairs"])
            self._object = Object(object_path(self.name), constants=self._constants(), entries=entries)
        except BpfError as error:
            raise Unavailable(f"the RDMA probes cannot be loaded: {error}", "see accel-exporter doctor") from error
        self._timed = self._object.types.enum("timed")
        self._peers = Peers(self._node.sys)
        self._ends = Ends(self._peers)
        maps, gone = self._object.maps, Gone()
        self._ledger = Ledger[Activity](
            partial(read, maps, gone), partial(take, maps, gone), self._node.processes, self._node.proc
        )
        protected = partial(protection, self._node.proc)
        self._probes = Probes(
            self.name,
            self._object,
            table(self._object.types),
            hits=self._hits,
            protection=protected,
            returns_allowed=self._node.trial.returns_allowed,
            costs=self._node.trial.costs,
            family=str,
            listener=self,
        )
        length, interval = settings["poll-window-seconds"], settings["poll-interval-seconds"]
        self._windows = Windows(self._object, length, interval, self._may_poll, self._before_window)
        self._attaching = Attaching(
            self._probes, self._windows, protected, self._node.proc, self._node.sys, Pointers(maps)
        )
        self._learning = Events()  # apart: attaching takes its time, and what queue pairs did is to be known at once
        self._learning.add(maps["live_contexts"], self._learn)
        self._learning.add(maps["extended_told"], self._learn_extended)
        self._learning.start("verbs learning")
        self._events = Events()
        self._events.add(maps["verbs_spans"], self._receive)
        self._events.add(maps["qp_ends"], gone.add)
        self._events.start("verbs events")
        self._node.targets.want(self._attaching)
        self._windows.start()
        self._sums = Sums()
        self._node.posted.follow(self._posted)

    def collect(self) -> Iterator[Sample]:
        yield from self._limit.apply(self._of_processes())
        yield from self._probes.collect()
        yield from self._windows.collect()
        yield from self._events.collect()
        yield from self._learning.collect()
        yield from self._losses()

    def problems(self) -> Iterator[str]:
        """What is not probed, and why; for the landing page."""
        yield from self._attaching.says()
        for state in self._probes.states():
            if not state.attached:
                yield f"{state.symbol} in {state.library}: {state.reason}"
        if self._peers.problem:
            yield self._peers.problem

    def close(self) -> None:
        """Unloads; Targets has detached before. Nothing else may be called afterwards."""
        self._node.posted.follow(None)
        self._windows.close()
        self._learning.close()
        self._events.close()
        self._object.close()

    # What Targets tells through Probes (exporter.bpf.probe.Listener).

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        self._ledger.started(pid)

    def processes_ended(self, pids: Collection[int]) -> None:
        self._ledger.ended(pids)

    def processes_replaced(self, pids: Collection[int]) -> None:
        self._ledger.ended(pids)
        for pid in pids:
            self._node.processes.forget(pid)

    def _of_processes(self) -> Iterator[Sample]:
        self._peers.refresh()
        processes = self._ledger.processes()
        self._ends.turn()
        for process in processes:
            yield from samples(process, self._timed, self._ends)
        yield from control_samples.samples([(process, process.activity.control) for process in processes], self._peers)

    def _posted(self) -> Told | None:
        """What was posted until now; asked from other threads, one at a time."""
        self._peers.refresh()
        processes = self._ledger.processes()
        counts = {key: it for process in processes for key, it in bytes_by_port(process, self._peers).items()}
        return self._sums.see(counts, self._missed())

    def _missed(self) -> tuple[int, ...] | None:
        """How much of what was posted was missed so far; None while that is not known."""
        unprobed = any(not state.attached for state in self._probes.states() if state.symbol in POSTING)
        if unprobed or any(self._attaching.says()) or not self._node.targets.scanned.is_set():
            return None
        counted = self._object.globals()
        return tuple(counted[name] for name in _MISSED)

    def _constants(self) -> dict[str, int]:
        settings, costs = self._node.settings, self._node.trial.costs
        length, interval = settings["poll-window-seconds"], settings["poll-interval-seconds"]
        hit = costs.of("stepped", returns=True) if costs else None
        return {
            "request_span_ns": round(settings["span-seconds"] * 1e9),
            "verbs_spans_per_second": settings["spans-per-second"],
            "poll_span_ns": round(length * 1e9),
            "polls_allowed": polls_allowed(length, interval, hit),
        }

    def _may_poll(self, library: Library) -> bool:
        users: Collection[Protection] = self._attaching.users(library)
        return bool(users) and self._node.trial.returns_allowed(users)[0]

    def _before_window(self) -> None:
        self._attaching.retry()

    def _receive(self, record: Any) -> None:
        span = span_of(record, self._peers, self._node.clock, self._node.processes.labels(record.tgid))
        moved_ns = record.end_ns if record.received else record.begin_ns  # a receive is posted long before
        self._node.spans(replace(span, links=self._node.collectives.links(record.tgid, moved_ns)))

    def _learn(self, record: Any) -> None:
        self._attaching.learn(record.tgid, pointers.of_context(record.functions))

    def _learn_extended(self, record: Any) -> None:
        self._attaching.learn_extended(record.tgid, pointers.of_object(record.calls, record.of_cq))

    def _hits(self) -> Mapping[str, int]:
        return {HITS[key]: count for key, count in self._object.maps["hits"].items()}

    def _losses(self) -> Iterator[Sample]:
        counted = self._object.globals()
        for name in self._object.maps:
            if f"{name}_lost" in counted and name not in _STREAMS:
                yield MAP_FULL.sample(counted[f"{name}_lost"], {"map": f"verbs_{name}"})
        yield SPANS_DROPPED.sample(counted["verbs_spans_limited"], {"reason": "verbs_rate_limit"})
        yield metrics.UNMATCHED.sample(counted["completions_unmatched"])
        for what in ("requests", "bytes", "completions", "failures"):
            yield metrics.UNREAD.sample(counted[f"{what}_unread"], {"what": what})


def _entries(queue_pairs: int) -> dict[str, int]:
    rows = max(_LEAST_ROWS, 4 * queue_pairs)
    followed = {"queues": queue_pairs, "receives": queue_pairs, "extended_posts": rows // 2}
    return followed | {"calls": rows, "posted": rows}
