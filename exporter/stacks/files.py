"""The mapped files of observed processes, each open once: rules of unwinding, names and lines by address."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import ClassVar

from exporter.bpf.elf_file import ElfError
from exporter.stacks import libdw
from exporter.stacks.debug_files import WantedFile
from exporter.stacks.debug_info import DebugInfo, SourceLine
from exporter.stacks.demangle import demangle
from exporter.stacks.libdw import FrameInformation, UnwindRule
from exporter.stacks.object_file import ObjectFile, SupplementaryFile

_MOST_KEPT = 1 << 16
MOST_UNPACKED = 64 << 20
_KEPT_TIMES = 50
"""Debug information stays open for this many times the processor time that it took: opened again and again it takes
2 % of a processor.
"""
_UNKNOWN = SourceLine("", "", 0)


class CodeFile:
    """One mapped file. What cannot be read of it is not known; nothing raises."""

    unpacked: ClassVar[int] = 0
    """Bytes of debug information that had to be unpacked, of all files where it is open."""

    def __init__(self, descriptor: int, path: str, registers: tuple[int, ...]) -> None:
        """Take over the descriptor; `registers` are those of FrameInformation."""
        self.path = path
        self._rules: dict[int, UnwindRule | None] = {}
        self._sources: dict[int, tuple[SourceLine, ...]] = {}
        self._elf: ObjectFile | None = None
        self._frames: FrameInformation | None = None
        self._debug_files: list[ObjectFile] = []
        self._source: ObjectFile | None = None
        """The file with the debug information, which takes `_unpacked` bytes while it is open."""
        self._supplement: ObjectFile | None = None
        self._unpacked = 0
        self._debug: DebugInfo | None = None
        self._reading = 0.0
        self.debug_until = 0.0
        """Time by time.monotonic() at which `close_debug` is due, if debug information is open."""
        try:
            self._elf = ObjectFile(descriptor)
            self._frames = FrameInformation(self._elf.fileno(), registers) if not libdw.missing() else None
        except (ElfError, OSError):
            self._elf = None
        self.wanted: WantedFile | None = None
        """A file that has debug information of this one, to be given to take_debug_file."""
        self._take_source(self._elf)
        self.build_id = _build_id(self._elf)
        self.head = _head(self._elf)
        """The begin of the file with its address, before relocation: different in each file with a build id."""
        if self._source is None and self._frames and self.build_id:
            self.wanted = WantedFile(self.build_id)

    def take_debug_file(self, descriptor: int) -> None:
        """Take over the descriptor of a file that should be the wanted one: a debug file, or a supplementary file."""
        wanted, self.wanted = self.wanted, None
        try:
            file = ObjectFile(descriptor) if self._source is None else SupplementaryFile(descriptor)
        except (ElfError, OSError):
            return
        if wanted is None or _build_id(file) != wanted.build_id:
            file.close()
            return
        self.close_debug()
        self._sources.clear()
        self._debug_files.append(file)
        if self._source is None:
            self._take_source(file)
        else:
            self._take_supplement(file)

    def _take_source(self, file: ObjectFile | None) -> None:
        """Take debug information from this file, if it has some that is not too large."""
        if file is None or self._frames is None:
            return
        with suppress(ElfError, OSError):
            size = file.unpacked_debug_info
            if size is not None and size <= MOST_UNPACKED:
                self._source, self._unpacked = file, size
                self.wanted = file.supplement

    def _take_supplement(self, file: ObjectFile) -> None:
        """Take what the debug information refers to from this file, if it is not too large."""
        with suppress(ElfError, OSError):
            size = file.unpacked_debug_info or 0
            if self._unpacked + size <= MOST_UNPACKED:
                self._supplement, self._unpacked = file, self._unpacked + size

    def _calls(self, addresses: Iterable[int]) -> Mapping[int, list[SourceLine]]:
        """Return what the debug information has of addresses: nothing where there is none, or no room to unpack it."""
        began = time.process_time()
        if self._debug is None and self._source and CodeFile.unpacked + self._unpacked <= MOST_UNPACKED:
            CodeFile.unpacked += self._unpacked
            self._debug, self._reading = self._open_debug(self._source), 0.0
        if self._debug is None:
            return {}
        found = {address: self._debug.calls(address) for address in addresses}
        self._reading += time.process_time() - began
        self.debug_until = time.monotonic() + _KEPT_TIMES * self._reading
        return found

    def _open_debug(self, source: ObjectFile) -> DebugInfo:
        refers, without = False, list[int]()
        with suppress(ElfError, OSError):
            refers, without = source.supplement is not None, source.unused_debug_sections
        supplement = self._supplement.fileno() if self._supplement else None
        return DebugInfo(source.fileno(), refers, supplement, without)

    def close_debug(self) -> None:
        """Release the memory of the debug information, which the next lookup of another address opens again."""
        if self._debug:
            self._debug.close()
            CodeFile.unpacked -= self._unpacked
        self._debug = None

    def address_of(self, offset: int) -> int | None:
        """Return the address, before relocation, of an offset in the file; None where that is no code."""
        try:
            return self._elf.address_of(offset) if self._elf else None
        except ElfError:
            return None

    def rule(self, address: int) -> UnwindRule | None:
        if self._frames is None:
            return None
        if address not in self._rules:
            if len(self._rules) >= _MOST_KEPT:
                self._rules.clear()
            self._rules[address] = self._frames.rule(address)
        return self._rules[address]

    def unnamed(self, address: int) -> bool:
        """Return whether the functions at an address have not been looked up yet."""
        return address not in self._sources

    def look_up(self, addresses: Iterable[int]) -> None:
        """Look up the functions at addresses, in one pass over the file's symbols."""
        wanted = set(addresses)
        if len(self._sources) + len(wanted) > _MOST_KEPT:
            self._sources.clear()
        found: dict[int, str] = {}
        for file in (*self._debug_files, self._elf):  # of several names of a function, that of .dynsym is in use
            with suppress(ElfError, OSError, MemoryError):
                found |= file.names(wanted) if file else {}
        calls = self._calls(wanted)
        for address in wanted:
            *inlined, function = calls.get(address) or [_UNKNOWN]
            if found.get(address):
                function = function._replace(function=found[address])
            self._sources[address] = tuple(it._replace(function=demangle(it.function)) for it in (*inlined, function))

    def sources(self, address: int) -> tuple[SourceLine, ...]:
        """Return the function at an address that was looked up, demangled, after those that are inlined into it; with
        an empty name without a symbol.
        """
        return self._sources.get(address, (_UNKNOWN,))

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
        self.close_debug()
        self._source = self._frames = None
        for file in (self._elf, *self._debug_files):
            if file:
                file.close()


def is_interpreter(path: str, first: bool) -> bool:
    """Return whether a file may hold a Python interpreter: the program itself, or what is named after Python."""
    return first or "python" in PurePosixPath(path).name.lower()


def _head(file: ObjectFile | None) -> tuple[int, bytes] | None:
    try:
        return file.head() if file else None
    except (ElfError, OSError):
        return None


def _build_id(file: ObjectFile | None) -> str:
    try:
        return file.build_id if file else ""
    except (ElfError, OSError):
        return ""
