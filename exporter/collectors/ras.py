"""What NCCL itself knows of its jobs: ranks that are missing or dead, how far each one is (its RAS subsystem)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from exporter.bpf import status
from exporter.counters import Tally
from exporter.model import Metric, Sample
from exporter.node import Node
from exporter.options import Flag
from exporter.ras import metrics
from exporter.ras.ask import Door, RasError, door
from exporter.ras.owners import Owners
from exporter.ras.query import query, speaker, user
from exporter.ras.report import MOST_RANKS, Report, ReportError
from exporter.ras.samples import samples
from exporter.series import SeriesLimit, limit_flag

METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
FLAGS = (
    Flag("interval", 60.0, "Seconds between two questions to a job: each makes all its ranks answer.", 1, 86_400),
    Flag("timeout", 10.0, "Seconds to wait for an answer.", 1, 600),
    Flag("namespaces", False, "Enter the network namespaces of containers to ask; keeps CAP_SYS_ADMIN for it."),
    limit_flag(5_000),
)
MOST_DOORS = 64
"""Asked in one round: more jobs than that have no ranks 0 on one node."""
KEPT = 3
"""Intervals that an answer counts for: where several jobs share a port, only one of them answers at a time."""
log = logging.getLogger(__name__)


def create(node: Node) -> Ras:
    return Ras(node)


@dataclass(frozen=True, slots=True)
class _Answer:
    report: Report
    at: float


class Ras:
    """Asks in the background; a scrape shows the last answers."""

    name = "ras"

    def __init__(self, node: Node) -> None:
        self._node = node
        self._interval, self._timeout = float(node.settings["interval"]), float(node.settings["timeout"])
        self._limit = SeriesLimit(self.name, node.settings["series-limit"])
        self._asked = Tally(metrics.QUERIES, ("answered", "failed"))
        self._owners = Owners()
        self._answers: dict[Door, _Answer] = {}
        self._failures: dict[str, None] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ras", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def collect(self) -> Iterator[Sample]:
        now = time.monotonic()
        with self._lock:
            answers = dict(self._answers)
        yield from self._limit.apply(samples(_newest(answers.values(), now - KEPT * self._interval)))
        yield from self._asked.samples()
        if answers:
            yield status.SOURCE_AGE.sample(now - min(it.at for it in answers.values()), {"source": "nccl_ras"})

    def problems(self) -> Iterator[str]:
        """For the landing page: why jobs were not asked, or did not answer, the last time."""
        with self._lock:
            yield from self._failures

    def close(self) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(1)

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            try:
                self._round()
            except Exception:
                log.exception("asking RAS failed; it is tried again")

    def _round(self) -> None:
        """Asks each job once: one question a door, however many processes share it."""
        failures: dict[str, None] = {}
        doors: dict[Door, list[int]] = {}
        self._owners.see(self._node.communicators.all(), self._user)
        for pid in self._node.communicators.speakers():
            try:
                doors.setdefault(door(self._node.proc, pid), []).append(pid)
            except RasError as error:
                failures[str(error)] = None
        for at, pids in list(doors.items())[:MOST_DOORS]:
            if self._closing.is_set():
                return
            if failure := self._ask(at, pids):
                failures[failure] = None
        kept = time.monotonic() - KEPT * self._interval
        with self._lock:
            for failure in failures.keys() - self._failures.keys():
                log.info("%s", failure)
            self._failures = failures
            self._answers = {at: it for at, it in self._answers.items() if it.at >= kept}

    def _user(self, pid: int) -> int | None:
        with suppress(RasError):
            return user(self._node.proc, pid)
        return None

    def _ask(self, at: Door, pids: list[int]) -> str:
        """Asks the first of the processes that is of the user who listens. Empty when it answered, else why not."""
        try:
            pid = speaker(self._node.proc, at, pids)
            own = {it.comm_hash for it in self._node.communicators.all() if it.pid == pid}
            found = query(self._node.proc, pid, at, self._timeout)
            report = self._owners.believed(found, user(self._node.proc, pid), own)
            if report is None:
                raise RasError(f"what listens at port {at.port} of process {pid} answers about another job")
        except (RasError, ReportError) as error:
            self._asked.add("failed")
            return str(error)
        self._asked.add("answered")
        with self._lock:
            self._answers = _bounded({**self._answers, at: _Answer(report, time.monotonic())})
        return ""


def _bounded(answers: dict[Door, _Answer]) -> dict[Door, _Answer]:
    """The newest answers that have no more ranks together than one may have."""
    kept, ranks = {}, 0
    for at, it in sorted(answers.items(), key=lambda pair: -pair[1].at):
        ranks += sum(len(comm.ranks) + len(comm.missing_ranks) for comm in it.report.communicators)
        if ranks <= MOST_RANKS:
            kept[at] = it
    return kept


def _newest(answers: Iterable[_Answer], since: float) -> list[Report]:
    """The reports that still count; of a communicator that several tell of, only the newest tells."""
    told: set[str] = set()
    found: list[Report] = []
    for it in sorted((it for it in answers if it.at >= since), key=lambda it: -it.at):
        own = tuple(comm for comm in it.report.communicators if comm.comm_hash not in told)
        told |= {comm.comm_hash for comm in own}
        found.append(replace(it.report, communicators=own))
    return found
