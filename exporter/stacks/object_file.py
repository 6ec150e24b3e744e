"""ELF files for unwinding and naming: data symbols, sections and names of addresses, besides functions."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping

from exporter.bpf.elf import Elf
from exporter.bpf.elf_file import ElfError, Section
from exporter.stacks.debug_files import WantedFile, below_dwz

_SYMBOL_BYTES = 24
_CHUNK = _SYMBOL_BYTES << 13
_SYMTAB, _STRTAB, _NOBITS, _DYNSYM = 2, 3, 8, 11
_DEBUG = (".debug_info", ".zdebug_info")
_UNUSED = (b".debug_loclists", b".debug_loc", b".debug_macro")
_SHF_COMPRESSED = 1 << 11
_COMPRESSED = struct.Struct("<IIQQ")
"""Elf64_Chdr of elf.h: type, reserved, size, alignment."""
_RELOCATABLE, _NOTE = 1, 7
"""e_type and sh_type."""
_LOADED, _HEAD = 1, 1024
"""p_type, and bytes in which linkers put the headers and the build id."""
_OBJECT, _FUNCTION, _INDIRECT = 1, 2, 10
_MOST_SYMBOLS = 1 << 23
_LONGEST_NAME = 1024
_LONGEST_SECTION = 64
_LONGEST_LINK = 4096 + 64
_MOST_NAMES, _MOST_TABLES = 512, 8
"""Sections that are not loaded, and tables of texts: many times what compilers make."""


class ObjectFile(Elf):
    """An open ELF file of an observed process. Methods raise ElfError for a malformed one, OSError for unreadable."""

    def address_of(self, offset: int) -> int:
        """Return the address, before relocation, of the byte at an offset of the file; it lies in a code segment."""
        for part in self.code_parts:
            if 0 <= offset - part.offset < part.size:
                return part.address + offset - part.offset
        raise ElfError("an offset that is in no executable segment")

    def head(self) -> tuple[int, bytes] | None:
        """Return the begin of the file and its address, before relocation; None where that is not loaded."""
        first = next((it for it in self.parts(_LOADED) if not it.offset), None)
        return (first.address, self._read(0, min(first.size, _HEAD))) if first else None

    def data(self, wanted: Collection[str]) -> Mapping[str, int]:
        """Return the addresses, before relocation, of the data objects among the wanted names."""
        sections = self.sections()
        found: dict[str, int] = {}
        for table in self._tables(sections):
            for _, name, (_, info, _, section, address, _) in self._symbols(table, sections, wanted):
                if info & 0xF == _OBJECT and section:
                    found.setdefault(name, address)
        return found

    @property
    def unpacked_debug_info(self) -> int | None:
        """The bytes that libdw takes to unpack the file's DWARF, 0 where it maps it; None where the file has none."""
        sections = self.sections()
        names = sorted({it.name for it in sections if not it.address})[:_MOST_NAMES]
        tables = [it for it in sections if it.kind == _STRTAB][:_MOST_TABLES]
        found = any(self._text(it, at, _LONGEST_SECTION) in _DEBUG for it in tables for at in names)
        return sum(map(self._unpacked, sections)) if found else None

    @property
    def supplement(self) -> WantedFile | None:
        """The supplementary file that this one refers to: .gnu_debugaltlink has its path and its build id."""
        section = self.named_section(b".gnu_debugaltlink")
        if section is None or section.size > _LONGEST_LINK:
            return None
        path, _, build_id = self._read(section.offset, section.size).partition(b"\0")
        return WantedFile(build_id.hex(), below_dwz(path.decode(errors="replace"))) if build_id else None

    @property
    def unused_debug_sections(self) -> list[int]:
        """The numbers of the sections with the places of variables, which would be unpacked and not used."""
        sections = self.sections()
        named = [self.named_section(it) for it in _UNUSED]
        return [number for number, it in enumerate(sections) if it in named]

    def _unpacked(self, section: Section) -> int:
        """Return the bytes that a compressed section has once unpacked, 0 of one that is not."""
        if section.kind == _NOBITS or section.address or section.size < _COMPRESSED.size:
            return 0
        head = self._read(section.offset, _COMPRESSED.size)
        if section.flags & _SHF_COMPRESSED:
            return int(_COMPRESSED.unpack(head)[2])
        return int.from_bytes(head[4:12], "big") if head.startswith(b"ZLIB") else 0

    def section(self, wanted: str) -> int | None:
        """Return the address, before relocation, of the section of a name; None without one."""
        sections = self.sections()
        for names in sections:
            if names.kind != _STRTAB or names.flags:  # the names of sections are not loaded
                continue
            for it in sections:
                if it.address and it.name < names.size and self._text(names, it.name, _LONGEST_SECTION) == wanted:
                    return it.address
        return None

    def names(self, addresses: Collection[int]) -> dict[int, str]:
        """Return the names of the functions that the addresses, before relocation, are in; without those unknown.

        One pass over the symbols for any number of addresses, which keeps no index.
        """
        wanted = sorted(set(addresses))
        found: dict[int, tuple[int, Section, int]] = {}
        sections = self.sections()
        for table in self._tables(sections):
            strings = sections[table.link]
            for name, start, size in self._functions(table):
                at = bisect_left(wanted, start)
                while at < len(wanted) and wanted[at] < start + size:
                    if wanted[at] not in found or size < found[wanted[at]][2]:
                        found[wanted[at]] = name, strings, size
                    at += 1
        texts = {at: self._text(strings, name, _LONGEST_NAME) for at, (name, strings, _) in found.items()}
        return {at: text for at, text in texts.items() if text}

    def _tables(self, sections: list[Section]) -> Iterator[Section]:
        for kind in (_SYMTAB, _DYNSYM):
            table = next((it for it in sections if it.kind == kind), None)
            if table is None:
                continue
            if table.item != _SYMBOL_BYTES or table.link >= len(sections) or sections[table.link].kind != _STRTAB:
                raise ElfError("a symbol table without a string table")
            if table.size > _MOST_SYMBOLS * _SYMBOL_BYTES:
                raise ElfError("more symbols than a real library has")
            yield table

    def _functions(self, table: Section) -> Iterator[tuple[int, int, int]]:
        """Yield place of the name, address and size of each function that has one."""
        for first in range(0, table.size // _SYMBOL_BYTES * _SYMBOL_BYTES, _CHUNK):
            chunk = self._read(table.offset + first, min(_CHUNK, table.size // _SYMBOL_BYTES * _SYMBOL_BYTES - first))
            words = array("Q", chunk)
            for head, start, size in zip(words[::3], words[1::3], words[2::3], strict=True):
                if size and head >> 32 & 0xF in (_FUNCTION, _INDIRECT) and head >> 48:
                    yield head & 0xFFFFFFFF, start, size

    def _text(self, strings: Section, at: int, longest: int) -> str:
        if at >= strings.size:
            return ""
        return (
            self._read(strings.offset + at, min(longest, strings.size - at))
            .partition(b"\0")[0]
            .decode(errors="replace")
        )


class SupplementaryFile(ObjectFile):
    """An open file that dwz made of what debug files have in common: relocatable, with sections and no segments."""

    KINDS = (_RELOCATABLE, *ObjectFile.KINDS)

    @property
    def unpacked_debug_info(self) -> int:
        """The bytes that libdw takes to unpack the file's DWARF, which may be texts alone."""
        return sum(map(self._unpacked, self.sections()))

    def _notes(self) -> Iterator[tuple[int, int]]:
        return ((it.offset, it.size) for it in self.sections() if it.kind == _NOTE)
