"""Faults in the kernel log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from exporter.faults import signals
from exporter.faults.ledger import Fault
from exporter.faults.signals import Signal
from exporter.kmsg.records import Record
from exporter.node import Clock

_LONGEST = 1024
_WORDS = (
    "mlx5_core", "NETDEV WATCHDOG", "nvme nvme", "medium error", "I/O error", "emounting filesystem", "Hardware Error",
    "lockup", "LOCKUP", "blocked for more than", "above threshold", "emperature reached", "EDAC MC", "Memory failure",
    "ut of memory", "segfault at", "not responding", "PCIe Bus Error", "DPC: ", "pciehp",
)  # fmt: skip
WORDS = re.compile(b"|".join(re.escape(word.encode()) for word in _WORDS))
"""In every line that a pattern fits; looked for first, for most lines hold none of them."""


def find(text: str) -> tuple[Signal, str] | None:
    """What a kernel message tells of, and the component that failed; None when it is no fault that we know."""
    head = text[:_LONGEST]
    for signal in signals.KERNEL_LOG:
        assert signal.pattern
        if found := signal.pattern.search(head):
            named = found.groupdict().get("component")
            return signal, named or signal.fixed
    return None


class KernelLog:
    """Receives the records of the kernel log (exporter.kmsg.reader.Reader) and tells of the faults among them."""

    def __init__(self, tell: Callable[[Fault], None], clock: Clock, from_processes: bool) -> None:
        self._tell, self._clock, self._from_processes = tell, clock, from_processes

    def receive(self, record: Record) -> None:
        """A process can write into the log, but not as the kernel: what it says is believed only if asked for."""
        if record.facility and not self._from_processes:
            return
        if found := find(record.text):
            signal, component = found
            # A record's own time drifts from wall time over months; one that comes now came now.
            when = self._clock.wall_ns(record.time_ns) / 1e9 if record.replayed else time.time()
            self._tell(Fault(signal.category, component, signal.name, when, record.replayed))
