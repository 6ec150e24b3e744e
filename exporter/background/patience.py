"""Calls that may wait in the kernel for ever, in threads: who calls goes on after a time limit."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Collection, Hashable
from typing import Any, TypeVar

MOST_WAITING = 32
"""Threads that wait in the kernel."""
_MOST_IDLE = 2

T = TypeVar("T")


class Unanswered(OSError):
    """The kernel has not answered within the time limit, or has not yet answered an earlier call of the same key.

    `new`: this call is the one that waits from now on.
    """

    def __init__(self, new: bool) -> None:
        super().__init__(errno.EBUSY, "the kernel does not answer: the process keeps its memory map locked")
        self.new = new


class _Call:
    """One call in a thread, and what came of it."""

    def __init__(self, key: Hashable, function: Callable[[], Any]) -> None:
        self.key, self.function = key, function
        self.done = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.result = self.function()
        except Exception as error:
            self.error = error
        self.done.set()


_Thread = queue.SimpleQueue[_Call | None]
"""The calls of a thread; None ends it."""


class Patience:
    """Makes calls with a time limit. A key that was not answered is refused until its call returns. Safe from any
    thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        self._late: list[_Call] = []

    @property
    def waiting(self) -> Collection[Hashable]:
        """The keys of calls that have not returned though their time was over."""
        with self._lock:
            return {call.key for call in self._still_late()}

    def call(self, key: Hashable, function: Callable[[], T], seconds: float | None) -> T:
        """Return what a function returns, or raise what it raises; for ever (None) or Unanswered after `seconds`.

        With a time limit Unanswered also comes at once: for a key in `waiting`, and where MOST_WAITING calls are.
        """
        call = _Call(key, function)
        with self._lock:
            late = self._still_late()
            if seconds is not None and (len(late) >= MOST_WAITING or any(it.key == key for it in late)):
                raise Unanswered(new=False)
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(thread,), name=self._name, daemon=True).start()
        thread.put(call)
        if not call.done.wait(seconds):
            thread.put(None)  # ends it when the kernel has answered
            with self._lock:
                self._late.append(call)
            raise Unanswered(new=True)
        self._rest(thread)
        if call.error:
            raise call.error
        result: T = call.result
        return result

    def close(self) -> None:
        """Ends the idle threads."""
        with self._lock:
            threads, self._idle = self._idle, []
        for thread in threads:
            thread.put(None)

    def _still_late(self) -> list[_Call]:
        self._late = [call for call in self._late if not call.done.is_set()]
        return self._late

    def _rest(self, thread: _Thread) -> None:
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(thread)
                return
        thread.put(None)


def _serve(calls: _Thread) -> None:
    while call := calls.get():
        call.run()
        del call  # what it holds is not kept while the thread is idle
