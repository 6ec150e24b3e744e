"""Libraries that only pass calls on to another one that is probed too: their calls would count twice."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from exporter.bpf.library import Library

MOST = 1024
"""Files that are remembered; beyond that all are forgotten, and found again when a process maps both libraries."""

PassesOn = Callable[[Library, Library], Collection[str]]
"""Returns which symbols of the first library pass calls on to the second one, where a process has mapped both."""

_File = tuple[tuple[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Passed:
    """The symbols of a library that pass calls on, and the path of the library that they are passed on to."""

    symbols: frozenset[str] = frozenset()
    to: str = ""


NOTHING = Passed()


class Passing:
    """Symbols of each file that pass calls on. Probes are in files: a result from one process holds for all."""

    def __init__(self, passes_on: PassesOn) -> None:
        self._passes_on = passes_on
        self.found: dict[_File, Passed] = {}

    def of(self, library: Library) -> Passed:
        """Return what is known of a library."""
        return self.found.get(_file(library), NOTHING)

    def compare(self, library: Library, other: Library) -> bool:
        """Note what a library passes on to another one of the same process. Return whether that is new."""
        symbols = frozenset(self._passes_on(library, other))
        if symbols <= self.of(library).symbols:
            return False
        if len(self.found) >= MOST:
            self.found.clear()
        self.found[_file(library)] = Passed(symbols, other.path)
        return True


def _file(library: Library) -> _File:
    return library.identity, library.digest
