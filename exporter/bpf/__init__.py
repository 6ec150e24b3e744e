"""The bridge to the kernel: compiled BPF objects, their maps and programs, where to attach them. It knows no probe."""

from __future__ import annotations

import platform
from pathlib import Path


def object_path(stem: str) -> Path:
    """The compiled object of bpf/<stem>.bpf.c for this machine; it need not exist (`make objects` builds it)."""
    return Path(__file__).parent / "objects" / platform.machine() / f"{stem}.bpf.o"


def slot_bounds(slots: int, first: int, unit: float = 1.0) -> tuple[float, ...]:
    """The inclusive upper bounds of a histogram filled with log2_slot(value, first, slots) of bpf/probe.h.

    `unit` is one of the values in the metric's unit: 1e-9 for nanoseconds shown as seconds. The last slot has no bound.
    """
    return tuple(2 ** (first + slot) * unit for slot in range(slots - 1))
