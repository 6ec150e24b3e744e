"""Symbols of a table that a library lacks, and functions of a library that the table lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from exporter.bpf.elf import Elf
from exporter.bpf.file_worker import WORKER
from exporter.bpf.library import Library, file_of

MOST_SYMBOLS = 100_000
"""A file with more is not searched for functions that should be in the table: it would take seconds."""
MOST_NAMES = 4096


def names_like(elf: Elf, pattern: str) -> tuple[str, ...]:
    """The functions of a file with names of a pattern, sorted; none of a file with very many."""
    names = elf.functions(None) if elf.symbol_count <= MOST_SYMBOLS else {}
    return tuple(sorted(name for name in names if re.fullmatch(pattern, name))[:MOST_NAMES])


def one_family(_: str) -> str:
    """The family of every symbol where there is only one API."""
    return ""


@dataclass(frozen=True, slots=True)
class SymbolCoverage:
    """Compares libraries with the `symbols` of a table."""

    symbols: Collection[str]
    coverable: re.Pattern[str] | None
    """Pattern of names of functions that belong in the table; None where coverage is not checked."""
    family: Callable[[str], str]
    """The API that a symbol belongs to."""

    def count_missing(self, library: Library) -> int:
        """The number of symbols that a library lacks, of families that it has some of."""
        families = {self.family(symbol) for symbol in self.symbols if symbol in library.functions}
        return sum(self.family(symbol) in families for symbol in self.symbols if symbol not in library.functions)

    def find_uncovered(self, library: Library) -> tuple[str, ...]:
        """The functions of a library that should be in the table; empty where the file cannot be read."""
        if not self.coverable:
            return ()
        try:
            found: tuple[str, ...] = WORKER.call(names_like, file_of(library), self.coverable.pattern)
        except (OSError, ValueError):
            return ()  # find_places reports what is wrong with the file
        return tuple(name for name in found if name not in self.symbols)
