"""Supervision of the NVML child: a child that hangs, crashes or is refused by the driver is replaced.

A child that hangs in a call on a dead GPU may survive a kill. Such a child is abandoned, and one replacement is
started; never more than one, however long the first child stays.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

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
    Heartbeat,
    Message,
    NvmlFailed,
    NvmlStarted,
    Released,
    SetRead,
    Snapshot,
    decode,
)
from exporter.nvml.state import FRESH, NvmlState

STALLED = 2
"""Fast intervals of silence after which the child counts as stalled; after FRESH of them the child is killed."""
INIT_SECONDS = 60.0
"""Longest time of a start: without persistence mode the start wakes each GPU."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
SETTLED_SECONDS = 60.0
"""Lifetime of a child after which the next pause is the shortest again."""
CLOSE_SECONDS = 2.5
RELEASE_SECONDS = 3.0
MOST_ABANDONED = 1

_ABSENT = {NO_LIBRARY: "no_library", NO_DRIVER: "no_driver"}
_FAILED_CODES = {OTHER_VERSION: "driver_replaced", UNINITIALIZED: "uninitialized"}
REASONS = ("stalled", "crashed", "ended", "failed", *_FAILED_CODES.values())

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ChildEnd:
    """End of a child: one of REASONS or of _ABSENT, and a sentence."""

    reason: str
    text: str

    @property
    def absent(self) -> bool:
        """Whether there is no NVML, which is no fault."""
        return self.reason in _ABSENT.values()


class Supervisor:
    """Supervisor with a thread of its own, which calls `publish` with every event and `spawn` to start a child."""

    def __init__(
        self,
        intervals: Mapping[str, float],
        publish: Callable[[Event], None],
        spawn: Callable[[ChildOptions], NvmlChild] = NvmlChild,
    ) -> None:
        self._intervals, self._publish, self._spawn = intervals, publish, spawn
        self._state = NvmlState(intervals)
        self._quarantine = Quarantine()
        self._ends = Tally(metrics.RESTARTS, REASONS)
        self._child: NvmlChild | None = None
        self._abandoned: list[NvmlChild] = []
        self._starting, self._stalled = True, False
        self._last_message = time.monotonic()
        self._doing: int | None = None
        self._failed: NvmlFailed | None = None
        self._calls = self._calls_of_others = 0
        self._hold_until = 0.0
        self._changing = threading.Lock()
        """Held while a child is started, so that none starts after a request to release the GPUs."""
        self._released, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """Returns the valid readings. Never waits for NVML."""
        now = time.monotonic()
        silent = now - self._last_message
        limit = (FRESH if self._starting else STALLED) * self._intervals[FAST]
        if self._child is not None and silent > limit:
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
        yield metrics.CHILDREN.sample(int(self._child is not None), {"state": "in_use"})
        yield metrics.CHILDREN.sample(self._count_abandoned(), {"state": "abandoned"})
        yield from self._ends.samples()
        child = self._child
        if child is not None:
            with suppress(psutil.Error):
                process = psutil.Process(child.pid)
                yield metrics.RESIDENT.sample(process.memory_info().rss)

    def release(self, seconds: float) -> bool:
        """Closes every handle for `seconds`. Returns False when the child has not confirmed within RELEASE_SECONDS."""
        with self._changing:
            self._hold_until = time.monotonic() + seconds
            self._released.clear()
            child = self._child
        if child is None:
            self._state.released(seconds)
            return True
        child.command(f"release {seconds}")
        return self._released.wait(RELEASE_SECONDS)

    def close(self) -> None:
        """Ends the child, which closes its handles; kills a child that does not end."""
        self._closing.set()
        child = self._child
        if child is not None:
            child.hang_up()
        self._thread.join(CLOSE_SECONDS + 1)

    def _run(self) -> None:
        pause, logged = SHORTEST_PAUSE, ""
        while not self._closing.is_set():
            if not self._may_start():
                self._closing.wait(1.0)
                continue
            began = time.monotonic()
            end = self._run_child()
            if end is None or self._closing.is_set():
                continue
            if time.monotonic() - began > SETTLED_SECONDS:
                pause = SHORTEST_PAUSE
            if not end.absent:  # the collector reports NVML as absent
                self._ends.add(end.reason)
                if end.reason != logged:
                    log.warning("the NVML child is replaced: %s", end.text)
            logged = end.reason
            self._closing.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _may_start(self) -> bool:
        return self._count_abandoned() <= MOST_ABANDONED and time.monotonic() >= self._hold_until

    def _count_abandoned(self) -> int:
        self._abandoned = [child for child in self._abandoned if child.ended() is None]
        return len(self._abandoned)

    def _run_child(self) -> _ChildEnd | None:
        """Runs one child from start to end. Returns the end; None when no child may start."""
        self._last_message, self._doing, self._failed, self._starting = time.monotonic(), None, None, True
        with self._changing:
            if time.monotonic() < self._hold_until:
                return None
            try:
                child = self._child = self._spawn(
                    ChildOptions(self._intervals, self._quarantine.indices(), os.getpid())
                )
            except OSError as error:
                return _ChildEnd("failed", f"no child can be started: {error}")
        self._calls_of_others, self._calls = self._calls_of_others + self._calls, 0
        try:
            end = self._follow(child)
            self._state.ended(end.text, end.absent)
        finally:
            self._child = None
        return end

    def _follow(self, child: NvmlChild) -> _ChildEnd:
        fast, close_at = self._intervals[FAST], 0.0
        while True:
            now = time.monotonic()
            if self._closing.is_set() and not close_at:
                close_at = now + CLOSE_SECONDS
                child.hang_up()  # again: the child may have been started after close()
            if close_at and now > close_at:
                return self._kill(child, _ChildEnd("ended", "the child did not end on request"))
            silent = now - self._last_message
            if silent > (max(INIT_SECONDS, FRESH * fast) if self._starting else FRESH * fast):
                return self._stall(child, silent)
            for index in self._quarantine.due(now):
                child.command(f"include {index}")
            try:
                lines = child.lines(min(fast / 4, 1.0))
                for line in lines or ():
                    self._apply(decode(line))
            except ValueError as error:
                return self._kill(child, _ChildEnd("failed", f"the child sent an invalid message: {error}"))
            if lines is None:
                return self._explain(child)
            if lines:
                self._last_message = time.monotonic()

    def _apply(self, message: Message) -> None:
        match message:
            case Heartbeat():
                self._doing, self._calls = message.doing, message.calls
            case NvmlStarted():
                self._starting = self._stalled = False
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

    def _stall(self, child: NvmlChild, silent: float) -> _ChildEnd:
        self._stalled = True
        about = ""
        if self._doing is not None:
            self._quarantine.stalled(self._doing, time.monotonic())
            about = f" about GPU {self._doing}, which is in quarantine now"
        return self._kill(child, _ChildEnd("stalled", f"a call did not return for {silent:.0f} s{about}"))

    def _kill(self, child: NvmlChild, end: _ChildEnd) -> _ChildEnd:
        if not child.kill():
            self._abandoned.append(child)
        return end

    def _explain(self, child: NvmlChild) -> _ChildEnd:
        """Returns the end of a child that ended by itself."""
        child.kill()  # the output is closed, so the child is about to end
        status, failed = child.ended(), self._failed
        if failed is not None:
            return _ChildEnd((_ABSENT | _FAILED_CODES).get(failed.code, "failed"), failed.reason)
        if status is not None and status < 0:
            return _ChildEnd("crashed", f"the child crashed: {signal.strsignal(-status)}")
        return _ChildEnd("ended", f"the child ended with status {status}")
