"""The mapped files of observed processes, each open once: rules of unwinding and names by address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import PurePosixPath

from exporter.bpf.elf_file import ElfError
from exporter.stacks import libdw
from exporter.stacks.demangle import demangle
from exporter.stacks.libdw import FrameInformation, Rule
from exporter.stacks.object_file import ObjectFile

_MOST_KEPT = 1 << 16


class CodeFile:
    """One mapped file. What cannot be read of it is not known; nothing raises."""

    def __init__(self, descriptor: int, path: str, registers: tuple[int, ...]) -> None:
        """Take over the descriptor; `registers` are those of FrameInformation."""
        self.path = path
        self._rules: dict[int, Rule | None] = {}
        self._names: dict[int, str] = {}
        self._elf: ObjectFile | None = None
        self._frames: FrameInformation | None = None
        try:
            self._elf = ObjectFile(descriptor)
            self._frames = FrameInformation(self._elf.fileno(), registers) if not libdw.missing() else None
        except (ElfError, OSError):
            self._elf = None
        self.build_id = self._read_build_id()

    def address_of(self, offset: int) -> int | None:
        """Return the address, before relocation, of an offset in the file; None where that is no code."""
        try:
            return self._elf.address_of(offset) if self._elf else None
        except ElfError:
            return None

    def rule(self, address: int) -> Rule | None:
        if self._frames is None:
            return None
        if address not in self._rules:
            if len(self._rules) >= _MOST_KEPT:
                self._rules.clear()
            self._rules[address] = self._frames.rule(address)
        return self._rules[address]

    def unnamed(self, address: int) -> bool:
        """Whether the name at an address has not been looked up yet."""
        return address not in self._names

    def look_up(self, addresses: Iterable[int]) -> None:
        """Look up the names of functions at addresses, in one pass over the file's symbols."""
        wanted = set(addresses)
        if len(self._names) + len(wanted) > _MOST_KEPT:
            self._names.clear()
        found: Mapping[int, str] = {}
        with suppress(ElfError, OSError, MemoryError):
            found = self._elf.names(wanted) if self._elf else {}
        for address in wanted:
            self._names[address] = demangle(found.get(address, ""))

    def name(self, address: int) -> str:
        """Return the name of the function at an address that was looked up, demangled; empty without a symbol."""
        return self._names.get(address, "")

    def data(self, wanted: Iterable[str]) -> Mapping[str, int]:
        """Return the addresses, before relocation, of data objects by name."""
        try:
            return self._elf.data([*wanted]) if self._elf else {}
        except (ElfError, OSError):
            return {}

    def section(self, name: str) -> int | None:
        """Return the address, before relocation, of a section."""
        try:
            return self._elf.section(name) if self._elf else None
        except (ElfError, OSError):
            return None

    def close(self) -> None:
        """Close the file, of which nothing is looked up afterwards."""
        self._frames = None
        if self._elf:
            self._elf.close()

    def _read_build_id(self) -> str:
        try:
            return self._elf.build_id if self._elf else ""
        except (ElfError, OSError):
            return ""


def is_interpreter(path: str, first: bool) -> bool:
    """Whether a file may hold a Python interpreter: the program itself, or what is named after Python."""
    return first or "python" in PurePosixPath(path).name.lower()
