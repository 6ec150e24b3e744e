"""Words that the dynamic linker writes into a shared library: pointers to its own code, and imported symbols.

Read from the dynamic section, so a file needs no section headers. System V gABI, chapter 5, with RELR;
x86-64 psABI table 4.10; ELF for the Arm 64-bit architecture, "Relocation".
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from exporter.bpf.dynamic import entries
from exporter.bpf.elf import AARCH64, X86_64, Elf, ElfError

MAX_RELOCATIONS = 1 << 17
MAX_STRINGS = 1 << 22

_DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 5, 6, 10
_DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_PLTRELSZ, _DT_RELR, _DT_RELRSZ = 7, 8, 23, 2, 36, 35
_RELA = struct.Struct("<QIIq")
_SYMBOL = struct.Struct("<IBBHQQ")
_WORD = 8
_LONGEST_NAME = 1 << 8
_PRIVATE_ABI = re.compile(rb"\0IBVERBS_PRIVATE_(\d{1,3})\0")


@dataclass(frozen=True)
class _Types:
    relative: int
    absolute: int
    """A symbol's value and an addend."""
    slots: frozenset[int]
    """GLOB_DAT and JUMP_SLOT."""


_TYPES = {
    X86_64: _Types(relative=8, absolute=1, slots=frozenset({6, 7})),
    AARCH64: _Types(relative=1027, absolute=257, slots=frozenset({1025, 1026})),
}


@dataclass(frozen=True, slots=True)
class Relocations:
    """Words of the loaded library by address; addresses are the file's."""

    pointers: dict[int, int]
    """Address of a word to the address in this library that it will hold."""
    imported: dict[int, str]
    """Address of a word to the symbol of another library that it will point to."""


def read(elf: Elf) -> Relocations:
    """Return all relocations. Raises ElfError where they are broken, too many or of an unknown machine."""
    types = _TYPES.get(elf.machine)
    if types is None:
        raise ElfError("neither x86-64 nor arm64")
    dynamic = entries(elf)
    found = Relocations(dict(_packed(elf, dynamic)), {})
    symbols = _Symbols(elf, dynamic)
    for table, size in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        for address, kind, symbol, addend in _RELA.iter_unpack(_table(elf, dynamic, table, size, _RELA.size)):
            if kind == types.relative:
                found.pointers[address] = addend
            elif kind == types.absolute or kind in types.slots:
                name, value = symbols.get(symbol)
                if value:
                    found.pointers[address] = value + addend
                elif name:
                    found.imported[address] = name
    return found


def private_abi(elf: Elf) -> int:
    """Return the number nn of the symbol version IBVERBS_PRIVATE_nn that a library has or needs, 0 for none."""
    dynamic = entries(elf)
    size = dynamic.get(_DT_STRSZ, 0)
    if size > MAX_STRINGS:
        raise ElfError("more names than a provider has")
    found = _PRIVATE_ABI.search(elf.read(dynamic.get(_DT_STRTAB, 0), size) if size else b"")
    return int(found[1]) if found else 0


def _table(elf: Elf, dynamic: dict[int, int], start: int, size: int, item: int) -> bytes:
    length = dynamic.get(size, 0) // item * item
    if length > MAX_RELOCATIONS * item:
        raise ElfError("more relocations than a provider has")
    return elf.read(dynamic[start], length) if length and start in dynamic else b""


def _packed(elf: Elf, dynamic: dict[int, int]) -> list[tuple[int, int]]:
    """Return the relocations of RELR: an even word is an address, an odd one a bitmap of the next 63 words."""
    addresses: list[int] = []
    at = 0
    for (word,) in struct.iter_unpack("<Q", _table(elf, dynamic, _DT_RELR, _DT_RELRSZ, _WORD)):
        if not word & 1:
            addresses.append(word)
            at = word + _WORD
            continue
        addresses += [at + bit * _WORD for bit in range(63) if word >> (bit + 1) & 1]
        at += 63 * _WORD
        if len(addresses) > MAX_RELOCATIONS:
            raise ElfError("more relocations than a provider has")
    return [(address, int.from_bytes(elf.read(address, _WORD), "little")) for address in addresses]


class _Symbols:
    """Names and values of dynamic symbols by index."""

    def __init__(self, elf: Elf, dynamic: dict[int, int]) -> None:
        self._elf, self._table = elf, dynamic.get(_DT_SYMTAB, 0)
        self._strings, self._size = dynamic.get(_DT_STRTAB, 0), dynamic.get(_DT_STRSZ, 0)
        self._known: dict[int, tuple[str, int]] = {}

    def get(self, index: int) -> tuple[str, int]:
        """Return a symbol's name, and its address if it is defined in this file, else 0."""
        if index not in self._known:
            entry = self._elf.read(self._table + index * _SYMBOL.size, _SYMBOL.size)
            name, _, _, section, value, _ = _SYMBOL.unpack(entry)
            self._known[index] = self._name(name), value if section else 0
        return self._known[index]

    def _name(self, at: int) -> str:
        if at >= self._size:
            raise ElfError("a symbol's name lies outside the string table")
        text = self._elf.read(self._strings + at, min(_LONGEST_NAME, self._size - at))
        return text.partition(b"\0")[0].decode(errors="replace")
