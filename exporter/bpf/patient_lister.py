"""Listing that goes on without processes which keep it waiting in the kernel.

A process's mappings are listed under its mmap lock. A page fault on a file system that does not answer can hold that
lock, and whoever lists the process waits until it ends (proc_pid_maps(5) has the same wait).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from exporter.bpf.mappings import Lister, Mapping

ALL_SECONDS, ONE_SECONDS = 10.0, 5.0
"""How long all processes may take, and then one of them."""
MOST_WAITING = 32
"""Threads that wait for processes; a process beyond these is waited for."""

log = logging.getLogger(__name__)

_List = Callable[[], list[Mapping]]


class _Call:
    """One listing in a thread, and what came of it."""

    def __init__(self, function: _List) -> None:
        self.function = function
        self.done = threading.Event()
        self.found: list[Mapping] = []
        self.error: Exception | None = None
        self.cpu_seconds = 0.0

    def run(self) -> None:
        began = time.thread_time()
        try:
            self.found = self.function()
        except Exception as error:
            self.error = error
        self.cpu_seconds = time.thread_time() - began
        self.done.set()


class PatientLister:
    """A lister that gives up waiting for a process, and lists it again when the kernel has answered.

    Where a single process cannot be listed, nothing is left out, and the caller waits. For one thread at a time.
    """

    def __init__(self, lister: Lister, proc: Path) -> None:
        self._lister, self._proc = lister, proc
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._started = False
        self._waiting: dict[int, _Call] = {}
        """Listings that have not returned, by pid; 0 stands for all processes."""
        self.cpu_seconds = 0.0
        """Processor time of all listings that were waited for."""

    @property
    def name(self) -> str:
        return self._lister.name

    @property
    def one_process(self) -> bool:
        return self._lister.one_process

    @property
    def left_out(self) -> Collection[int]:
        """The processes that are not listed now."""
        return self._waiting.keys() - {0}

    def everything(self) -> list[Mapping]:
        """Return the mappings of all processes but those left out. Raises what the lister raises."""
        if not self._lister.one_process:
            return self._listed(self._lister.everything, None) or []
        self._admit_answered()
        if not self._waiting:
            found = self._listed(self._lister.everything, 0)
            if found is not None:
                return found
        return self._one_by_one([int(it.name) for it in self._proc.iterdir() if it.name.isdigit()])

    def of(self, pids: Collection[int]) -> list[Mapping]:
        """Return the mappings of these processes but those left out. Raises what the lister raises."""
        if not self._lister.one_process:
            return self._listed(partial(self._lister.of, pids), None) or []
        self._admit_answered()
        if not self._waiting:
            found = self._listed(partial(self._lister.of, pids), 0)
            if found is not None:
                return found
        return self._one_by_one(pids)

    def close(self) -> None:
        """Ends the thread, and closes the lister."""
        if self._started:
            self._calls.put(None)
        self._lister.close()

    def _one_by_one(self, pids: Collection[int]) -> list[Mapping]:
        found: list[Mapping] = []
        for pid in pids:
            if pid not in self._waiting:
                found += self._listed(partial(self._lister.of, [pid]), pid) or []
        return found

    def _listed(self, function: _List, pid: int | None) -> list[Mapping] | None:
        """Return what a listing gives; None if it takes too long, after which `pid` is waiting. Forever for None."""
        call = _Call(function)
        if not self._started:
            self._started = True
            threading.Thread(target=_serve, args=(self._calls,), name="mappings", daemon=True).start()
        self._calls.put(call)
        patient = pid is None or len(self._waiting) >= MOST_WAITING
        if not call.done.wait(None if patient else ONE_SECONDS if pid else ALL_SECONDS):
            self._abandon(pid or 0, call)
            return None
        self.cpu_seconds += call.cpu_seconds
        if call.error:
            raise call.error
        return call.found

    def _abandon(self, pid: int, call: _Call) -> None:
        self._calls.put(None)  # ends the thread when the kernel has answered
        self._calls, self._started = queue.SimpleQueue(), False
        self._waiting[pid] = call
        if pid:
            log.warning("a process keeps its memory map locked, and is left out", extra={"pid": pid})

    def _admit_answered(self) -> None:
        self._waiting = {pid: call for pid, call in self._waiting.items() if not call.done.is_set()}


def _serve(calls: queue.SimpleQueue[_Call | None]) -> None:
    while call := calls.get():
        call.run()
