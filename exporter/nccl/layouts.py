"""The layouts of the libraries at hand, as the kernel's programs find them: by a small number."""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol

from exporter.bpf.elf import Elf
from exporter.bpf.library import Library
from exporter.nccl.layout import UNKNOWN, Layout, find_layout

MOST = 256
"""The entries of `layouts` in bpf/nccl.h."""

log = logging.getLogger(__name__)


class Map(Protocol):
    """The part of exporter.bpf.libbpf.Map that is used here."""

    value: Any

    def set(self, key: Any, value: Any) -> None: ...


class Layouts:
    """Each different layout once, number 0 being UNKNOWN; so is what there is no number for. Safe from any thread."""

    def __init__(self, kernel: Map) -> None:
        self._kernel = kernel
        self._lock = threading.Lock()
        self._numbers = {UNKNOWN: 0}

    def number(self, library: Library) -> int:
        """The number of a library's layout, known to the kernel from then on."""
        layout = _read(library)
        with self._lock:
            if layout not in self._numbers and len(self._numbers) < MOST:
                number = len(self._numbers)
                value = self._kernel.value(
                    identity=layout.identity, sequence=layout.sequence, guarded=int(layout.guarded)
                )
                self._kernel.set(number, value)
                self._numbers[layout] = number
            return self._numbers.get(layout, 0)


def _read(library: Library) -> Layout:
    try:
        with Elf.open(library.open_path) as elf:
            layout = find_layout(elf)
    except (OSError, ValueError) as error:
        log.warning(
            "cannot read where NCCL's communicators keep their rank: %s", error, extra={"library": library.path}
        )
        return UNKNOWN
    if layout is UNKNOWN and any(name.startswith("nccl") for name in library.functions):
        log.warning(
            "the code of a library does not tell where communicators keep their rank", extra={"library": library.path}
        )
    return layout
