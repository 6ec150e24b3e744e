"""Supervision of the NVML child, which may hang in a call on a dead GPU, crash, or be refused by the driver."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import psutil

from exporter.background.supervisor import ChildEnd, Supervisor
from exporter.bpf.status import SOURCE_AGE
from exporter.counters import Tally
from exporter.model import Sample
from exporter.nvml import metrics
from exporter.nvml.codes import NO_DRIVER, NO_LIBRARY, OTHER_VERSION, UNINITIALIZED
from exporter.nvml.process import NvmlChild
from exporter.nvml.quarantine import Quarantine
from exporter.nvml.snapshot import (
    FAST,
    ChildOptions,
    Event,
    GpuSnapshot,
    Heartbeat,
    NvmlFailed,
    NvmlStarted,
    Released,
    SetRead,
    decode,
)
from exporter.nvml.state import FRESH, NvmlState

STALLED = 2
"""Fast intervals of silence after which the child counts as stalled; after FRESH of them the child is killed."""
INIT_SECONDS = 60.0
"""Longest time of a start: without persistence mode the start wakes each GPU."""
RELEASE_SECONDS = 3.0

_ABSENT = {NO_LIBRARY: "no_library", NO_DRIVER: "no_driver"}
_FAILED_CODES = {OTHER_VERSION: "driver_replaced", UNINITIALIZED: "uninitialized"}
REASONS = ("stalled", "crashed", "ended", "failed", *_FAILED_CODES.values())

log = logging.getLogger(__name__)


class NvmlSupervisor(Supervisor[NvmlChild]):
    """Supervisor that calls `publish` with every event of NVML. `intervals` are seconds by set of readings."""

    close_seconds = 2.5

    def __init__(self, intervals: Mapping[str, float], publish: Callable[[Event], None]) -> None:
        self._intervals, self._publish = intervals, publish
        patience = FRESH * intervals[FAST]
        super().__init__("nvml", max(INIT_SECONDS, patience), patience)
        self._state = NvmlState(intervals)
        self._quarantine = Quarantine()
        self._ends = Tally(metrics.RESTARTS, REASONS)
        self._stalled = False
        self._doing: int | None = None
        self._failed: NvmlFailed | None = None
        self._calls = self._calls_of_others = 0
        self._hold_until = 0.0
        self._released = threading.Event()

    def snapshot(self) -> GpuSnapshot:
        """Returns the valid readings. Never waits for NVML."""
        now = time.monotonic()
        silent = now - self.last_message
        limit = (FRESH if self.starting else STALLED) * self._intervals[FAST]
        if self.child is not None and silent > limit:
            return self._state.snapshot(now, f"NVML has not answered for {silent:.0f} s")
        return self._state.snapshot(now, "NVML did not answer; a new child process is started" if self._stalled else "")

    def samples(self) -> Iterator[Sample]:
        """Yields the metrics of the source itself."""
        snapshot = self.snapshot()
        for name, age in self._state.ages(time.monotonic()).items():
            yield SOURCE_AGE.sample(age, {"source": f"nvml_{name}"})
        stalled = snapshot.state == "stalled" or any(gpu.state == "stalled" for gpu in snapshot.gpus)
        yield metrics.SOURCE_STALLED.sample(int(stalled), {"source": "nvml"})
        yield metrics.RELEASED.sample(int(snapshot.state == "released"))
        yield metrics.CALLS.sample(self._calls_of_others + self._calls)
        yield metrics.CHILDREN.sample(int(self.child is not None), {"state": "in_use"})
        yield metrics.CHILDREN.sample(self.count_abandoned(), {"state": "abandoned"})
        yield from self._ends.samples()
        child = self.child
        if child is not None:
            with suppress(psutil.Error):
                process = psutil.Process(child.pid)
                yield metrics.RESIDENT.sample(process.memory_info().rss)

    def release(self, seconds: float) -> bool:
        """Closes every handle for `seconds`. Returns False when the child has not confirmed within RELEASE_SECONDS."""
        with self.changing:
            self._hold_until = time.monotonic() + seconds
            self._released.clear()
            child = self.child
        if child is None:
            self._state.released(seconds)
            return True
        child.command(f"release {seconds}")
        return self._released.wait(RELEASE_SECONDS)

    def spawn(self) -> NvmlChild | None:
        """Start a child. Returns None during a release of the GPUs."""
        if time.monotonic() < self._hold_until:
            return None
        self._doing, self._failed = None, None
        self._calls_of_others, self._calls = self._calls_of_others + self._calls, 0
        return NvmlChild(ChildOptions(self._intervals, self._quarantine.indices(), os.getpid()))

    def look(self, child: NvmlChild) -> None:
        for index in self._quarantine.due(time.monotonic()):
            child.command(f"include {index}")

    def receive(self, child: NvmlChild, line: bytes) -> None:
        message = decode(line)
        match message:
            case Heartbeat():
                self._doing, self._calls = message.doing, message.calls
            case NvmlStarted():
                self.starting = self._stalled = False
                self._state.started(message, self._quarantine.indices())
            case SetRead():
                self._state.read(message)
                if message.readings is not None and self._doing is not None:
                    self._quarantine.works(self._doing)
            case Event():
                self._state.event(message)
                self._publish(message)
            case Released():
                self._state.released(message.until - time.monotonic())
                self._released.set()
            case NvmlFailed():
                self._failed = message

    def ended(self, end: ChildEnd, before: ChildEnd) -> None:
        absent = end.reason in _ABSENT.values()
        self._state.ended(end.text, absent)
        if absent:  # no fault; the collector reports NVML as absent
            return
        self._ends.add(end.reason)
        if end.reason != before.reason:
            log.warning("the NVML child is replaced: %s", end.text)

    def stalled(self, silent: float) -> str:
        self._stalled = True
        about = ""
        if self._doing is not None:
            self._quarantine.stalled(self._doing, time.monotonic())
            about = f" about GPU {self._doing}, which is in quarantine now"
        return f"a call did not return for {silent:.0f} s{about}"

    def explain(self, status: int | None) -> ChildEnd:
        failed = self._failed
        if failed is not None:
            return ChildEnd((_ABSENT | _FAILED_CODES).get(failed.code, "failed"), failed.reason)
        return super().explain(status)
