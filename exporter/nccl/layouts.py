"""The layouts of the libraries at hand, as the kernel's programs find them: by a small number."""

from __future__ import annotations

import logging
import re
import threading
import time
import weakref
from pathlib import PurePath
from typing import TYPE_CHECKING

from exporter.bpf.elf import Elf
from exporter.bpf.file_worker import WORKER, Stuck, TooLong
from exporter.bpf.library import Library, file_of
from exporter.nccl.functions import family
from exporter.nccl.layout import ACCESSORS, UNKNOWN, CommunicatorLayout, find_layout, has_device_code

if TYPE_CHECKING:
    from exporter.bpf.maps import Map

MOST = 256
"""The entries of `layouts` in bpf/nccl/nccl.h."""

ATTEMPTS, PAUSE = 3, 0.1
"""Number of attempts to read a library that is unreadable for a moment, and the pause between them in seconds."""

_NAMES = re.compile(r"lib[nr]ccl(-[0-9a-f]+)?\.so(\.[0-9]+)*")
"""Names of NCCL and RCCL, of which a release may have a layout that is not found."""

_ROOT = 0

log = logging.getLogger(__name__)


class Layouts:
    """Each different layout once, number 0 being UNKNOWN; so is what there is no number for. Safe from any thread.

    Anybody may make libraries with ever new layouts, so the number of one that no library has any more is used again.
    """

    def __init__(self, kernel: Map) -> None:
        self._kernel = kernel
        self._lock = threading.Lock()
        self._numbers = {UNKNOWN: 0}
        self._libraries: dict[CommunicatorLayout, list[weakref.ref[Library]]] = {}
        self._read: dict[int, tuple[weakref.ref[Library], CommunicatorLayout | None]] = {}
        """Layouts that were read, by the id() of the library."""

    def passes_on(self, library: Library, other: Library) -> frozenset[str]:
        """Return NCCL's functions of a library that only passes calls on, where the other one is NCCL.

        A tracer may define all of NCCL's functions. Its communicators cannot be read, those of the other library can,
        and it has no code for GPUs, as other implementations of these functions have (MSCCL++). A library that belongs
        to neither root nor the owner of the first one does not count: users cannot switch off the probes of others'
        files. Raises OSError as `number` does.
        """
        functions = frozenset(it for it in library.functions if family(it) == "nccl")
        if not functions or _is_named(library) or other.owner not in (_ROOT, library.owner):
            return frozenset()
        if self._layout(library) not in (None, UNKNOWN) or self._layout(other) in (None, UNKNOWN):
            return frozenset()
        return frozenset() if WORKER.call(has_device_code, file_of(library)) else functions

    def _layout(self, library: Library) -> CommunicatorLayout | None:
        """Return what `read` does, which reads each library once."""
        key = id(library)
        known, layout = self._read.get(key, (None, None))
        if known and known() is library:
            return layout
        layout = read(library)
        self._read[key] = weakref.ref(library, lambda _: self._read.pop(key, None)), layout
        return layout

    def number(self, library: Library) -> int | None:
        """The number of a library's layout, known to the kernel from then on; None if it is no NCCL.

        Raises OSError when the library cannot be read at present: then its layout is not known to be unknown.
        """
        layout = self._layout(library)
        if layout is None:
            return None
        with self._lock:
            if layout not in self._numbers and (number := self._free()):
                value = self._kernel.value(
                    identity=layout.identity,
                    sequence=layout.sequence,
                    guarded=int(layout.guarded),
                    hashless=int(layout.hashless),
                )
                self._kernel.set(number, value)
                self._numbers[layout] = number
            if number := self._numbers.get(layout, 0):
                known = [it for it in self._libraries.get(layout, ()) if it() is not None]
                self._libraries[layout] = [*known, weakref.ref(library)]
            return number

    def _free(self) -> int:
        """A number that no layout in use has; 0 if there is none."""
        if len(self._numbers) < MOST:
            return len(self._numbers)
        unused = (layout for layout, its in self._libraries.items() if all(it() is None for it in its))
        if (layout := next(unused, None)) is None:
            return 0
        del self._libraries[layout]
        return self._numbers.pop(layout)


def _is_named(library: Library) -> bool:
    return bool(_NAMES.fullmatch(library.soname or PurePath(library.path).name))


def read(library: Library) -> CommunicatorLayout | None:
    try:
        layout = _try(library, ATTEMPTS)
    except (TooLong, ValueError) as error:  # as it would be the next time
        log.warning("cannot read an NCCL library: %s", error, extra={"library": library.path})
        return UNKNOWN
    if layout == UNKNOWN:
        log.warning(
            "cannot determine the layout of communicators of an NCCL library; its ranks have no labels",
            extra={"library": library.path},
        )
    return layout


def _try(library: Library, attempts: int) -> CommunicatorLayout | None:
    try:
        found: CommunicatorLayout | None = WORKER.call(layout_of, file_of(library))
    except (TooLong, Stuck):
        raise
    except OSError:
        if attempts <= 1:
            raise
        time.sleep(PAUSE)
        return _try(library, attempts - 1)
    return found


def layout_of(elf: Elf) -> CommunicatorLayout | None:
    """The layout in a file; None if it is no NCCL. Called in the process that reads files."""
    return find_layout(elf) if elf.functions(ACCESSORS).keys() >= set(ACCESSORS) else None
