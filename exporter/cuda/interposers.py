"""Libraries put before the driver that define its functions and pass calls on to it.

These are limiters of GPU memory (HAMi-core's libvgpu.so), tracers that are preloaded, and frameworks' stubs that load
the driver at the first call.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from exporter.bpf.library import Library
from exporter.cuda.functions import FUNCTIONS

_DRIVER_NAME = re.compile(r"libcuda\.so(\.[0-9]+)*")
"""Names of the driver, also of a replacement that is loaded in its place."""
_DRIVER = frozenset(it.name for it in FUNCTIONS if it.layer == "driver")
_ROOT = 0


def passes_on(library: Library, other: Library) -> frozenset[str]:
    """Return the driver's functions of a library that is not the driver, where the other one is.

    Each is known by the name that it has in the file (DT_SONAME), since a user may mount any file at any path; only a
    file without one by the name of the file.

    A driver that belongs to neither root nor the owner of the library does not count: users cannot switch off the
    probes of others' files.
    """
    if _is_driver(library) or not _is_driver(other) or other.owner not in (_ROOT, library.owner):
        return frozenset()
    return _DRIVER & library.functions.keys()


def _is_driver(library: Library) -> bool:
    name = library.soname or PurePath(library.path).name
    return bool(_DRIVER_NAME.fullmatch(name)) and not _DRIVER.isdisjoint(library.functions)
