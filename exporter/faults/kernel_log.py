"""Faults in the kernel log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from exporter.faults import signals
from exporter.faults.ledger import NodeFault
from exporter.faults.signals import FaultSignal
from exporter.kmsg.records import Record
from exporter.node import Clock

_LONGEST = 1024
_QUOTES = frozenset("'\"")
_WORDS = (
    "mlx5_core", "NETDEV WATCHDOG", "nvme nvme", "medium error", "I/O error", "emounting filesystem", "Hardware Error",
    "lockup", "LOCKUP", "blocked for more than", "above threshold", "emperature reached", "EDAC MC", "Memory failure",
    "ut of memory", "segfault at", "not responding", "PCIe Bus Error", "DPC: ", "pciehp",
)  # fmt: skip
WORDS = re.compile(b"|".join(re.escape(word.encode()) for word in _WORDS))
"""A prefilter: every line that matches a signal's pattern contains one of these words, and most other lines none."""


def find(text: str) -> tuple[FaultSignal, str] | None:
    """Return the signal of a kernel message and the component that failed, or None when the message is no fault.

    A quotation mark before the fault makes it a quoted text, which is any user's: mount(2) in a user namespace has the
    kernel print an unknown option.
    """
    head = text[:_LONGEST]
    for signal in signals.KERNEL_LOG:
        assert signal.pattern
        if (found := signal.pattern.search(head)) and not _QUOTES & set(head[: found.start()]):
            named = found.groupdict().get("component")
            return signal, named or signal.fixed
    return None


class KernelLog:
    """Finds the faults among the records of the kernel log (exporter.kmsg.reader.Reader)."""

    def __init__(self, add: Callable[[NodeFault], None], clock: Clock, from_processes: bool) -> None:
        """`add` receives each fault. With `from_processes` a record that a process wrote counts too."""
        self._add, self._clock, self._from_processes = add, clock, from_processes

    def receive(self, record: Record) -> None:
        """Report the fault of one record, if any. A process can write into the log, but not with facility 0."""
        if record.facility and not self._from_processes:
            return
        if found := find(record.text):
            signal, component = found
            # A record's own time drifts from wall time over months, so that a live record gets the present time.
            when = self._clock.wall_ns(record.time_ns) / 1e9 if record.replayed else time.time()
            self._add(NodeFault(signal.category, component, signal.name, when, record.replayed))
