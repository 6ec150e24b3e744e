"""What NCCL itself knows of its jobs: ranks that are missing or dead, how far each one is (its RAS subsystem)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from exporter.bpf import status
from exporter.counters import Tally
from exporter.model import Metric, Sample
from exporter.node import Node
from exporter.options import Flag
from exporter.ras import metrics
from exporter.ras.ask import Door, RasError, ask, door
from exporter.ras.report import Report, ReportError, parse
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
        doors: dict[Door, int] = {}
        for pid in self._node.communicators.speakers():
            try:
                doors.setdefault(door(self._node.proc, pid), pid)
            except RasError as error:
                failures[str(error)] = None
        for at, pid in list(doors.items())[:MOST_DOORS]:
            if self._closing.is_set():
                return
            if failure := self._ask(at, pid):
                failures[failure] = None
        kept = time.monotonic() - KEPT * self._interval
        with self._lock:
            for failure in failures.keys() - self._failures.keys():
                log.info("%s", failure)
            self._failures = failures
            self._answers = {at: it for at, it in self._answers.items() if it.at >= kept}

    def _ask(self, at: Door, pid: int) -> str:
        """Empty when it answered, else why not."""
        try:
            report = parse(ask(self._node.proc, pid, at, self._timeout))
        except (RasError, ReportError) as error:
            self._asked.add("failed")
            return str(error)
        self._asked.add("answered")
        with self._lock:
            self._answers[at] = _Answer(report, time.monotonic())
        return ""


def _newest(answers: Iterable[_Answer], since: float) -> list[Report]:
    """The reports that still count; of a communicator that several tell of, only the newest tells."""
    told: set[str] = set()
    found: list[Report] = []
    for it in sorted((it for it in answers if it.at >= since), key=lambda it: -it.at):
        own = tuple(comm for comm in it.report.communicators if comm.comm_hash not in told)
        told |= {comm.comm_hash for comm in own}
        found.append(replace(it.report, communicators=own))
    return found
