"""One fault from two sources is one fault: what NVML tells counts where the kernel log does not tell it too."""

from __future__ import annotations

import threading
from collections import OrderedDict

from exporter.xid.faults import Fault

SAME_WITHIN = 5.0
"""Seconds between the two tellings of one Xid, at most."""
_MOST = 4096


class Sources:
    """Decides by device, code and time. NVML's events wait for the kernel log, which says more of them.

    Times are wall times in seconds. Safe from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._waiting: list[tuple[Fault, float]] = []
        self.dropped = 0
        """Events of NVML that found no room to wait."""

    def logged(self, fault: Fault, time: float) -> None:
        """The kernel log told of it: what NVML says of the same is not waited for any more."""
        key = (fault.device, fault.code)
        with self._lock:
            self._logged[key] = time
            self._logged.move_to_end(key)
            if len(self._logged) > _MOST:
                self._logged.popitem(last=False)
            if self._waiting:
                self._waiting = [it for it in self._waiting if not self._told(*it)]

    def event(self, fault: Fault, time: float) -> None:
        """NVML told of it."""
        with self._lock:
            if self._told(fault, time):
                return
            if len(self._waiting) < _MOST:
                self._waiting.append((fault, time))
            else:
                self.dropped += 1

    def due(self, now: float) -> list[tuple[Fault, float]]:
        """NVML's events, with their times, of which the kernel log has not told in time; each is given once."""
        with self._lock:
            due = [it for it in self._waiting if now - it[1] > SAME_WITHIN]
            self._waiting = [it for it in self._waiting if now - it[1] <= SAME_WITHIN]
        return due

    def _told(self, fault: Fault, time: float) -> bool:
        logged = self._logged.get((fault.device, fault.code))
        return logged is not None and abs(time - logged) <= SAME_WITHIN
