"""Listing that goes on without processes which keep it waiting in the kernel.

A process's mappings are listed under its mmap lock. A page fault on a file system that does not answer can hold that
lock, and whoever lists the process waits until it ends (proc_pid_maps(5) has the same wait).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import cast

from exporter.background.patience import MOST_WAITING, Patience, Unanswered
from exporter.bpf.mappings import Lister, Mapping

ALL_SECONDS, ONE_SECONDS = 10.0, 5.0
"""How long all processes may take, and then one of them. A process beyond MOST_WAITING others is waited for."""
_ALL = 0

log = logging.getLogger(__name__)

_List = Callable[[], list[Mapping]]


class PatientLister:
    """A lister that gives up waiting for a process, and lists it again when the kernel has answered.

    Where a single process cannot be listed, nothing is left out, and the caller waits. For one thread at a time.
    """

    def __init__(self, lister: Lister, proc: Path) -> None:
        self._lister, self._proc = lister, proc
        self._patience = Patience("mappings")
        """Listings by pid; _ALL stands for all processes."""
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
        return cast(set[int], set(self._patience.waiting)) - {_ALL}

    def everything(self) -> list[Mapping]:
        """Return the mappings of all processes but those left out. Raises what the lister raises."""
        if not self._lister.one_process:
            return self._listed(self._lister.everything, None) or []
        if not self._patience.waiting:
            found = self._listed(self._lister.everything, _ALL)
            if found is not None:
                return found
        return self._one_by_one([int(it.name) for it in self._proc.iterdir() if it.name.isdigit()])

    def of(self, pids: Collection[int]) -> list[Mapping]:
        """Return the mappings of these processes but those left out. Raises what the lister raises."""
        if not self._lister.one_process:
            return self._listed(partial(self._lister.of, pids), None) or []
        if not self._patience.waiting:
            found = self._listed(partial(self._lister.of, pids), _ALL)
            if found is not None:
                return found
        return self._one_by_one(pids)

    def close(self) -> None:
        """Ends the thread, and closes the lister."""
        self._patience.close()
        self._lister.close()

    def _one_by_one(self, pids: Collection[int]) -> list[Mapping]:
        found: list[Mapping] = []
        for pid in pids:
            if pid not in self._patience.waiting:
                found += self._listed(partial(self._lister.of, [pid]), pid) or []
        return found

    def _listed(self, function: _List, pid: int | None) -> list[Mapping] | None:
        """Return what a listing gives; None if it takes too long, after which `pid` is waiting. Forever for None."""
        patient = pid is None or len(self._patience.waiting) >= MOST_WAITING
        try:
            found, seconds = self._patience.call(
                pid or _ALL, partial(_timed, function), None if patient else ONE_SECONDS if pid else ALL_SECONDS
            )
        except Unanswered:
            if pid:
                log.warning("a process keeps its memory map locked; it is not searched", extra={"pid": pid})
            return None
        self.cpu_seconds += seconds
        return found


def _timed(function: _List) -> tuple[list[Mapping], float]:
    """Return what a listing gives, and its processor time in seconds."""
    began = time.thread_time()
    return function(), time.thread_time() - began
