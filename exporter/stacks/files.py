"""The mapped files of observed processes, each open once: rules of unwinding, names and lines by address."""

from __future__ import annotations

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
_UNKNOWN = SourceLine("", "", 0)


class CodeFile:
    """One mapped file. What cannot be read of it is not known; nothing raises."""

    unpacked: ClassVar[int] = 0
    """Bytes of debug information of all files that had to be unpacked."""

    def __init__(self, descriptor: int, path: str, registers: tuple[int, ...]) -> None:
        """Take over the descriptor; `registers` are those of FrameInformation."""
        self.path = path
        self._rules: dict[int, UnwindRule | None] = {}
        self._sources: dict[int, tuple[SourceLine, ...]] = {}
        self._elf: ObjectFile | None = None
        self._frames: FrameInformation | None = None
        self._debug_files: list[ObjectFile] = []
        self._debug: DebugInfo | None = None
        try:
            self._elf = ObjectFile(descriptor)
            self._frames = FrameInformation(self._elf.fileno(), registers) if not libdw.missing() else None
        except (ElfError, OSError):
            self._elf = None
        self._debug = self._debug_info(self._elf, self._frames)
        self.build_id = _build_id(self._elf)
        self.wanted: WantedFile | None = None
        """A file with debug information of this one, to be given to take_debug_file."""
        if self._debug:
            self.wanted = self._debug.wanted
        elif self._frames and self.build_id:
            self.wanted = WantedFile(self.build_id)

    def take_debug_file(self, descriptor: int) -> None:
        """Take over the descriptor of a file that should be the wanted one: a debug file, or a supplementary file."""
        wanted, self.wanted = self.wanted, None
        try:
            file = ObjectFile(descriptor) if self._debug is None else SupplementaryFile(descriptor)
        except (ElfError, OSError):
            return
        if wanted is None or _build_id(file) != wanted.build_id:
            file.close()
            return
        self._debug_files.append(file)
        frames = FrameInformation(file.fileno(), ())
        if self._debug is None:
            self._debug = self._debug_info(file, frames)
            self.wanted = self._debug.wanted if self._debug else None
        elif self._fits(file):
            self._debug.take_supplement(frames.elf)
        self._sources.clear()

    @classmethod
    def _debug_info(cls, file: ObjectFile | None, frames: FrameInformation | None) -> DebugInfo | None:
        """Return the debug information of a file that has some, if there is room for what has to be unpacked."""
        if file is None or frames is None or not frames.elf:
            return None
        return DebugInfo(frames.elf) if cls._fits(file) else None

    @staticmethod
    def _fits(file: ObjectFile) -> bool:
        """Return whether a file has debug information, and room for what has to be unpacked, which is then taken."""
        with suppress(ElfError, OSError):
            size = file.unpacked_debug_info
            if size is not None and CodeFile.unpacked + size <= MOST_UNPACKED:
                CodeFile.unpacked += size
                return True
        return False

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
        for file in (
            *self._debug_files,
            self._elf,
        ):  # of several names for a function, that of .dynsym is the one in use
            with suppress(ElfError, OSError, MemoryError):
                found |= file.names(wanted) if file else {}
        for address in wanted:
            *inlined, function = (self._debug.calls(address) if self._debug else ()) or [_UNKNOWN]
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
        if self._debug:
            self._debug.close()
        self._debug = self._frames = None
        for file in (self._elf, *self._debug_files):
            if file:
                file.close()


def is_interpreter(path: str, first: bool) -> bool:
    """Return whether a file may hold a Python interpreter: the program itself, or what is named after Python."""
    return first or "python" in PurePosixPath(path).name.lower()


def _build_id(file: ObjectFile | None) -> str:
    try:
        return file.build_id if file else ""
    except (ElfError, OSError):
        return ""
