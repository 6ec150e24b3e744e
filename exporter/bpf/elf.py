"""Reads what probes need of an ELF file: where its functions are, their code, what it imports, its build id."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from exporter.bpf.elf_file import AARCH64, X86_64, ElfError, ElfFile, LoadedPart, Section, TakesLonger

__all__ = ["AARCH64", "X86_64", "Elf", "ElfError", "Function", "LoadedPart", "TakesLonger"]

_SYMBOL = struct.Struct("<IBBHQQ")
_NOTE = struct.Struct("<III")

_NOTES = 4  # p_type of a segment of notes
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
_CHUNK = 1 << 16
"""Bytes that are read at once: the time is looked at before each."""


@dataclass(frozen=True, slots=True)
class Function:
    """A defined function. `offset` is its place in the file; `size` in bytes, 0 when the symbol has none."""

    name: str
    offset: int
    size: int
    address: int
    binding: int
    """STB_LOCAL 0, STB_GLOBAL 1, STB_WEAK 2."""


class Elf(ElfFile):
    """An open ELF file with its functions and notes. Use as a context manager, or close it."""

    @property
    def build_id(self) -> str:
        """The linker's build id in lower-case hex, empty when there is none."""
        for offset, size in self._notes():
            found = _find_note(self._read(offset, size), b"GNU\0", _BUILD_ID) if size <= _MAX_NOTES else None
            if found:
                return found.hex()
        return ""

    def _notes(self) -> Iterator[tuple[int, int]]:
        """Yield offset and size of each table of notes in the file."""
        return ((it.offset, it.in_file) for it in self._segments if it.kind == _NOTES)

    @property
    def symbol_count(self) -> int:
        """The number of symbols in the headers of the tables: what it would cost to read all names."""
        return sum(s.size // _SYMBOL.size for s in self.sections() if s.kind in (_DYNSYM, _SYMTAB))

    def functions(self, wanted: Collection[str] | None) -> dict[str, Function]:
        """The defined functions among `wanted` (None: all) of .dynsym and .symtab, by name.

        Weak symbols count; several names of one address are several functions. An indirect function (IFUNC) is left
        out: its symbol is the resolver, not the code that callers reach. Of a versioned name the default version is
        taken; of static functions of one name the first.
        """
        found: dict[str, Function] = {}
        doubtful: dict[str, Function] = {}
        sections = self.sections()
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
        """Return the wanted names that the file imports: undefined symbols of .dynsym, defined by other libraries."""
        sections = self.sections() if wanted else []
        table = _first(sections, _DYNSYM)
        found = self._symbols(table, sections, wanted) if table else ()
        return frozenset(name for _, name, (_, _, _, section, _, _) in found if not section)

    def notes(self, owner: bytes, kind: int) -> Iterator[bytes]:
        """The contents of all notes of a kind in the file's sections, loaded or not; ElfError for endless ones."""
        for section in self.sections():
            if section.kind == _NOTE_SECTION:
                if section.size > _MAX_NOTES_SECTION:
                    raise ElfError("more notes than a real library has")
                yield from _notes(self._read(section.offset, section.size), owner, kind)

    def code(self, function: Function, limit: int) -> bytes:
        """The first bytes of a function: at most `limit`, and no more than its symbol and segment hold."""
        segment = self._executable_segment(function.address)
        if segment is None:
            raise ElfError(f"{function.name} is in no executable segment")
        held = segment.offset + segment.in_file - function.offset
        return self._read(function.offset, min(limit, function.size or limit, held))

    def _is_hidden(self, versions: Section, index: int) -> bool:
        if (index + 1) * 2 > versions.size:
            return False
        return bool(int.from_bytes(self._read(versions.offset + index * 2, 2), "little") & _HIDDEN_VERSION)

    def _symbols(
        self, table: Section, sections: list[Section], wanted: Collection[str] | None
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

    def _entries(self, table: Section, names: frozenset[int] | None) -> Iterator[tuple[int, tuple[int, ...]]]:
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

    def _find_names(self, strings: Section, wanted: Collection[str]) -> dict[int, str]:
        """Return where in the string table the wanted names are.

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


def _first(sections: list[Section], kind: int) -> Section | None:
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
