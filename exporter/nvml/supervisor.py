"""The parent's side: keeps one child reading, notices when it hangs, crashes or is refused, and replaces it.

A child that hangs in a call on a dead GPU may not even die when killed. It is given up then, and one replacement is
started; never more than that, however long the first stays.
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
from exporter.nvml.child import Child
from exporter.nvml.codes import NO_DRIVER, NO_LIBRARY, OTHER_VERSION, UNINITIALIZED
from exporter.nvml.known import FRESH, Known
from exporter.nvml.shunned import Shunned
from exporter.nvml.snapshot import (
    FAST,
    Beat,
    Event,
    Failed,
    Message,
    Options,
    Read,
    Released,
    Snapshot,
    Started,
    decode,
)

STALLED = 2
"""After so many fast intervals of silence the child counts as stalled, after FRESH of them it is given up."""
INIT_SECONDS = 60.0
"""So long the start may take at most: without persistence mode it wakes each GPU."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
SETTLED_SECONDS = 60.0
"""A child that lived so long was well: the pause before the next one is the shortest again."""
CLOSE_SECONDS = 2.5
RELEASE_SECONDS = 3.0
MOST_ABANDONED = 1

_ABSENT = {NO_LIBRARY: "no_library", NO_DRIVER: "no_driver"}
_ENDED = {OTHER_VERSION: "driver_replaced", UNINITIALIZED: "uninitialized"}
REASONS = ("stalled", "crashed", "ended", "failed", *_ENDED.values())

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _End:
    """How it ended with a child: one of REASONS or of _ABSENT, and a sentence."""

    reason: str
    text: str

    @property
    def absent(self) -> bool:
        """There is no NVML, which is no fault."""
        return self.reason in _ABSENT.values()


