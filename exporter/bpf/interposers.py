"""Libraries put before another one that define its functions and pass calls on to it: calls of both would count twice.

These are limiters of GPU memory (HAMi-core's libvgpu.so), tracers that are preloaded, and frameworks' stubs that load
the library at the first call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from exporter.bpf.library import Library

_ROOT = 0


class Interposers:
    """Finds what passes calls on to a library of these names, which has some of these functions."""

    def __init__(self, names: re.Pattern[str], functions: Iterable[str]) -> None:
        self._names, self._functions = names, frozenset(functions)

    def passes_on(self, library: Library, other: Library) -> frozenset[str]:
        """Return the functions of a library that is not the one of these names, where the other one is.

        Each is known by the name that it has in the file (DT_SONAME), since a user may mount any file at any path; only
        a file without one by the name of the file.

        A library that belongs to neither root nor the owner of the first one does not count. What a process maps holds
        for processes of its user only (exporter.bpf.passing): users cannot switch off the probes of others.
        """
        if self._is_named(library) or not self._is_named(other) or other.owner not in (_ROOT, library.owner):
            return frozenset()
        return self._functions & library.functions.keys()

    def _is_named(self, library: Library) -> bool:
        name = library.soname or PurePath(library.path).name
        return bool(self._names.fullmatch(name)) and not self._functions.isdisjoint(library.functions)
