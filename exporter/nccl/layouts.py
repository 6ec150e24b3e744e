"""The layouts of the libraries at hand, as the kernel's programs find them: by a small number."""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol

from exporter.bpf.apart import WORKER
from exporter.bpf.elf import Elf
from exporter.bpf.library import Library, file_of
from exporter.nccl.layout import ACCESSORS, UNKNOWN, Layout, find_layout

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

    def number(self, library: Library) -> int | None:
        """The number of a library's layout, known to the kernel from then on; None if it is no NCCL."""
        layout = _read(library)
        if layout is None:
            return None
        with self._lock:
            if layout not in self._numbers and len(self._numbers) < MOST:
                number = len(self._numbers)
                value = self._kernel.value(
                    identity=layout.identity, sequence=layout.sequence, guarded=int(layout.guarded)
                )
                self._kernel.set(number, value)
                self._numbers[layout] = number
            return self._numbers.get(layout, 0)


def _read(library: Library) -> Layout | None:
    try:
        layout: Layout | None = WORKER.call(layout_of, file_of(library))
    except (OSError, ValueError) as error:
        log.warning("cannot read an NCCL library: %s", error, extra={"library": library.path})
        return UNKNOWN
    if layout == UNKNOWN:
        log.warning("the code of an NCCL does not tell where communicators are", extra={"library": library.path})
    return layout


def layout_of(elf: Elf) -> Layout | None:
    """The layout in a file; None if it is no NCCL. Called in the process that reads files."""
    return find_layout(elf) if elf.functions(ACCESSORS) else None
