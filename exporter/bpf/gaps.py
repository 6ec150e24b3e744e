"""The map `posts_since` of an object: since when the calls of a library that may be probed in windows are all seen."""

from __future__ import annotations

import time
from collections.abc import Callable

from exporter.bpf.return_switches import Numbers

GAP = (1 << 64) - 1
"""As in bpf/verbs/gaps.h: they are not seen now."""


class Gaps:
    """The times of one library's gaps, for programs to which the order of calls matters."""

    def __init__(self, rows: Numbers, library: int, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._rows, self._library, self._now = rows, library, now
        self.since = 0
        """End of the last gap, CLOCK_MONOTONIC in nanoseconds; 0 before the first gap, GAP during a gap."""

    def begin(self) -> None:
        """Let programs know that calls are not seen from now on; before their probes are detached."""
        self._set(GAP)

    def end(self) -> None:
        """Let programs know that all calls are seen from now on; after their probes were attached."""
        self._set(self._now())

    def of_link(self) -> int:
        """Return since when all calls of a process are seen that has just been given probes of its own."""
        return self._now() if self.since == GAP else self.since

    def forget(self) -> None:
        """Leave the number of the library to another one."""
        self._set(0)

    def _set(self, since: int) -> None:
        self.since = since
        self._rows.set(self._library, since)
