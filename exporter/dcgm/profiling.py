"""Keeps one child asking DCGM, and what it told last. A child that hangs is given up and replaced, later each time."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from exporter.child import ChildProcess
from exporter.dcgm.engine import NAMES, Asked, Told, decode
from exporter.dcgm.fields import FIELDS
from exporter.nvml.snapshot import Readings, Values

FRESH = 3
"""A reading counts for so many intervals; a child that is silent for longer is given up."""
START_SECONDS = 60.0
"""So long DCGM may take to start."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
MOST_ABANDONED = 1
_CLOSE_SECONDS = 2.0

_BACK = {field.name: (field.key, field.convert(1) if field.convert else 1) for field in FIELDS if field.id}
"""By the name of a profiling field: the key of NVML's reading, and by how much that has to be multiplied to be it."""

log = logging.getLogger(__name__)


class Profiling:
    """`bindings` is the folder of pydcgm.py. Safe from any thread."""

    def __init__(
        self,
        bindings: Path,
        host_engine: str,
        interval: float,
        spawn: Callable[[Asked, Path], ChildProcess] | None = None,
    ) -> None:
        self._bindings, self._interval = bindings, interval
        self._asked = Asked(host_engine, tuple(NAMES), interval, os.getpid())
        self._spawn = spawn or _spawn
        self._told: Told | None = None
        self._abandoned: list[ChildProcess] = []
        self.failure = "DCGM has not answered yet"
        """Why nothing is known; empty while something is."""
        self._child: ChildProcess | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dcgm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the child, by force if it does not listen."""
        self._closing.set()
        child = self._child
        if child is not None:
            child.hang_up()
        self._thread.join(_CLOSE_SECONDS + 1)

    def values(self, uuid: str) -> Values:
        """What DCGM said of a GPU last, by the field's name; nothing when that is too long ago."""
        return self._fresh().get(uuid, {})

    def readings(self) -> Mapping[str, Readings]:
        """The same by UUID as NVML would have said it, for a snapshot's supplement."""
        told = self._told
        return {
            uuid: Readings(
                told.at if told else 0.0, {_BACK[name][0]: value / _BACK[name][1] for name, value in own.items()}
            )
            for uuid, own in self._fresh().items()
        }

    def age(self) -> float | None:
        """Seconds since DCGM told anything; None before the first time."""
        told = self._told
        return time.monotonic() - told.at if told else None

    def _fresh(self) -> Mapping[str, Mapping[str, int | float]]:
        told = self._told
        return told.values if told and time.monotonic() - told.at <= FRESH * self._interval else {}

    def _run(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._closing.is_set():
            began, said = time.monotonic(), self.failure
            failure = self._live()
            if self._closing.is_set():
                return
            self.failure = failure
            if failure != said:
                log.warning("DCGM cannot be asked: %s", failure)
            if time.monotonic() - began > LONGEST_PAUSE:
                pause = SHORTEST_PAUSE
            self._closing.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            while not self._closing.is_set() and self._still_there() > MOST_ABANDONED:
                self._closing.wait(1.0)

    def _still_there(self) -> int:
        self._abandoned = [child for child in self._abandoned if child.ended() is None]
        return len(self._abandoned)

    def _live(self) -> str:
        """One child, from its start to its end; why it ended."""
        self._child = child = self._spawn(self._asked, self._bindings)
        try:
            return self._follow(child)
        finally:
            self._child = None
            if not child.kill():
                self._abandoned.append(child)

    def _follow(self, child: ChildProcess) -> str:
        heard, patience = time.monotonic(), max(START_SECONDS, FRESH * self._interval)
        close_at = 0.0
        while True:
            now = time.monotonic()
            if self._closing.is_set() and not close_at:
                child.hang_up()
                close_at = now + _CLOSE_SECONDS
            if close_at and now > close_at:
                return "it did not end when it was told to"
            if now - heard > patience:
                return f"it has not answered for {now - heard:.0f} s"
            try:
                lines = child.lines(0.5)
                for told in map(decode, lines or ()):
                    if told.problem:
                        return told.problem
                    self._told, self.failure = told, ""
            except ValueError as error:
                return f"it talks nonsense: {error}"
            if lines is None:
                return "its process crashed or was killed"
            if lines:
                heard, patience = time.monotonic(), FRESH * self._interval


def _spawn(asked: Asked, bindings: Path) -> ChildProcess:
    return ChildProcess("exporter.dcgm.engine", json.dumps(asdict(asked)), [bindings])
