"""Reads what probes need of an ELF file: where its functions are, their code, what it imports, its build id.

Files belong to the observed processes and may be hostile or change while they are read, so nothing is mapped into
memory (a file cut short would be a SIGBUS) and every table has a limit. Layouts: System V gABI, chapters 4 and 5.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

X86_64, AARCH64 = 62, 183

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NOTE = struct.Struct("<III")

_ELF64_LITTLE = b"\x7fELF\x02\x01\x01"
_EXECUTABLE_OR_SHARED = (2, 3)
_LOAD, _NOTES, _EXECUTE = 1, 4, 1
_SYMTAB, _STRTAB, _NOTE_SECTION, _DYNSYM, _VERSYM = 2, 3, 7, 11, 0x6FFFFFFF
_FUNCTION = 2
_BUILD_ID = 3
_LOCAL = 0
_HIDDEN_VERSION = 0x8000

MAX_SYMBOLS = 1 << 23
MAX_STRINGS = 1 << 28
MAX_NAMES = 1 << 16
_MAX_NOTES = 1 << 16
_MAX_NOTES_SECTION = 1 << 22
_LONGEST_NAME = 1 << 12
_CHUNK = 1 << 20


class ElfError(ValueError):
    """The file is no 64-bit little-endian ELF program or library, or its tables contradict themselves."""


@dataclass(frozen=True, slots=True)
class Function:
    """A defined function. `offset` is its place in the file; `size` in bytes, 0 when the symbol has none."""

    name: str
    offset: int
    size: int
    address: int
    binding: int
    """STB_LOCAL 0, STB_GLOBAL 1, STB_WEAK 2."""


class Part(NamedTuple):
    """A piece of the file and the address it is loaded at, before relocation; size in bytes."""

    address: int
    offset: int
    size: int


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    in_file: int
    in_memory: int
    align: int


class _Section(NamedTuple):
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


class Elf:
    """An open ELF file. Use as a context manager, or close it."""

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor of a regular file; see `open`."""
        self._file = descriptor
        try:
            self._size = os.fstat(descriptor).st_size
            self._read_headers()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path | str) -> Elf:
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

    def __enter__(self) -> Elf:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def build_id(self) -> str:
        """The linker's build id in lower-case hex, empty when there is none."""
        for segment in self._segments:
            if segment.kind == _NOTES and segment.in_file <= _MAX_NOTES:
                found = _find_note(self._read(segment.offset, segment.in_file), b"GNU\0", _BUILD_ID)
                if found:
                    return found.hex()
        return ""

    @property
    def symbol_count(self) -> int:
        """The number of symbols in the headers of the tables: what it would cost to read all names."""
        return sum(s.size // _SYMBOL.size for s in self._sections() if s.kind in (_DYNSYM, _SYMTAB))

    def functions(self, wanted: Collection[str] | None) -> dict[str, Function]:
        """The defined functions among `wanted` (None: all) of .dynsym and .symtab, by name.

        Weak symbols count; several names of one address are several functions. An indirect function (IFUNC) is left
        out: its symbol is the resolver, not the code that callers reach. Of a versioned name the default version is
        taken; of static functions of one name the first.
        """
        found: dict[str, Function] = {}
        doubtful: dict[str, Function] = {}
        sections = self._sections()
        versions = _first(sections, _VERSYM)
        for kind in (_DYNSYM, _SYMTAB):  # a file has at most one of each
            table = _first(sections, kind)
            for index, name, symbol in self._symbols(table, sections, wanted) if table else ():
                function = self._function(name, symbol)
                if function is None:
                    continue
                hidden = kind == _DYNSYM and versions is not None and self._is_hidden(versions, index)
                (doubtful if hidden or function.binding == _LOCAL else found).setdefault(name, function)
        return doubtful | found

    def imports(self, wanted: Collection[str]) -> frozenset[str]:
        """Which of the wanted names the file leaves to other libraries to define."""
        sections = self._sections() if wanted else []
        table = _first(sections, _DYNSYM)
        found = self._symbols(table, sections, wanted) if table else ()
        return frozenset(name for _, name, (_, _, _, section, _, _) in found if not section)

    def notes(self, owner: bytes, kind: int) -> Iterator[bytes]:
        """The contents of all notes of a kind in the file's sections, loaded or not; ElfError for endless ones."""
        for section in self._sections():
            if section.kind == _NOTE_SECTION:
                if section.size > _MAX_NOTES_SECTION:
                    raise ElfError("more notes than a real library has")
                yield from _notes(self._read(section.offset, section.size), owner, kind)

    def parts(self, kind: int) -> list[Part]:
        """What the segments of a kind (p_type) take of the file."""
        return [Part(s.address, s.offset, s.in_file) for s in self._segments if s.kind == kind]

    @property
    def code_parts(self) -> list[Part]:
        """Where the file has code."""
        return [Part(s.address, s.offset, s.in_file) for s in self._code]

    def offset(self, address: int) -> int:
        """Where in the file the byte of an address is; ElfError if the file has none."""
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

    def code(self, function: Function, limit: int) -> bytes:
        """The first bytes of a function: at most `limit`, and no more than its symbol and segment hold."""
        segment = self._executable_segment(function.address)
        if segment is None:
            raise ElfError(f"{function.name} is in no executable segment")
        held = segment.offset + segment.in_file - function.offset
        return self._read(function.offset, min(limit, function.size or limit, held))

    def _read_headers(self) -> None:
        if self._size < _HEADER.size:
            raise ElfError("too short for an ELF file")
        ident, kind, machine, _, _, segments, sections, _, _, *counts = _HEADER.unpack(self._read(0, _HEADER.size))
        segment_size, segment_count, section_size, section_count, _ = counts
        if not ident.startswith(_ELF64_LITTLE):
            raise ElfError("not a 64-bit little-endian ELF file")
        if kind not in _EXECUTABLE_OR_SHARED:
            raise ElfError("neither a program nor a shared library")
        if segment_count and segment_size != _SEGMENT.size or section_count and section_size != _SECTION.size:
            raise ElfError("headers of an unknown size")
        self.machine: int = machine
        """The instruction set: 62 is x86-64, 183 is arm64."""
        table = self._read(segments, segment_count * _SEGMENT.size)
        self._segments = [_Segment(*fields) for fields in _SEGMENT.iter_unpack(table)]
        self._code = [s for s in self._segments if s.kind == _LOAD and s.flags & _EXECUTE]
        self._sections_at, self._section_count = sections, section_count

    def _sections(self) -> list[_Section]:
        table = self._read(self._sections_at, self._section_count * _SECTION.size)
        return [_Section(*fields) for fields in _SECTION.iter_unpack(table)]

    def _is_hidden(self, versions: _Section, index: int) -> bool:
        if (index + 1) * 2 > versions.size:
            return False
        return bool(int.from_bytes(self._read(versions.offset + index * 2, 2), "little") & _HIDDEN_VERSION)

    def _symbols(
        self, table: _Section, sections: list[_Section], wanted: Collection[str] | None
    ) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        """Index, name and fields of each symbol that has a wanted name."""
        if table.item != _SYMBOL.size or table.link >= len(sections) or sections[table.link].kind != _STRTAB:
            raise ElfError("a symbol table without a string table")
        strings = sections[table.link]
        if table.size > MAX_SYMBOLS * _SYMBOL.size or strings.size > MAX_STRINGS:
            raise ElfError("more symbols than a real library has")
        if wanted is None:
            text = self._read(strings.offset, strings.size)
            for index, symbol in self._entries(table, None):
                end = text.find(b"\0", symbol[0], symbol[0] + _LONGEST_NAME)
                if end > symbol[0]:
                    yield index, text[symbol[0] : end].decode(errors="replace"), symbol
            return
        names = self._find_names(strings, wanted)
        for index, symbol in self._entries(table, frozenset(names)) if names else ():
            yield index, names[symbol[0]], symbol

    def _entries(self, table: _Section, names: frozenset[int] | None) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The symbols with a name at one of these places of the string table (None: all), with their index."""
        per_chunk = _CHUNK // _SYMBOL.size
        for first in range(0, table.size // _SYMBOL.size, per_chunk):
            count = min(per_chunk, table.size // _SYMBOL.size - first)
            chunk = self._read(table.offset + first * _SYMBOL.size, count * _SYMBOL.size)
            if names is not None and names.isdisjoint(memoryview(chunk).cast("I")[:: _SYMBOL.size // 4].tolist()):
                continue
            for index, symbol in enumerate(_SYMBOL.iter_unpack(chunk), first):
                if names is None or symbol[0] in names:
                    yield index, symbol

    def _find_names(self, strings: _Section, wanted: Collection[str]) -> dict[int, str]:
        """Where in the string table the wanted names are.

        Linkers let a name share the end of a longer one (ncclSend within pncclSend), so strings are chosen by their
        last bytes, which one pass can do for any number of names.
        """
        names = [name.encode() for name in wanted if name]
        if not names:
            return {}
        tail, longest = min(map(len, names)), max(map(len, names))
        tails = frozenset(name[-tail:] for name in names)
        found: dict[int, str] = {}
        for start in range(0, strings.size, _CHUNK):
            chunk = self._read(strings.offset + start, min(_CHUNK + longest, strings.size - start))
            present = tails.intersection([text[-tail:] for text in chunk.split(b"\0")])
            for name in names if present else ():
                if name[-tail:] in present:
                    found.update((start + at, name.decode()) for at in _occurrences(chunk, name + b"\0"))
            if len(found) > MAX_NAMES:
                raise ElfError("a name is repeated too often")
        return found

    def _function(self, name: str, symbol: tuple[int, ...]) -> Function | None:
        _, info, _, section, address, size = symbol
        segment = self._executable_segment(address)
        if info & 0xF != _FUNCTION or not section or segment is None:
            return None
        offset = address - segment.address + segment.offset
        return Function(name, offset, size, address, info >> 4) if offset < self._size else None

    def _executable_segment(self, address: int) -> _Segment | None:
        return next((s for s in self._code if s.address <= address < s.address + s.in_file), None)

    def _read(self, offset: int, size: int) -> bytes:
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


def _first(sections: list[_Section], kind: int) -> _Section | None:
    return next((section for section in sections if section.kind == kind), None)


def _occurrences(text: bytes, name: bytes) -> Iterator[int]:
    at = text.find(name)
    while at >= 0:
        yield at
        at = text.find(name, at + 1)


def _find_note(notes: bytes, owner: bytes, kind: int) -> bytes:
    """The content of the first such note; empty when there is none."""
    return next(_notes(notes, owner, kind), b"")


def _notes(notes: bytes, owner: bytes, kind: int) -> Iterator[bytes]:
    """The contents of all such notes. Names and contents are padded to four bytes."""
    at = 0
    while at + _NOTE.size <= len(notes):
        owner_size, size, found = _NOTE.unpack_from(notes, at)
        at += _NOTE.size
        content = at + (owner_size + 3 & ~3)
        if found == kind and notes[at : at + owner_size] == owner:
            yield notes[content : content + size]
        at = content + (size + 3 & ~3)
