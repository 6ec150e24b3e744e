"""Faults in the kernel log."""

from __future__ import annotations

import re

from exporter.faults import signals
from exporter.faults.ledger import Fault
from exporter.faults.signals import FaultSignal
from exporter.kmsg.records import Record

_LONGEST = 1024
_WORDS = (
    "mlx5_core", "NETDEV WATCHDOG", "nvme nvme", "medium error", "I/O error", "emounting filesystem", "Hardware Error",
    "lockup", "LOCKUP", "blocked for more than", "blocked in I/O wait", "above threshold", "emperature reached",
    "EDAC MC", "Memory failure", "ut of memory", "segfault at", "not responding", "PCIe Bus Error", "DPC: ", "pciehp",
)  # fmt: skip
WORDS = re.compile(b"|".join(re.escape(word.encode()) for word in _WORDS))
"""A prefilter: every line that matches a signal's pattern contains one of these words, and most other lines none."""


def find(text: str) -> tuple[FaultSignal, str] | None:
    """Return the signal of a kernel message and the component that failed, or None when the message is no fault.

    A fault begins the message: further on a text may be any user's, as the name of a file or an option of mount(2).
    """
    head = text[:_LONGEST]
    for signal in signals.KERNEL_LOG:
        assert signal.pattern
        if found := signal.pattern.match(head):
            named = found.groupdict().get("component")
            return signal, named or signal.fixed
    return None


def fault(record: Record, wall_time: float) -> Fault | None:
    """Return the fault that a record reports, or None; `wall_time` is the record's, in seconds."""
    if not (found := find(record.text)):
        return None
    signal, component = found
    return Fault(signal.category, component, signal.name, wall_time, record.replayed)
