"""Removal of duplicates: an event of NVML counts where the kernel log does not report the same fault."""

from __future__ import annotations

import threading
from collections import OrderedDict

from exporter.faults.xid.report import DriverReport

SAME_WITHIN = 5.0
"""Largest time in seconds between the two reports of one Xid."""
MOST = 4096


class Duplicates:
    """Filter of reports by device, code and time: NVML's events wait for the kernel log, which has more details.

    Times are wall times in seconds. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._waiting: list[tuple[DriverReport, float]] = []
        self.dropped = 0
        """Number of NVML's events dropped because too many were waiting."""

    def logged(self, report: DriverReport, time: float) -> None:
        """Takes a report from the kernel log, and drops the waiting events of NVML about the same fault."""
        key = (report.device, report.code)
        with self._lock:
            self._logged[key] = time
            self._logged.move_to_end(key)
            if len(self._logged) > MOST:
                self._logged.popitem(last=False)
            if self._waiting:
                self._waiting = [it for it in self._waiting if not self._in_log(*it)]

    def event(self, report: DriverReport, time: float) -> None:
        """Takes a report from NVML."""
        with self._lock:
            if self._in_log(report, time):
                return
            if len(self._waiting) < MOST:
                self._waiting.append((report, time))
            else:
                self.dropped += 1

    def due(self, now: float) -> list[tuple[DriverReport, float]]:
        """Returns, once each, NVML's reports with their times that the kernel log does not have in time."""
        with self._lock:
            due = [it for it in self._waiting if now - it[1] > SAME_WITHIN]
            self._waiting = [it for it in self._waiting if now - it[1] <= SAME_WITHIN]
        return due

    def _in_log(self, report: DriverReport, time: float) -> bool:
        logged = self._logged.get((report.device, report.code))
        return logged is not None and abs(time - logged) <= SAME_WITHIN
