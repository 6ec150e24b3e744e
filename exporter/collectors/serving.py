"""Requests of LLM servers, from their sockets: time to first token, tokens; costs time at each socket call."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from exporter import pid_namespace
from exporter.bpf import object_path, privileges
from exporter.bpf.events import Events
from exporter.bpf.libbpf import BpfError, Link, Object, lacks_tracepoint
from exporter.bpf.library import GPU_SYMBOLS, Library
from exporter.bpf.maps import MAP_FULL
from exporter.bpf.native import not_started
from exporter.bpf.status import ENDED_FOLDED
from exporter.ledger import RETENTION, Ledger, Process
from exporter.model import Metric, Sample
from exporter.node import Node
from exporter.options import Flag
from exporter.series import SeriesLimit, limit_flag
from exporter.serving import answer, metrics
from exporter.serving.activity import Activity
from exporter.serving.engines import engine
from exporter.serving.following import Following
from exporter.serving.rings import Rings
from exporter.serving.spans import TRACEPARENT, served, span
from exporter.serving.tls import PROGRAMS, TlsProbes

if TYPE_CHECKING:
    from exporter.serving.engine_numbers import EngineNumbers
    from exporter.serving.http2 import Fields, Streams

DEFAULT = False
METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
FLAGS = (
    Flag(
        "processes",
        "gpu",
        "Processes with sockets that are followed. gpu: processes that use a GPU, their containers, pods and process "
        "trees; all: every process of the node.",
        choices=("gpu", "all"),
    ),
    Flag(
        "tls",
        False,
        "Read requests over TLS too, by probes on SSL_read and SSL_write of the OpenSSL libraries (libssl.so) that "
        "followed processes map: two traps at each of their calls, about 11 µs together. Before Linux 6.11, and "
        "beyond 64 followed processes of a file, the traps are in every process that maps it.",
    ),
    Flag(
        "engine-metrics",
        False,
        "Read the /metrics of inference engines among the followed processes, and export them under their own names "
        "with the labels of the process.",
    ),
    Flag("engine-interval", 15.0, "Interval between two readings of an engine's metrics, in seconds.", 1, 3600),
    Flag(
        "engine-namespaces",
        False,
        "Enter the network namespaces of containers to read engines' metrics, which needs CAP_SYS_ADMIN.",
        capability=privileges.ENTERING_NAMESPACES,
    ),
    limit_flag(20_000),
)
_PROGRAMS = ("on_exit", "on_fork", "on_state", "on_data", "on_send", "on_receive")
_GATHER = 0.02

log = logging.getLogger(__name__)


def create(node: Node) -> Serving:
    return Serving(node)


class _Nothing:
    """There is no probe in the library: it only marks the processes that use a GPU."""

    def close(self) -> None:
        """Nothing was attached."""


class Serving:
    """Tracepoints of the kernel's socket calls for the whole node; one record for each request that has ended."""

    name = "serving"

    def __init__(self, node: Node) -> None:
        self.node = node
        self._all = node.settings["processes"] == "all"
        self._limit = SeriesLimit(self.name, node.settings["series-limit"], profile=node.profile)
        self._lock = threading.Lock()
        self._activities: dict[int, Activity] = {}
        self._engines: EngineNumbers | None = None
        self._streams: Streams | None = None
        self.tls: TlsProbes | None = None
        self.ledger = Ledger[Activity](self._read, self._take, node.processes, node.proc, fold=self._fold)

    def start(self) -> None:
        """Load the programs, and attach them.

        Raises Unavailable where the node lacks what the programs need, and BpfError for other failures.
        """
        links: list[Link] = []
        try:
            if not pid_namespace.is_host():
                raise BpfError(errno.ENOTSUP, f"{pid_namespace.REFUSAL}: {pid_namespace.REMEDY}")
            tls = bool(self.node.settings.get("tls"))
            constants = {"all_processes": self._all, "tls": tls}
            self.object = Object(object_path(self.name), constants=constants, without=() if tls else PROGRAMS)
        except BpfError as error:
            newer = " (Linux 6.3 can)" if lacks_tracepoint(error) else ""
            raise not_started(f"requests of LLM servers cannot be followed{newer}", error) from error
        try:
            for program in _PROGRAMS:
                links.append(self.object.programs[program].attach())
        except BpfError as error:
            for link in links:
                link.close()
            self.object.close()
            raise not_started("requests of LLM servers cannot be followed (Linux 6.3 can)", error) from error
        self._links = links
        self._rings = Rings(self.object)
        self._events = Events()
        self._events.add(self.object.maps["requests"], self._received)
        self._events.start("serving events", gather=_GATHER)
        maps = self.object.maps
        if tls:
            self.tls = TlsProbes(self.object.programs, self._follows, self.node.trial.returns_allowed, self.node.proc)
            self.node.targets.want(self.tls)
        changed = self.tls.followed if self.tls else None
        self._following = Following(self.node.proc, maps["processes"], maps["candidates"], changed)
        if not self._all:
            self.node.targets.want(self)
        if self.node.settings.get("engine-metrics"):
            from exporter.serving.engine_numbers import EngineNumbers

            self._engines = EngineNumbers(self.node, self._followed, float(self.node.settings["engine-interval"]))
            self._engines.start()

    def collect(self) -> Iterator[Sample]:
        """Yield the counts of processes within the series limit, then what is known of the losses.

        Raises Unavailable, or BpfError for other failures, where processes of the driver are not searched for.
        """
        if not self._all or self.tls:
            self.node.targets.require()
        if not self._all:
            self._following.refresh()
        self.object.programs["sweep"].run()
        self._events.flush(self.object.maps["requests"])
        with self.ledger.page():
            engines = self._engines.samples() if self._engines else ()
            limited = self._limit.apply((*self._samples(), *engines))
        yield from limited
        rows = sum(1 for _ in self.object.maps["processes"].items())
        yield metrics.FOLLOWED.sample(rows)
        counted = self.object.globals()
        self._rings.update(counted["ring_calls_unread"])
        yield metrics.UNREADABLE.sample(counted["unreadable"])
        yield metrics.UNREAD_CALLS.sample(counted["unread_calls"])
        yield metrics.UNCOUNTED.sample(counted["requests_uncounted"])
        yield metrics.STREAMS_LOST.sample(counted["streams_lost"])
        if self.tls:
            yield from self.tls.collect()
        of_tls = ("tls_connections", "tls_threads") if self.tls else ()
        for name in ("connections", "processes", "http2_connections", "arrivals", "ring_threads", *of_tls):
            yield MAP_FULL.sample(self.object.maps[name].lost() or 0, {"map": f"{self.name}.{name}"})
        yield ENDED_FOLDED.sample(self.ledger.folded, {"collector": self.name})
        yield from self._events.collect()

    def problems(self) -> Iterator[str]:
        """Yield why OpenSSL is not probed, and io_uring and engines' metrics were not read, for the landing page."""
        yield from self._rings.problems()
        if self.tls:
            yield from self.tls.problems()
        if self._engines:
            yield from self._engines.problems()

    def close(self) -> None:
        if self._engines:
            self._engines.close()
        self._following.close()
        self._rings.close()
        for link in self._links:
            link.close()
        self._events.close()
        self.object.close()

    # The processes that use a GPU (exporter.bpf.library.Interest).

    @property
    def symbols(self) -> Collection[str]:
        return GPU_SYMBOLS

    def attach(self, library: Library) -> _Nothing:
        return _Nothing()

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        self._following.started(pid)

    def processes_ended(self, pids: Collection[int]) -> None:
        self._following.ended(pids)

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        self._following.ended(pids)
        return ()

    def _follows(self, pid: int) -> bool:
        return self._all or self.object.maps["processes"].get(pid) is not None

    def _followed(self) -> set[int]:
        return {pid for pid, _ in self.object.maps["processes"].items()}

    # Requests.

    def _received(self, record: answer.RingRecord) -> None:
        """Take a record (union record of bpf/serving/http2.h): called in the thread of the ring buffer."""
        if record.request.kind == answer.REQUEST:
            self._ended(record.request)
            return
        if self._streams is None:
            from exporter.serving.http2 import Streams

            self._streams = Streams()
        self._streams.take(record.fields)

    def _ended(self, record: answer.RequestRecord) -> None:
        """Count a request."""
        pid = record.tgid
        fields = self._streams.pop(record.connection, record.stream) if self._streams else None
        read = answer.read(record, fields)
        if read:
            self._count(pid, record, read, fields)

    def _count(self, pid: int, record: answer.RequestRecord, read: answer.Answer, fields: Fields | None) -> None:
        if fields and fields.traceparent:
            record.traceparent = fields.traceparent[:TRACEPARENT]
        with self._lock:
            activity = self._activities.get(pid)
        if activity is None:
            activity = Activity(engine(self.node.proc, pid))
        with self._lock:
            self._activities.setdefault(pid, activity).add(read)
        if self.node.wants_spans:
            self._span(record, read, activity.engine)

    def _span(self, record: answer.RequestRecord, read: answer.Answer, engine: str) -> None:
        """Make the span of a request. A request without one counts too where links are ambiguous."""
        row, now = self.object.maps["processes"].get(record.tgid), time.monotonic_ns()
        request = served(record, max(0, row.begun - row.ended) if row else 0, now)
        self.node.requests.add(request)
        process = self.node.processes.labels(record.tgid)
        if read.inference and (made := span(record, read, engine, self.node.clock, process, request)):
            self.node.spans(made)

    def _read(self) -> Mapping[int, Activity]:
        with self._lock:
            return dict(self._activities)

    def _take(self, pids: Collection[int]) -> Mapping[int, Activity]:
        with self._lock:
            return {pid: self._activities.pop(pid) for pid in pids if pid in self._activities}

    def _fold(self, process: Process[Activity]) -> None:
        self._limit.retire(self._samples_of(process), RETENTION)

    def _samples(self) -> Iterator[Sample]:
        in_flight = {pid: max(0, it.begun - it.ended) for pid, it in self.object.maps["processes"].items() if it.begun}
        for process in self.ledger.processes():
            yield from self._samples_of(process)
            if not process.ended:
                yield Sample(metrics.IN_FLIGHT, process.labels, in_flight.pop(process.pid, 0), process.since)
        for pid, count in in_flight.items():
            yield Sample(metrics.IN_FLIGHT, self.node.processes.labels(pid), count)

    def _samples_of(self, process: Process[Activity]) -> Iterator[Sample]:
        with self._lock:
            values = list(process.activity.values())
        for metric, value, labels in values:
            yield Sample(metric, {**process.labels, **labels}, value, process.since)
