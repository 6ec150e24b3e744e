"""Supervision of one child that reads DCGM. A child that hangs is replaced after a pause that grows each time."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from exporter.background.child import ChildProcess
from exporter.dcgm.engine import NAMES, EngineOptions, ProfilingReading, decode
from exporter.dcgm.fields import FIELDS
from exporter.nvml.snapshot import Readings, Values

FRESH = 3
"""Number of intervals for which a reading is valid; a child that is silent for longer is killed."""
START_SECONDS = 60.0
"""Longest time of DCGM's start."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
MOST_ABANDONED = 1
_CLOSE_SECONDS = 2.0

_BACK = {field.name: (field.key, field.convert(1) if field.convert else 1) for field in FIELDS if field.field_id}
"""By name of a profiling field: the key of NVML's reading, and the factor from that reading to the field."""

log = logging.getLogger(__name__)


class Profiling:
    """Supervisor with a thread of its own. `bindings` is the folder of pydcgm.py. Thread-safe."""

    def __init__(
        self,
        bindings: Path,
        host_engine: str,
        interval: float,
        spawn: Callable[[EngineOptions, Path], ChildProcess] | None = None,
    ) -> None:
        self._bindings, self._interval = bindings, interval
        self._options = EngineOptions(host_engine, tuple(NAMES), interval, os.getpid())
        self._spawn = spawn or _spawn
        self._reading: ProfilingReading | None = None
        self._abandoned: list[ChildProcess] = []
        self.failure = "DCGM has not answered yet"
        """Reason why there are no values; empty while there are."""
        self._child: ChildProcess | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dcgm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the child; kills a child that does not end."""
        self._closing.set()
        child = self._child
        if child is not None:
            child.hang_up()
        self._thread.join(_CLOSE_SECONDS + 1)

    def values(self, uuid: str) -> Values:
        """Returns DCGM's newest values of a GPU, by field name; no values when the reading is too old."""
        return self._fresh().get(uuid, {})

    def readings(self) -> Mapping[str, Readings]:
        """Returns the values by UUID, in keys and units of NVML's readings, for Gpus.supplement."""
        reading = self._reading
        return {
            uuid: Readings(
                reading.at if reading else 0.0, {_BACK[name][0]: value / _BACK[name][1] for name, value in own.items()}
            )
            for uuid, own in self._fresh().items()
        }

    def age(self) -> float | None:
        """Returns the seconds since the newest reading; None before the first."""
        reading = self._reading
        return time.monotonic() - reading.at if reading else None

    def _fresh(self) -> Mapping[str, Mapping[str, int | float]]:
        reading = self._reading
        return reading.values if reading and time.monotonic() - reading.at <= FRESH * self._interval else {}

    def _run(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._closing.is_set():
            began, logged = time.monotonic(), self.failure
            failure = self._run_child()
            if self._closing.is_set():
                return
            self.failure = failure
            if failure != logged:
                log.warning("DCGM cannot be read: %s", failure)
            if time.monotonic() - began > LONGEST_PAUSE:
                pause = SHORTEST_PAUSE
            self._closing.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            while not self._closing.is_set() and self._count_abandoned() > MOST_ABANDONED:
                self._closing.wait(1.0)

    def _count_abandoned(self) -> int:
        self._abandoned = [child for child in self._abandoned if child.ended() is None]
        return len(self._abandoned)

    def _run_child(self) -> str:
        """Runs one child from start to end. Returns the reason of the end."""
        try:
            self._child = child = self._spawn(self._options, self._bindings)
        except OSError as error:
            return f"no child can be started: {error}"
        try:
            return self._follow(child)
        finally:
            self._child = None
            if not child.kill():
                self._abandoned.append(child)

    def _follow(self, child: ChildProcess) -> str:
        last_message, limit = time.monotonic(), max(START_SECONDS, FRESH * self._interval)
        close_at = 0.0
        while True:
            now = time.monotonic()
            if self._closing.is_set() and not close_at:
                child.hang_up()
                close_at = now + _CLOSE_SECONDS
            if close_at and now > close_at:
                return "the child did not end on request"
            if now - last_message > limit:
                return f"DCGM has not answered for {now - last_message:.0f} s"
            try:
                lines = child.lines(0.5)
                for reading in map(decode, lines or ()):
                    if reading.problem:
                        return reading.problem
                    self._reading, self.failure = reading, ""
            except ValueError as error:
                return f"the child sent an invalid message: {error}"
            if lines is None:
                return "the child crashed or was killed"
            if lines:
                last_message, limit = time.monotonic(), FRESH * self._interval


def _spawn(options: EngineOptions, bindings: Path) -> ChildProcess:
    return ChildProcess("exporter.dcgm.engine", json.dumps(asdict(options)), [bindings])
