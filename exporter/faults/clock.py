"""Synchronization of the kernel's clock, read by adjtimex(2) without a change: timestamps of nodes are compared."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import NamedTuple

from exporter.faults import metrics
from exporter.model import Sample

UNSYNCHRONIZED, NANOSECONDS = 0x40, 0x2000
"""Bits of the status: STA_UNSYNC and STA_NANO of include/uapi/linux/timex.h."""
SIZE = 208
"""Bytes of struct timex on 64-bit machines."""


class Timex(ctypes.Structure):
    """The part of struct timex that is read. `maximum_error` is in microseconds."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("maximum_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * (SIZE - 6 * ctypes.sizeof(ctypes.c_long))),
    )


class ClockStatus(NamedTuple):
    """The kernel's opinion of its clock. `error` is the greatest possible one, in seconds."""

    synchronized: bool
    error: float


def read() -> ClockStatus:
    """Return the state of the kernel's clock. Raises OSError when the call is not allowed."""
    timex = Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "adjtimex")
    return ClockStatus(not timex.status & UNSYNCHRONIZED, timex.maximum_error / 1e6)


def samples() -> Iterator[Sample]:
    """Yield the state of the clock. Raises OSError as `read` does."""
    clock = read()
    yield metrics.CLOCK_SYNCHRONIZED.sample(int(clock.synchronized))
    if clock.synchronized:  # the kernel's 16 s in place of an unknown error are no error
        yield metrics.CLOCK_ERROR.sample(clock.error)
