"""One custom probe as it runs: keeps a child compiling and reading, notices how it ends, and starts the next one."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from exporter.counters import Tally
from exporter.custom import metrics, shapes
from exporter.custom.attach import Attacher
from exporter.custom.child import Child, Options
from exporter.custom.folder import Source
from exporter.custom.messages import Failed, Read, Records, Rows, Shape, Started, decode
from exporter.custom.programs import Programs

START_SECONDS = 90.0
"""So long compiling and loading may take, on a busy node too."""
SILENT_INTERVALS, SILENT_SECONDS = 5, 10.0
"""A child that says nothing for so many intervals of reading, and so long, is given up."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
SETTLED_SECONDS = 60.0
CLOSE_SECONDS = 1.0
MOST_DETAILS = 2_000
REASONS = ("refused", "failed", "crashed", "ended", "stalled")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """What is known of a probe. `rows` are what was read last, at `at` (time.monotonic); nothing before the first."""

    problem: str = "it is not started yet"
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    tracepoints: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    limited: int = 0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class _End:
    reason: str
    text: str


class Probe:
    """`compiling` is shared by all probes: one compiles at a time. `tell` gets records, in this one's thread."""

    def __init__(
        self,
        source: Source,
        options: Options,
        attacher: Attacher,
        compiling: threading.Semaphore,
        tell: Callable[[Records, Shape], None],
        spawn: Callable[[Source, Options], Child] = Child,
    ) -> None:
        self.definition = source.definition
        self._source, self._options, self.attacher = source, options, attacher
        self._compiling, self._tell, self._spawn = compiling, tell, spawn
        self._ends = Tally(metrics.STARTS, REASONS)
        self._child: Child | None = None
        self._rows: dict[str, Rows] = {}
        self._cpu = self._cpu_before = 0.0
        self.view = View()
        self.settled = threading.Event()
        """Set once it is known whether it works: maps were read, or a child has ended."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"custom {self.definition.name}"[:15], daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the child; Targets has detached before."""
        self._closing.set()
        child = self._child
        if child is not None:
            child.hang_up()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS + 2)

    def ends(self) -> Mapping[str, int]:
        return {reason: self._ends[reason] for reason in REASONS}

    def process(self) -> tuple[int | None, float]:
        """Resident bytes of the child (None: there is none now) and seconds of CPU of all there were."""
        child = self._child
        if child is not None:
            with suppress(psutil.Error):
                process = psutil.Process(child.pid)
                times = process.cpu_times()
                self._cpu = times.user + times.system
                return process.memory_info().rss, self._cpu_before + self._cpu
        return None, self._cpu_before + self._cpu

    def _run(self) -> None:
        pause, said = SHORTEST_PAUSE, ""
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                end = self._live()
            except Exception as error:  # nobody else would start the next one
                log.exception("the custom probe %s failed; it is tried again", self.definition.name)
                end = _End("failed", f"{type(error).__name__}: {error}")
            if self._closing.is_set():
                return
            self.view = View(end.text)
            self._ends.add(end.reason)
            self.settled.set()
            if time.monotonic() - began > SETTLED_SECONDS:
                pause = SHORTEST_PAUSE
            if end.text != said:
                log.warning("the custom probe %s does not run: %s", self.definition.name, end.text)
            said = end.text
            self._closing.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _live(self) -> _End:
        """One child, from its start to its end."""
        self._rows = {}
        with self._compiling:
            if self._closing.is_set():
                return _End("ended", "")
            try:
                child = self._child = self._spawn(self._source, self._options)
            except OSError as error:
                return _End("failed", f"{self._options.python} cannot be started: {error.strerror or error}")
            try:
                end = self._follow(child, until_started=True)
            except BaseException:
                child.kill()
                raise
        try:
            return end or self._follow(child, until_started=False) or _End("ended", "")
        finally:
            self.attacher.drop()
            self.process()
            child.kill()
            self._child = None
            self._cpu_before, self._cpu = self._cpu_before + self._cpu, 0.0

    def _follow(self, child: Child, until_started: bool) -> _End | None:
        """How it ended; None once it has started, if only that is waited for."""
        heard, failed = time.monotonic(), None
        patience = START_SECONDS if until_started else max(SILENT_SECONDS, SILENT_INTERVALS * self._options.interval)
        close_at = float("inf")
        while True:
            now = time.monotonic()
            if self._closing.is_set() and close_at == float("inf"):
                close_at = now + CLOSE_SECONDS
                child.hang_up()
            if now > close_at:
                return _End("ended", "")
            if now - heard > patience:
                return _End("stalled", f"its process said nothing for {patience:.0f} s")
            try:
                lines = child.lines(0.5)
                for line in lines or ():
                    message = decode(line)
                    if isinstance(message, Started):
                        if refusal := self._started(child, message):
                            return refusal
                    elif isinstance(message, Failed):
                        failed = message
                    else:
                        self._apply(message)
            except (ValueError, OSError, KeyError, TypeError) as error:
                return _End("failed", f"its process talks nonsense: {error}")
            if lines is None:
                return _explain(child, failed)
            if lines:
                heard = time.monotonic()
            if until_started and self.view.shapes:
                return None

    def _started(self, child: Child, message: Started) -> _End | None:
        count = len(message.programs) + bool(self.definition.usdt)
        held = Programs(message.programs, child.descriptors(count) if count else [])
        if problem := shapes.mismatch(self.definition, message.shapes):
            held.close()
            return _End("refused", problem)
        self.attacher.use(held)
        self.view = View("", message.shapes, message.tracepoints)
        return None

    def _apply(self, message: object) -> None:
        view = self.view
        if isinstance(message, Rows):
            self._rows[message.map] = message
        elif isinstance(message, Records):
            self._tell(message, view.shapes[message.buffer])
        elif isinstance(message, Read):
            lost, limited = message.lost, message.limited
            self.view = View("", view.shapes, view.tracepoints, dict(self._rows), lost, limited, time.monotonic())
            self.settled.set()


def _explain(child: Child, failed: Failed | None) -> _End:
    """Why it ended by itself."""
    child.kill()
    status = child.ended()
    if failed is not None:
        details = failed.details[:MOST_DETAILS].strip()
        return _End("refused", f"{failed.reason}\n{details}" if details else failed.reason)
    if status is not None and status < 0:
        return _End("crashed", f"its process crashed: {signal.strsignal(-status)}")
    return _End("ended", f"its process ended with status {status}")