class Supervisor:
    """`tell` gets every event. It is called, and `spawn` starts children, in this one's thread."""

    def __init__(
        self,
        intervals: Mapping[str, float],
        tell: Callable[[Event], None],
        spawn: Callable[[Options], Child] = Child,
    ) -> None:
        self._intervals, self._tell, self._spawn = intervals, tell, spawn
        self._known = Known(intervals)
        self._shunned = Shunned()
        self._ends = Tally(metrics.RESTARTS, REASONS)
        self._child: Child | None = None
        self._abandoned: list[Child] = []
        self._starting, self._stalled = True, False
        self._heard = time.monotonic()
        self._doing: int | None = None
        self._failed: Failed | None = None
        self._calls = self._calls_of_others = 0
        self._hold_until = 0.0
        self._changing = threading.Lock()
        """Held while a child is started, so that none starts once the GPUs are to be given back."""
        self._released, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """What is known now. Never waits for NVML."""
        now = time.monotonic()
        silent = now - self._heard
        patience = (FRESH if self._starting else STALLED) * self._intervals[FAST]
        if self._child is not None and silent > patience:
            return self._known.snapshot(now, f"NVML has not answered for {silent:.0f} s")
        return self._known.snapshot(now, "NVML did not answer; it is tried again" if self._stalled else "")

    def samples(self) -> Iterator[Sample]:
        """About the source itself."""
        snapshot = self.snapshot()
        for name, age in self._known.ages(time.monotonic()).items():
            yield SOURCE_AGE.sample(age, {"source": f"nvml_{name}"})
        stalled = snapshot.state == "stalled" or any(gpu.state == "stalled" for gpu in snapshot.gpus)
        yield metrics.SOURCE_STALLED.sample(int(stalled), {"source": "nvml"})
        yield metrics.RELEASED.sample(int(snapshot.state == "released"))
        yield metrics.CALLS.sample(self._calls_of_others + self._calls)
        yield metrics.CHILDREN.sample(int(self._child is not None), {"state": "in_use"})
        yield metrics.CHILDREN.sample(self._still_there(), {"state": "abandoned"})
        yield from self._ends.samples()
        child = self._child
        if child is not None:
            with suppress(psutil.Error):
                process = psutil.Process(child.pid)
                yield metrics.RESIDENT.sample(process.memory_info().rss)

    def release(self, seconds: float) -> bool:
        """Has every handle given back for so long; False when that has not happened within RELEASE_SECONDS."""
        with self._changing:
            self._hold_until = time.monotonic() + seconds
            self._released.clear()
            child = self._child
        if child is None:
            self._known.released(seconds)
            return True
        child.command(f"release {seconds}")
        return self._released.wait(RELEASE_SECONDS)

    def close(self) -> None:
        """Ends the child, which gives its handles back; kills it when it does not."""
        self._closing.set()
        child = self._child
        if child is not None:
            child.hang_up()
        self._thread.join(CLOSE_SECONDS + 1)

    def _run(self) -> None:
        pause, said = SHORTEST_PAUSE, ""
        while not self._closing.is_set():
            if not self._may_start():
                self._closing.wait(1.0)
                continue
            began = time.monotonic()
            end = self._live()
            if end is None or self._closing.is_set():
                continue
            if time.monotonic() - began > SETTLED_SECONDS:
                pause = SHORTEST_PAUSE
            if not end.absent:  # which the collector says
                self._ends.add(end.reason)
                if end.reason != said:
                    log.warning("the NVML child is replaced: %s", end.text)
            said = end.reason
            self._closing.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _may_start(self) -> bool:
        return self._still_there() <= MOST_ABANDONED and time.monotonic() >= self._hold_until

    def _still_there(self) -> int:
        self._abandoned = [child for child in self._abandoned if child.ended() is None]
        return len(self._abandoned)

    def _live(self) -> _End | None:
        """One child, from its start to its end; None when none may start."""
        self._heard, self._doing, self._failed, self._starting = time.monotonic(), None, None, True
        with self._changing:
            if time.monotonic() < self._hold_until:
                return None
            try:
                child = self._child = self._spawn(Options(self._intervals, self._shunned.indices(), os.getpid()))
            except OSError as error:
                return _End("failed", f"no child can be started: {error}")
        self._calls_of_others, self._calls = self._calls_of_others + self._calls, 0
        try:
            end = self._follow(child)
            self._known.ended(end.text, end.absent)
        finally:
            self._child = None
        return end

    def _follow(self, child: Child) -> _End:
        fast, close_at = self._intervals[FAST], 0.0
        while True:
            now = time.monotonic()
            if self._closing.is_set() and not close_at:
                close_at = now + CLOSE_SECONDS
                child.hang_up()  # again: it may have been started since
            if close_at and now > close_at:
                return self._give_up(child, _End("ended", "it did not end when it was told to"))
            silent = now - self._heard
            if silent > (max(INIT_SECONDS, FRESH * fast) if self._starting else FRESH * fast):
                return self._stall(child, silent)
            for index in self._shunned.due(now):
                child.command(f"take {index}")
            try:
                lines = child.lines(min(fast / 4, 1.0))
                for line in lines or ():
                    self._apply(decode(line))
            except ValueError as error:
                return self._give_up(child, _End("failed", f"it talks nonsense: {error}"))
            if lines is None:
                return self._explain(child)
            if lines:
                self._heard = time.monotonic()

    def _apply(self, message: Message) -> None:
        match message:
            case Beat():
                self._doing, self._calls = message.doing, message.calls
            case Started():
                self._starting = self._stalled = False
                self._known.started(message, self._shunned.indices())
            case Read():
                self._known.read(message)
                if message.readings is not None and self._doing is not None:
                    self._shunned.works(self._doing)
            case Event():
                self._known.event(message)
                self._tell(message)
            case Released():
                self._known.released(message.until - time.monotonic())
                self._released.set()
            case Failed():
                self._failed = message

    def _stall(self, child: Child, silent: float) -> _End:
        self._stalled = True
        about = ""
        if self._doing is not None:
            self._shunned.stalled(self._doing, time.monotonic())
            about = f" about GPU {self._doing}, which is left alone for a while"
        return self._give_up(child, _End("stalled", f"a call did not return for {silent:.0f} s{about}"))

    def _give_up(self, child: Child, end: _End) -> _End:
        if not child.kill():
            self._abandoned.append(child)
        return end

    def _explain(self, child: Child) -> _End:
        """Why it ended by itself."""
        child.kill()  # its output is closed, so it is about to end
        status, failed = child.ended(), self._failed
        if failed is not None:
            return _End((_ABSENT | _ENDED).get(failed.code, "failed"), failed.reason)
        if status is not None and status < 0:
            return _End("crashed", f"the child crashed: {signal.strsignal(-status)}")
        return _End("ended", f"the child ended with status {status}")
