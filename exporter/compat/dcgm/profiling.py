"""Readings of DCGM, which a child process reads and sends."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from exporter.background.child import ChildProcess
from exporter.background.supervisor import LONGEST_PAUSE, ChildEnd, Supervisor
from exporter.compat.dcgm.engine import NAMES, EngineOptions, ProfilingReading, decode
from exporter.compat.dcgm.fields import FIELDS
from exporter.nvml.snapshot import Readings, Values

FRESH = 3
"""Number of intervals for which a reading is valid; a child that is silent for longer is killed."""
START_SECONDS = 60.0
"""Longest time of DCGM's start."""

_BACK = {field.name: (field.key, field.convert(1) if field.convert else 1) for field in FIELDS if field.field_id}
"""By name of a profiling field: the key of NVML's reading, and the factor from that reading to the field."""

log = logging.getLogger(__name__)


class DcgmProfiling(Supervisor[ChildProcess]):
    """Supervisor of the child that reads DCGM. `bindings` is the folder of pydcgm.py. Thread-safe."""

    settled_seconds = LONGEST_PAUSE

    def __init__(self, bindings: Path, host_engine: str, interval: float) -> None:
        super().__init__("dcgm", max(START_SECONDS, FRESH * interval), FRESH * interval)
        self._bindings, self._interval = bindings, interval
        self._options = EngineOptions(host_engine, tuple(NAMES), interval, os.getpid())
        self._reading: ProfilingReading | None = None
        self.failure = "DCGM has not answered yet"
        """Reason why there are no values; empty while there are."""

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

    def spawn(self) -> ChildProcess:
        return ChildProcess("exporter.compat.dcgm.engine", json.dumps(asdict(self._options)), [self._bindings])

    def receive(self, child: ChildProcess, line: bytes) -> ChildEnd | None:
        reading = decode(line)
        if reading.problem:
            return ChildEnd("failed", reading.problem)
        self._reading, self.failure, self.starting = reading, "", False
        return None

    def ended(self, end: ChildEnd, before: ChildEnd) -> None:
        self.failure = end.text
        if end.text != before.text:
            log.warning("DCGM cannot be read: %s", end.text)

    def stalled(self, silent: float) -> str:
        return f"DCGM has not answered for {silent:.0f} s"

    def explain(self, status: int | None) -> ChildEnd:
        return ChildEnd("crashed", "the child crashed or was killed")
