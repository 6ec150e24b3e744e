"""RDMA jobs: posts, bytes, completions and latencies by queue pair, from probes on verbs and providers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from exporter.bpf import object_path, process_links
from exporter.bpf.ends import forget
from exporter.bpf.events import Events
from exporter.bpf.libbpf import Object
from exporter.bpf.library import Interest, Library
from exporter.bpf.process_links import LinkedProcesses
from exporter.bpf.rehearsal import Rehearsal, small_copy
from exporter.bpf.safety import Protection, protection
from exporter.governor.subject import Subject
from exporter.ledger import Process
from exporter.model import Metric, Sample
from exporter.node import Node
from exporter.options import Flag, SettingsError, Value
from exporter.probe_collector import ProbeCollector, Receivers, Table
from exporter.push import SPANS_DROPPED
from exporter.series import limit_flag
from exporter.verbs import control_samples, learning, metrics
from exporter.verbs.activity import Activity, read, read_posted, take
from exporter.verbs.attaching import Attaching
from exporter.verbs.busiest import Busiest
from exporter.verbs.costs import POSTS, VerbsCosts
from exporter.verbs.destroyed_qps import DestroyedQps
from exporter.verbs.functions import HITS, POSTING, table
from exporter.verbs.learning import Pointers
from exporter.verbs.peers import Peers
from exporter.verbs.poll_sampling import Windows, polls_allowed
from exporter.verbs.posted import PostedBytes, PostedSums
from exporter.verbs.posts import CountedPosts
from exporter.verbs.records import LearnedObject, LiveContext, VerbsSpan
from exporter.verbs.samples import PeerLabels, bytes_by_port, samples
from exporter.verbs.spans import span_of

METRICS: tuple[Metric, ...] = tuple(
    value for part in (metrics, control_samples) for value in vars(part).values() if isinstance(value, Metric)
)
FLAGS = (
    Flag(
        "queue-pairs",
        2048,
        "Maximum number of queue pairs with requests that are followed at once, with 12.4 KB of kernel memory each.",
        1,
        1 << 20,
    ),
    Flag(
        "poll-window-seconds",
        0.1,
        "Time of one window in which poll_cq is probed where it is called often, in seconds. Equal to the interval: "
        "always, which costs programs that poll without pause most of their speed.",
        0.01,
        3600,
    ),
    Flag(
        "poll-interval-seconds",
        10.0,
        "Interval between windows in which poll_cq is probed where it is called often, in seconds. Elsewhere it "
        "is always probed.",
        0.01,
        3600,
    ),
    Flag(
        "span-seconds",
        0.01,
        "Least time of a work request that becomes a span, in seconds. Failed ones always become spans.",
        0,
        1_000_000_000,
    ),
    Flag(
        "spans-per-second", 100, "Maximum number of spans a second; further spans are dropped and counted.", 0, 1 << 30
    ),
    limit_flag(10_000),
)
_LEAST_ROWS = 16384
"""Rows by queue pair and opcode, of which one process has half: requests that are not followed are counted too."""
_MISSED = ("requests_unread", "bytes_unread", "failures_unread", "posted_lost", "contexts_lost", "post_flights_lost")
"""Globals of the object that count posts with bytes that are not known."""


def configure(values: Mapping[str, Value]) -> Mapping[str, Any]:
    """Return the settings. Raises SettingsError where windows would be longer than their interval."""
    if float(str(values["poll-interval-seconds"])) < float(str(values["poll-window-seconds"])):
        name = "collector.verbs.poll"
        raise SettingsError(
            f"{name}-interval-seconds is shorter than {name}-window-seconds; make one of them the other"
        )
    return values


def create(node: Node) -> Verbs:
    return Verbs(node)


class Verbs(ProbeCollector[Activity]):
    """The probes of bpf/verbs/verbs.bpf.c: on libibverbs and post_send all the time, on poll_cq as Windows decides."""

    name, api, look = "verbs", "RDMA", 0.05

    def start(self) -> None:
        """Start as any probe; then begin the windows of poll_cq, and let other collectors read what is posted."""
        super().start()
        # A thread of its own: attaching takes time, and ends of queue pairs are to be known at once.
        self._learning = Events()
        self._learning.add(self.object.maps["live_contexts"], self._learn)
        self._learning.add(self.object.maps["learned_objects"], self._learn_extended)
        self._learning.start("verbs learning")
        self.windows.start()
        self.node.posted.follow(self._posted)

    def _prepare(self) -> None:
        self._timed = self.object.types.enum("timed")
        self.peers = Peers(self.node.sys)
        self._peer_labels, self._busiest = PeerLabels(self.peers), Busiest()
        self._destroyed_qps = DestroyedQps()
        self._sums = PostedSums()
        self._rehearsal = Rehearsal(self._copy, self._table(), {name: (name,) for name in POSTS})
        rows = self.object.maps["process_hits"]
        self.charged = VerbsCosts(lambda function: self.probes.price(function), rows, self._hit)

    def _copy(self, programs: Collection[str]) -> Object:
        """The object once more, to try what its programs cost; it makes no spans, and follows few queue pairs."""
        constants = self.constants() | {"verbs_spans_per_second": 0}
        few = dict.fromkeys(("queues", "receives", "extended_posts", "posted", "calls"), 16)
        return small_copy(self.object, object_path(self.name), constants, programs, few)

    def _hit(self) -> float | None:
        """Return the seconds that a small probe takes, None where that is not known."""
        return self.node.trial.costs.of("emulated", returns=False) if self.node.trial.costs else None

    def _subject(self) -> Subject:
        self._posts = CountedPosts(self.probes, self.charged, self._read_posted)
        return self._posts

    def _read_posted(self) -> Mapping[int, Activity]:
        return read_posted(self.object.maps, self._destroyed_qps, self._drain)

    def _table(self) -> Table:
        return table(self.object.types)

    def _options(self) -> Mapping[str, Any]:
        maps = self.object.maps
        return {
            "family": str,
            "rehearsal": self._rehearsal,
            "returning": maps["returning"],
            "since": maps["posts_since"],
            "linked": {"posts": LinkedProcesses(maps["linked"], maps["linked_processes"])}
            if process_links.supported()
            else {},
        }

    def _interest(self) -> Interest:
        """Return the interest that finds the functions of providers, and attaches the probes to them."""
        settings, node = self.node.settings, self.node
        length, interval = settings["poll-window-seconds"], settings["poll-interval-seconds"]
        self.windows = Windows(self.object, length, interval, self._may_poll, self._before_window)
        protected, known = partial(protection, node.proc), Pointers(self.object.maps)
        self.attaching = Attaching(self.probes, self.windows, protected, node.proc, node.sys, known)
        return self.attaching

    def _receivers(self) -> Receivers:
        return {"verbs_spans": self.receive, "qp_ends": self._destroyed_qps.add}

    def _read(self) -> Mapping[int, Activity]:
        seen = read(self.object.maps, self._destroyed_qps, self._drain)
        if self.watch:
            for pid, activity in seen.items():
                self._posts.add(activity, self.watch.missed(pid))
        return seen

    def _take(self, pids: Collection[int]) -> Mapping[int, Activity]:
        taken = take(self.object.maps, self._destroyed_qps, self._drain, pids)
        forget(self.object, pids)
        if self.watch:
            for pid in pids:
                activity = taken.get(pid, Activity())
                self._posts.add(activity, self.watch.finish(pid, self._posts.last(activity)))
        return taken

    def _drain(self) -> None:
        self._events.flush(self.object.maps["qp_ends"])

    def collect(self) -> Iterator[Sample]:
        yield from super().collect()
        yield from self.windows.collect()
        yield from self._learning.collect()

    def problems(self) -> Iterator[str]:
        yield from self.attaching.problems()
        yield from super().problems()
        if self.peers.problem:
            yield self.peers.problem

    def close(self) -> None:
        self.node.posted.follow(None)
        self.windows.close()
        self._learning.close()
        self._rehearsal.close()
        super().close()

    def _samples(self) -> Iterator[Sample]:
        self.peers.refresh()
        processes = self.ledger.processes()
        self._peer_labels.turn()
        for process in processes:
            yield from samples(process, self._timed, self._peer_labels)
        yield from self._busiest.samples(processes, self._peer_labels)
        controls = [(process, process.activity.control) for process in processes]
        yield from control_samples.samples(controls, self.peers)
        yield from control_samples.gids(controls, self.peers)

    def _samples_of(self, process: Process[Activity]) -> Iterator[Sample]:
        yield from samples(process, self._timed, self._peer_labels)
        yield from control_samples.samples([(process, process.activity.control)], self.peers)

    def _posted(self) -> PostedBytes | None:
        """Return what was posted until now. Called from other threads, one at a time."""
        self.peers.refresh()
        processes = self.ledger.processes()
        counts = {key: sent for process in processes for key, sent in bytes_by_port(process, self.peers).items()}
        return self._sums.see(counts, self.missed())

    def missed(self) -> tuple[int, ...] | None:
        """Return counts of posts that were missed so far; None while they are not known."""
        unprobed = any(not state.attached for state in self.probes.states() if state.symbol in POSTING)
        if unprobed or any(self.attaching.problems()) or not self.node.targets.scanned.is_set():
            return None
        if self.watch and self.watch.throttled:
            return None
        counted = self.object.globals()
        return *(counted[name] for name in _MISSED), self.watch.throttles if self.watch else 0

    def entries(self) -> dict[str, int]:
        queue_pairs = self.node.settings["queue-pairs"]
        return {"queues": queue_pairs, "receives": queue_pairs, **self._shared()}

    def _shared(self) -> dict[str, int]:
        """Return the sizes of tables of which each process has a share."""
        rows = max(_LEAST_ROWS, 8 * self.node.settings["queue-pairs"])
        return {"extended_posts": rows // 4, "calls": rows, "posted": rows}

    def constants(self) -> dict[str, int]:
        settings, costs = self.node.settings, self.node.trial.costs
        length, interval = settings["poll-window-seconds"], settings["poll-interval-seconds"]
        hit = costs.of("stepped", returns=True) if costs else None
        return {
            "request_span_ns": round(settings["span-seconds"] * 1e9),
            "verbs_spans_per_second": settings["spans-per-second"],
            "poll_span_ns": round(length * 1e9),
            "polls_allowed": polls_allowed(length, interval, hit),
            **{f"{name}_most": rows for name, rows in self._shared().items()},
        }

    def _may_poll(self, library: Library) -> bool:
        users: Collection[Protection] = self.attaching.users(library)
        return bool(users) and self.node.trial.returns_allowed(users)[0]

    def _before_window(self) -> None:
        self.attaching.retry()

    def receive(self, record: VerbsSpan) -> None:
        span = span_of(record, self.peers, self.node.clock, self.node.processes.labels(record.tgid))
        moved_ns = record.end_ns if record.received else record.begin_ns  # a receive is posted long before
        self.node.spans(replace(span, links=self.node.collectives.links(record.tgid, moved_ns)))

    def _learn(self, record: LiveContext) -> None:
        self.attaching.learn(record.tgid, learning.of_context(record.functions))

    def _learn_extended(self, record: LearnedObject) -> None:
        self.attaching.learn_extended(record.tgid, learning.of_object(record.calls, record.of_cq))

    def _hits(self) -> Mapping[str, int]:
        return {HITS[key]: count for key, count in self.object.maps["hits"].items()}

    def _losses(self) -> Iterator[Sample]:
        yield from super()._losses()
        counted = self.object.globals()
        yield SPANS_DROPPED.sample(counted["verbs_spans_limited"], {"reason": "verbs_rate_limit"})
        yield metrics.UNMATCHED.sample(counted["completions_unmatched"])
        for what in ("requests", "bytes", "completions", "failures"):
            yield metrics.UNREAD.sample(counted[f"{what}_unread"], {"what": what})
