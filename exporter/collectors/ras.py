"""State of jobs as NCCL's RAS subsystem reports it: missing and dead ranks, collectives of each rank."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from exporter.background.poller import Poller
from exporter.bpf import privileges, status
from exporter.counters import Tally
from exporter.loopback import Endpoint
from exporter.model import Metric, Sample
from exporter.node import Node
from exporter.options import Flag
from exporter.ras import metrics
from exporter.ras.client import RasError, endpoint
from exporter.ras.owners import CommunicatorOwners
from exporter.ras.query import listening_process, query, user
from exporter.ras.report import MOST_RANKS, Report, ReportError
from exporter.ras.samples import samples
from exporter.series import SeriesLimit, limit_flag

METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
FLAGS = (
    Flag(
        "interval",
        60.0,
        "Interval between queries to a job, each answered by all its ranks, in seconds.",
        1,
        86_400,
    ),
    Flag("timeout", 10.0, "Time limit of an answer, in seconds.", 1, 600),
    Flag(
        "namespaces",
        False,
        "Enter the network namespaces of containers for queries, which needs CAP_SYS_ADMIN.",
        capability=privileges.ENTERING_NAMESPACES,
    ),
    limit_flag(5_000),
)
MOST_ENDPOINTS = 64
"""Queries of one round at most: no node has the ranks 0 of more jobs."""
KEPT = 3
"""Intervals for which an answer counts: where several jobs share a port, only one of them answers at a time."""
log = logging.getLogger(__name__)


def create(node: Node) -> Ras:
    return Ras(node)


@dataclass(frozen=True, slots=True)
class _Answer:
    report: Report
    at: float


class Ras:
    """Queries RAS in the background; a scrape shows the last reports."""

    name = "ras"

    def __init__(self, node: Node) -> None:
        self.node = node
        self._interval, self._timeout = float(node.settings["interval"]), float(node.settings["timeout"])
        self._limit = SeriesLimit(self.name, node.settings["series-limit"], profile=node.profile)
        self._queries = Tally(metrics.QUERIES, ("answered", "failed"))
        self._owners = CommunicatorOwners()
        self._answers: dict[Endpoint, _Answer] = {}
        self._failures: dict[str, None] = {}
        self._lock = threading.Lock()
        self._poller = Poller("ras", self._round, self._interval, first_after=self._interval)

    def start(self) -> None:
        self._poller.start()

    def collect(self) -> Iterator[Sample]:
        now = time.monotonic()
        with self._lock:
            answers = dict(self._answers)
        yield from self._limit.apply(samples(_newest(answers.values(), now - KEPT * self._interval)))
        yield from self._queries.samples()
        if answers:
            yield status.SOURCE_AGE.sample(now - min(answer.at for answer in answers.values()), {"source": "nccl_ras"})

    def problems(self) -> Iterator[str]:
        """Yield the reasons why the last queries failed, for the landing page."""
        with self._lock:
            yield from self._failures

    def close(self) -> None:
        self._poller.close(1.0)

    def _round(self) -> None:
        """Query each job once: one query an endpoint, however many processes share the endpoint."""
        failures: dict[str, None] = {}
        endpoints: dict[Endpoint, list[int]] = {}
        self._owners.update(self.node.communicators.all(), self._user)
        for pid in self.node.communicators.rank_zero_pids():
            try:
                endpoints.setdefault(endpoint(self.node.proc, pid), []).append(pid)
            except RasError as error:
                failures[str(error)] = None
        for at, pids in list(endpoints.items())[:MOST_ENDPOINTS]:
            if self._poller.closing.is_set():
                return
            if failure := self._query(at, pids):
                failures[failure] = None
        kept = time.monotonic() - KEPT * self._interval
        with self._lock:
            for failure in failures.keys() - self._failures.keys():
                log.info("%s", failure)
            self._failures = failures
            self._answers = {at: answer for at, answer in self._answers.items() if answer.at >= kept}

    def _user(self, pid: int) -> int | None:
        with suppress(RasError):
            return user(self.node.proc, pid)
        return None

    def _query(self, at: Endpoint, pids: list[int]) -> str:
        """Query an endpoint for the first of the processes that has the listener's user.

        Returns an empty string, or the reason why there is no report.
        """
        try:
            pid = listening_process(self.node.proc, at, pids)
            own = {member.comm_hash for member in self.node.communicators.all() if member.pid == pid}
            found = query(self.node.proc, pid, at, self._timeout)
            report = self._owners.trusted(found, user(self.node.proc, pid), own)
            if report is None:
                raise RasError(f"the listener at port {at.port} of process {pid} reports on another job")
        except (RasError, ReportError) as error:
            self._queries.add("failed")
            return str(error)
        self._queries.add("answered")
        with self._lock:
            self._answers = _bounded({**self._answers, at: _Answer(report, time.monotonic())})
        return ""


def _bounded(answers: dict[Endpoint, _Answer]) -> dict[Endpoint, _Answer]:
    """Return the newest answers with at most MOST_RANKS ranks together."""
    kept, ranks = {}, 0
    for at, answer in sorted(answers.items(), key=lambda pair: -pair[1].at):
        ranks += sum(len(comm.ranks) + len(comm.missing_ranks) for comm in answer.report.communicators)
        if ranks <= MOST_RANKS:
            kept[at] = answer
    return kept


def _newest(answers: Iterable[_Answer], since: float) -> list[Report]:
    """Return the reports since a monotonic time; a communicator in several reports stays in the newest only."""
    known: set[str] = set()
    found: list[Report] = []
    for answer in sorted((answer for answer in answers if answer.at >= since), key=lambda answer: -answer.at):
        own = tuple(comm for comm in answer.report.communicators if comm.comm_hash not in known)
        known |= {comm.comm_hash for comm in own}
        found.append(replace(answer.report, communicators=own))
    return found
