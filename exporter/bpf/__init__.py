"""The bridge to the kernel: compiled BPF objects, their maps and programs, where to attach them. It knows no probe."""

from __future__ import annotations

import platform
from pathlib import Path


def object_path(stem: str) -> Path:
    """The compiled object of bpf/<stem>.bpf.c for this machine; it need not exist (`make objects` builds it)."""
    return Path(__file__).parent / "objects" / platform.machine() / f"{stem}.bpf.o"
