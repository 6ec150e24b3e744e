"""The headers and the content of an ELF file: its segments, its sections, and what is at an address.

Files belong to the observed processes and may be hostile or change while they are read, so nothing is mapped into
memory (a file cut short would be a SIGBUS) and every table has a limit. Layouts: System V gABI, chapters 4 and 5.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

X86_64, AARCH64 = 62, 183

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")

_ELF64_LITTLE = b"\x7fELF\x02\x01\x01"
_LOAD, _EXECUTE = 1, 1
_MOST_NAMES = 1 << 16
"""Bytes of names of sections: a real library has some hundred."""


class ElfError(ValueError):
    """The file is no 64-bit little-endian ELF program or library, or its tables contradict themselves."""


class TakesLonger(ElfError):
    """Reading the file was stopped: it takes more time than it was given."""


class LoadedPart(NamedTuple):
    """A piece of the file and the address it is loaded at, before relocation; size in bytes."""

    address: int
    offset: int
    size: int


class Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    in_file: int
    in_memory: int
    align: int


class Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    item: int


class ElfFile:
    """An open ELF file. Use as a context manager, or close it."""

    KINDS: ClassVar[tuple[int, ...]] = (2, 3)
    """Values of e_type: an executable file, a shared object."""

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor of a regular file; see `open`."""
        self._file = descriptor
        self.until = float("inf")
        """Processor time of the thread, on time.thread_time, after which reading raises TakesLonger."""
        try:
            self._size = os.fstat(descriptor).st_size
            self._read_headers()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Raises OSError where the file cannot be read, ElfError where it is not what it should be."""
        if not stat.S_ISREG(Path(path).stat().st_mode):  # opening a device may act on it
            raise ElfError("not a regular file")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ElfError("not a regular file")
        return cls(descriptor)

    def fileno(self) -> int:
        """The descriptor; it stays ours."""
        return self._file

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def parts(self, kind: int) -> list[LoadedPart]:
        """Return what the segments of a kind (p_type) take of the file."""
        return [LoadedPart(s.address, s.offset, s.in_file) for s in self._segments if s.kind == kind]

    @property
    def code_parts(self) -> list[LoadedPart]:
        """Return where the file has code."""
        return [LoadedPart(s.address, s.offset, s.in_file) for s in self._code]

    def offset(self, address: int) -> int:
        """Return where in the file the byte of an address is; ElfError if the file has none."""
        segment = next((s for s in self._segments if s.kind == _LOAD and 0 <= address - s.address < s.in_file), None)
        if segment is None:
            raise ElfError("an address for which the file has no content")
        return segment.offset + address - segment.address

    def read(self, address: int, size: int) -> bytes:
        """The file's content for these addresses, before relocation; ElfError if it has not all of it."""
        start = self.offset(address)
        if size > 1 and self.offset(address + size - 1) != start + size - 1:
            raise ElfError("a table spans segments")
        return self._read(start, size)

    def _read_headers(self) -> None:
        if self._size < _HEADER.size:
            raise ElfError("too short for an ELF file")
        ident, kind, machine, _, _, segments, sections, _, _, *counts = _HEADER.unpack(self._read(0, _HEADER.size))
        segment_size, segment_count, section_size, section_count, self._names = counts
        if not ident.startswith(_ELF64_LITTLE):
            raise ElfError("not a 64-bit little-endian ELF file")
        if kind not in self.KINDS:
            raise ElfError("neither a program nor a shared library")
        if segment_count and segment_size != _SEGMENT.size or section_count and section_size != _SECTION.size:
            raise ElfError("headers of an unknown size")
        self.machine: int = machine
        """The instruction set: 62 is x86-64, 183 is arm64."""
        table = self._read(segments, segment_count * _SEGMENT.size)
        self._segments = [Segment(*fields) for fields in _SEGMENT.iter_unpack(table)]
        self._code = [s for s in self._segments if s.kind == _LOAD and s.flags & _EXECUTE]
        self._sections_at, self._section_count = sections, section_count

    def sections(self) -> list[Section]:
        table = self._read(self._sections_at, self._section_count * _SECTION.size)
        return [Section(*fields) for fields in _SECTION.iter_unpack(table)]

    def has_section(self, name: bytes) -> bool:
        """Return whether there is a section of this name."""
        return self.named_section(name) is not None

    def named_section(self, name: bytes) -> Section | None:
        """Return the first section of this name, also one that is not loaded; None without one."""
        sections = self.sections()
        if self._names >= len(sections) or sections[self._names].size > _MOST_NAMES:
            return None
        names = self._read(sections[self._names].offset, sections[self._names].size)
        return next((it for it in sections if names.startswith(name + b"\0", it.name)), None)

    def _executable_segment(self, address: int) -> Segment | None:
        return next((s for s in self._code if s.address <= address < s.address + s.in_file), None)

    def _read(self, offset: int, size: int) -> bytes:
        if time.thread_time() > self.until:
            raise TakesLonger("reading it takes more than a slice of time")
        if offset + size > self._size:
            raise ElfError("cut short: a table lies beyond the end of the file")
        parts = []
        while size:
            part = os.pread(self._file, size, offset)
            if not part:
                raise ElfError("cut short while it was read")
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)
