"""Supervision of a child process: a child that hangs, crashes or sends nonsense is replaced, later each time.

A child that is blocked in the kernel may survive a kill. Such a child is abandoned, and one replacement is started;
never more than one, however long the first child stays.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from exporter.background.child import ChildProcess

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Before a replacement is started, in seconds; each pause is twice the one before."""
MOST_ABANDONED = 1
LOOK_SECONDS = 1.0
"""Between two checks whether a child may be started."""
_LONGEST_WAIT = 0.5
"""For a message, before the other limits are checked; a twelfth of the patience where that is less."""

C = TypeVar("C", bound=ChildProcess)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """End of a child: a reason, for metrics, and a sentence."""

    reason: str
    text: str


class Supervisor(ABC, Generic[C]):
    """Runs one child at a time, in a thread of its own. Subclasses start the child and receive its messages."""

    subject = "the child"
    """Subject of sentences about the ends of a child."""
    settled_seconds = 60.0
    """Lifetime of a child after which the next pause is the shortest again."""
    close_seconds = 2.0
    """Longest wait for the end of a child on request."""

    def __init__(self, name: str, start_patience: float, patience: float) -> None:
        """`start_patience` and `patience` are the longest silences of a child, before and after its start."""
        self._start_patience, self._patience = start_patience, patience
        self.child: C | None = None
        """The child, until `ended` has returned."""
        self.starting = True
        """True while the child is starting; cleared by the subclass."""
        self.last_message = time.monotonic()
        self.changing = threading.Lock()
        """Held while a child is started."""
        self.closing = threading.Event()
        self._abandoned: list[C] = []
        self._thread = threading.Thread(target=self._run, name=name[:15], daemon=True)

    @abstractmethod
    def spawn(self) -> C | None:
        """Start a child. Returns None when none may be started now. Raises OSError."""

    @abstractmethod
    def receive(self, child: C, line: bytes) -> ChildEnd | None:
        """Apply a message. Returns an end for a child that has failed. Raises ValueError for an invalid message."""

    @abstractmethod
    def ended(self, end: ChildEnd, before: ChildEnd) -> None:
        """Count and log the end of a child; `before` is the end of the child before, empty at the first."""

    def look(self, child: C) -> None:
        """Called several times within the patience, to send commands."""

    def drop(self) -> None:
        """Called before the child is killed, to release what the child has sent."""

    def refused(self, error: OSError) -> str:
        """Return the sentence about a child that cannot be started."""
        return f"no child can be started: {error}"

    def stalled(self, silent: float) -> str:
        """Return the sentence about a child that has been silent for so many seconds and is killed."""
        limit = self._start_patience if self.starting else self._patience
        return f"{self.subject} has sent nothing for {limit:.0f} s"

    def explain(self, status: int | None) -> ChildEnd:
        """Return the end of a child that ended by itself; `status` is that of ChildProcess.ended."""
        if status is not None and status < 0:
            return ChildEnd("crashed", f"{self.subject} crashed: {signal.strsignal(-status)}")
        return ChildEnd("ended", f"{self.subject} ended with status {status}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Request the end of the child, which releases its handles, without waiting."""
        self.closing.set()
        child = self.child
        if child is not None:
            child.hang_up()

    def close(self) -> None:
        """End the child; kill a child that does not end."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(self.close_seconds + 1)

    def count_abandoned(self) -> int:
        """Return the number of killed children that still exist. Thread-safe."""
        return sum(child.ended() is None for child in self._abandoned)

    def _run(self) -> None:
        pause, before = SHORTEST_PAUSE, ChildEnd("", "")
        while not self.closing.is_set():
            began = time.monotonic()
            try:
                end = self._run_child()
            except Exception as error:
                log.exception("supervision of %s failed; a new child is started", self._thread.name)
                end = ChildEnd("failed", f"{type(error).__name__}: {error}")
            if self.closing.is_set():
                return
            if end is None:
                self.closing.wait(LOOK_SECONDS)
                continue
            if time.monotonic() - began > self.settled_seconds:
                pause = SHORTEST_PAUSE
            self.ended(end, before)
            self.child, before = None, end
            self.closing.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _run_child(self) -> ChildEnd | None:
        """Run one child from start to end. Returns the end; None when no child may be started."""
        try:
            child = self._start_child()
        except OSError as error:
            return ChildEnd("failed", self.refused(error))
        if child is None:
            return None
        try:
            end = self._follow(child)
        finally:
            self._kill(child)
        return end or self.explain(child.ended())

    def _start_child(self) -> C | None:
        if self.count_abandoned() > MOST_ABANDONED:
            return None
        with self.changing:
            child = self.spawn()
            self.starting, self.last_message, self.child = True, time.monotonic(), child
        return child

    def _kill(self, child: C) -> None:
        try:
            self.drop()
        finally:
            if not child.kill():
                self._abandoned = [*(it for it in self._abandoned if it.ended() is None), child]

    def _follow(self, child: C) -> ChildEnd | None:
        """Receive a child's messages until its end. Returns None for a child that ended by itself."""
        close_at = math.inf
        wait = min(self._patience / 12, _LONGEST_WAIT)
        while True:
            now = time.monotonic()
            if self.closing.is_set() and close_at == math.inf:
                close_at = now + self.close_seconds
                child.hang_up()  # again: the child may have been started after close()
            if now > close_at:
                return ChildEnd("ended", f"{self.subject} did not end on request")
            silent = now - self.last_message
            if silent > (self._start_patience if self.starting else self._patience):
                return ChildEnd("stalled", self.stalled(silent))
            self.look(child)
            try:
                lines = child.lines(wait)
                for line in lines or ():
                    if end := self.receive(child, line):
                        return end
            except (ValueError, OSError, KeyError, TypeError) as error:
                return ChildEnd("failed", f"{self.subject} sent an invalid message: {error}")
            if lines is None:
                return None
            if lines:
                self.last_message = time.monotonic()
