"""A custom probe as it runs: a child process compiles, loads and reads the probe, and is replaced when it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import psutil

from exporter.background.supervisor import ChildEnd, Supervisor
from exporter.counters import Tally
from exporter.custom import metrics, shapes
from exporter.custom.attach import Attacher
from exporter.custom.child import Options, ProbeChild
from exporter.custom.folder import ProbeSource
from exporter.custom.messages import Failed, Read, Records, RowsMessage, Shape, Started, decode
from exporter.custom.programs import CompiledPrograms

START_SECONDS = 90.0
"""Longest time of compiling and loading, on a busy node too."""
SILENT_INTERVALS, SILENT_SECONDS = 5, 10.0
"""A child is killed after a silence of so many intervals of reading, and of so many seconds."""
MOST_DETAILS = 2_000
_TURN_SECONDS = 1.0
"""Longest wait for other probes to compile, before the probe's end is checked for."""
REASONS = ("refused", "failed", "crashed", "ended", "stalled")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """State of a probe. `rows` are those of the last reading, at `at` (time.monotonic); none before the first."""

    problem: str = "it is not started yet"
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    tracepoints: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, RowsMessage] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    limited: int = 0
    at: float = 0.0


class Probe(Supervisor[ProbeChild]):
    """Supervisor of a probe's child.

    One child compiles at a time: probes share `compiling`. `publish` is called with records, in this probe's thread.
    """

    subject = "its process"
    close_seconds = 1.0

    def __init__(
        self,
        source: ProbeSource,
        options: Options,
        attacher: Attacher,
        compiling: threading.Semaphore,
        publish: Callable[[Records, Shape], None],
    ) -> None:
        self.definition = source.definition
        super().__init__(
            f"custom {self.definition.name}",
            START_SECONDS,
            max(SILENT_SECONDS, SILENT_INTERVALS * options.interval),
        )
        self._source, self._options, self.attacher = source, options, attacher
        self._compiling, self._publish = compiling, publish
        self._compiles = ExitStack()
        """Holds `compiling` while this probe's child starts."""
        self._ends = Tally(metrics.STARTS, REASONS)
        self._failed: Failed | None = None
        self._rows: dict[str, RowsMessage] = {}
        self._cpu = self._cpu_before = 0.0
        self.view = View()
        self.settled = threading.Event()
        """Set at the first reading of the maps, and at the end of a child: whether the probe works is known."""

    def ends(self) -> Mapping[str, int]:
        return {reason: self._ends[reason] for reason in REASONS}

    def process(self) -> tuple[int | None, float]:
        """Return the resident bytes of the child, None without one, and the CPU seconds of all children so far."""
        child = self.child
        if child is not None:
            with suppress(psutil.Error):
                process = psutil.Process(child.pid)
                times = process.cpu_times()
                self._cpu = times.user + times.system
                return process.memory_info().rss, self._cpu_before + self._cpu
        return None, self._cpu_before + self._cpu

    def spawn(self) -> ProbeChild | None:
        """Start a child, once no other probe compiles. Returns None when the probe is closed before."""
        self._rows, self._failed = {}, None
        self._cpu_before, self._cpu = self._cpu_before + self._cpu, 0.0
        while not self.closing.is_set():
            if self._compiling.acquire(timeout=_TURN_SECONDS):
                self._compiles.callback(self._compiling.release)
                return self._compile()
        return None

    def _compile(self) -> ProbeChild:
        try:
            return ProbeChild(self._source, self._options)
        except BaseException:
            self._compiles.close()
            raise

    def receive(self, child: ProbeChild, line: bytes) -> ChildEnd | None:
        message, view = decode(line), self.view
        if isinstance(message, Started):
            return self._started(child, message)
        if isinstance(message, Failed):
            self._failed = message
        elif isinstance(message, RowsMessage):
            self._rows[message.map] = message
        elif isinstance(message, Records):
            self._publish(message, view.shapes[message.buffer])
        elif isinstance(message, Read):
            lost, limited = message.lost, message.limited
            self.view = View("", view.shapes, view.tracepoints, dict(self._rows), lost, limited, time.monotonic())
            self.settled.set()
        return None

    def drop(self) -> None:
        self._compiles.close()
        self.attacher.drop()
        self.process()

    def ended(self, end: ChildEnd, before: ChildEnd) -> None:
        self.view = View(end.text)
        self._ends.add(end.reason)
        self.settled.set()
        if end.text != before.text:
            log.warning("the custom probe %s does not run: %s", self.definition.name, end.text)

    def refused(self, error: OSError) -> str:
        return f"{self._options.python} cannot be started: {error.strerror or error}"

    def explain(self, status: int | None) -> ChildEnd:
        failed = self._failed
        if failed is None:
            return super().explain(status)
        details = failed.details[:MOST_DETAILS].strip()
        return ChildEnd("refused", f"{failed.reason}\n{details}" if details else failed.reason)

    def _started(self, child: ProbeChild, message: Started) -> ChildEnd | None:
        count = len(message.programs) + bool(self.definition.usdt)
        held = CompiledPrograms(message.programs, child.descriptors(count) if count else [])
        if problem := shapes.mismatch(self.definition, message.shapes):
            held.close()
            return ChildEnd("refused", problem)
        self.attacher.use(held)
        self.view = View("", message.shapes, message.tracepoints)
        self.starting = False
        self._compiles.close()
        return None
