"""Processes that the kernel follows: the families of users of GPUs, updated as processes start."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

from exporter.bpf.libbpf import BpfError
from exporter.process_end import has_ended
from exporter.serving.family import families

PAUSE_SECONDS = 1.0
"""Least time between two walks through /proc: one takes milliseconds per thousand processes."""
AGAIN_SECONDS = 30.0
"""Pause between two walks at scrapes; what followed processes start is followed by the kernel at once."""

log = logging.getLogger(__name__)


class Table(Protocol):
    """The part of exporter.bpf.maps.Map that is used here."""

    max_entries: int

    def items(self) -> Any: ...

    def value(self) -> Any: ...

    def fill(self, keys: Collection[Any], value: Any) -> None: ...

    def delete(self, key: Any) -> bool: ...


class Following:
    """Adds rows to the kernel's table of followed processes; the kernel removes a row when its process ends.

    Safe from any thread. `candidates` has the filter before that table (bpf/serving/), and `changed` is called after
    rows were added.
    """

    def __init__(
        self, proc: Path, processes: Table, candidates: Table, changed: Callable[[], None] | None = None
    ) -> None:
        self._proc, self._processes, self._candidates = proc, processes, candidates
        self._changed = changed
        self._lock = threading.Lock()
        self._users: set[int] = set()
        self._walked = -PAUSE_SECONDS
        self._later: threading.Timer | None = None
        self._closed = False

    def started(self, pid: int) -> None:
        """Follow a new user of a GPU at once, and its family: within PAUSE_SECONDS, however many start."""
        with self._lock:
            self._users.add(pid)
            left = self._walked + PAUSE_SECONDS - time.monotonic()
            if left <= 0:
                self._walk()
                return
            self._follow({pid})
            if self._later is None and not self._closed:
                self._later = threading.Timer(left, self._walk_later)
                self._later.daemon = True
                self._later.start()

    def ended(self, pids: Collection[int]) -> None:
        """Forget users of GPUs that have ended or run another program."""
        with self._lock:
            self._users.difference_update(pids)

    def refresh(self) -> None:
        """Look for new processes of the families, if the last walk is AGAIN_SECONDS old."""
        with self._lock:
            if time.monotonic() - self._walked > AGAIN_SECONDS:
                self._walk()

    def close(self) -> None:
        """Follow nothing more. Waits for a walk that is under way."""
        with self._lock:
            self._closed, later = True, self._later
        if later:
            later.cancel()
            later.join()

    def _walk_later(self) -> None:
        with self._lock:
            self._later = None
            if not self._closed:
                self._walk()

    def _walk(self) -> None:
        self._walked = time.monotonic()
        self._follow(families(self._proc, list(self._users)))

    def _follow(self, pids: Collection[int]) -> None:
        new = set(pids).difference(pid for pid, _ in self._processes.items())
        try:
            self._processes.fill(new, self._processes.value())
            self._candidates.fill({pid % self._candidates.max_entries for pid in new}, 1)
        except BpfError as error:
            log.warning("not all processes of LLM servers are followed: %s", error)
        for pid in new:  # the kernel removed no row of one that ended before it had one
            if has_ended(pid):
                self._processes.delete(pid)
        if new and self._changed:
            self._changed()
