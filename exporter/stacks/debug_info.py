"""Lines and inlined functions of ELF files, from their debug information (DWARF) by elfutils' libdw, through ctypes.

Only in the child process that unwinds: files are hostile, and libdw maps them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from exporter.stacks import libdw
from exporter.stacks.libdw import MappedFile

MOST_UNITS = 1 << 16
"""Units of a file that lacks .debug_aranges, and ranges of each, are looked through to this number."""
_MOST_SCOPES = 256
_LONGEST = 512
_NO_FILE = b"???"
"""Number 0 before DWARF 5."""
_READ = 0  # DWARF_C_READ
_P, _I, _U64, _SIZE, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p
# DWARF 5, sections 7.5.3 and 7.5.4; DW_AT_MIPS_linkage_name is that of compilers before DWARF 4.
_SUBPROGRAM, _INLINED = 0x2E, 0x1D
_NAME, _CALL_FILE, _CALL_LINE, _LINKAGE_NAME, _MIPS_LINKAGE_NAME = 0x03, 0x58, 0x59, 0x6E, 0x2007


class SourceLine(NamedTuple):
    """A function, by its linkage name if it has one, and the line of it that runs or calls; "" and 0 if not known."""

    function: str
    file: str
    line: int


class _Die(ctypes.Structure):
    """Dwarf_Die of elfutils/libdw.h."""

    _fields_ = [("addr", _P), ("cu", _P), ("abbrev", _P), ("padding", ctypes.c_long)]


class _Attribute(ctypes.Structure):
    """Dwarf_Attribute of elfutils/libdw.h."""

    _fields_ = [("code", ctypes.c_uint), ("form", ctypes.c_uint), ("valp", _P), ("cu", _P)]


_ONE = ctypes.POINTER(_Die)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {  # result, then arguments
    "dwarf_begin_elf": (_P, _P, _I, _P),
    "dwarf_end": (_I, _P),
    "dwarf_setalt": (None, _P, _P),
    "dwarf_addrdie": (_ONE, _P, _U64, _ONE),
    "dwarf_get_units": (_I, _P, _P, ctypes.POINTER(_P), _P, _P, _ONE, _P),
    "dwarf_ranges": (ctypes.c_ssize_t, _ONE, ctypes.c_ssize_t, *[ctypes.POINTER(_U64)] * 3),
    "dwarf_getscopes": (_I, _ONE, _U64, ctypes.POINTER(_ONE)),
    "dwarf_getscopes_die": (_I, _ONE, ctypes.POINTER(_ONE)),
    "dwarf_tag": (_I, _ONE),
    "dwarf_attr_integrate": (_P, _ONE, ctypes.c_uint, ctypes.POINTER(_Attribute)),
    "dwarf_formstring": (_TEXT, _P),
    "dwarf_formudata": (_I, _P, ctypes.POINTER(_U64)),
    "dwarf_getsrcfiles": (_I, _ONE, ctypes.POINTER(_P), ctypes.POINTER(_SIZE)),
    "dwarf_filesrc": (_TEXT, _P, _SIZE, _P, _P),
    "dwarf_getsrc_die": (_P, _ONE, _U64),
    "dwarf_lineno": (_I, _P, ctypes.POINTER(_I)),
    "dwarf_linesrc": (_TEXT, _P, _P, _P),
}


@cache
def _functions() -> Any:
    dw, _, _ = libdw.libraries()
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(dw, name)
        function.restype, function.argtypes = result, arguments
    return dw


class DebugInfo:
    """The debug information of an ELF file; its descriptors stay open, and the caller closes them.

    `refers` is true if the file refers to a supplementary file, made by dwz, of which `supplement` is the descriptor if
    it has been found. Without it there are no names: libdw would look for them in the file itself. `without` are the
    numbers of sections of the file that are not used.
    """

    def __init__(
        self, descriptor: int, refers: bool = False, supplement: int | None = None, without: Sequence[int] = ()
    ) -> None:
        self._dw = _functions()
        self._open: list[tuple[MappedFile, Any]] = []
        self._dwarf = self._begin(descriptor, without)
        other = self._begin(supplement) if self._dwarf and supplement is not None else None
        self._named = other is not None or not refers
        if self._dwarf:  # where a file refers to another one, libdw would open that
            self._dw.dwarf_setalt(self._dwarf, other or self._dwarf)
        self._ranges: list[tuple[int, int, _Die]] | None = None

    def _begin(self, descriptor: int, without: Sequence[int] = ()) -> Any:
        file = MappedFile(descriptor, without)
        dwarf = self._dw.dwarf_begin_elf(file.elf, _READ, None) if file.elf else None
        self._open.append((file, dwarf))
        file.release()  # compressed sections, which libdw has unpacked
        return dwarf

    def calls(self, address: int) -> list[SourceLine]:
        """Return the function that an address, before relocation, is in, after those inlined into it, innermost first;
        empty where that is not known.
        """
        unit = self._unit(address) if self._dwarf else None
        if unit is None:
            return []
        file, line = self._line(unit, address)
        found = []
        for die in self._scopes(unit, address):
            tag = self._dw.dwarf_tag(die)
            if tag not in (_SUBPROGRAM, _INLINED):
                continue
            found.append(SourceLine(self._name(die), file, line))
            if tag == _SUBPROGRAM:
                break
            file, line = self._file(unit, self._number(die, _CALL_FILE)), max(0, self._number(die, _CALL_LINE))
        return found or ([SourceLine("", file, line)] if line else [])

    def close(self) -> None:
        """Release the memory: that of sections that had to be unpacked, and what libdw has read of others."""
        for file, dwarf in self._open:
            if dwarf:
                self._dw.dwarf_end(dwarf)
            file.close()
        libdw.trim()
        self._open, self._dwarf, self._ranges = [], None, None

    def _unit(self, address: int) -> _Die | None:
        unit = _Die()
        if self._dw.dwarf_addrdie(self._dwarf, address, ctypes.byref(unit)):
            return unit
        if self._ranges is None:
            self._ranges = list(self._all_ranges())
        return next((it for low, high, it in self._ranges if low <= address < high), None)

    def _all_ranges(self) -> Iterator[tuple[int, int, _Die]]:
        """Yield the addresses of each unit: clang writes no .debug_aranges."""
        at, count = _P(), 0
        while count < MOST_UNITS:
            following, unit = _P(), _Die()
            if self._dw.dwarf_get_units(self._dwarf, at, ctypes.byref(following), None, None, ctypes.byref(unit), None):
                return
            at, count = following, count + 1
            base, low, high, offset = _U64(), _U64(), _U64(), 0
            for _ in range(MOST_UNITS):
                places = ctypes.byref(base), ctypes.byref(low), ctypes.byref(high)
                offset = self._dw.dwarf_ranges(ctypes.byref(unit), offset, *places)
                if offset <= 0:
                    break
                yield low.value, high.value, unit

    def _scopes(self, unit: _Die, address: int) -> list[_Die]:
        """Return the entries around an address, the innermost first, as they contain one another."""
        inner = self._array(self._dw.dwarf_getscopes, unit, address)
        return self._array(self._dw.dwarf_getscopes_die, inner[0]) if inner else []

    def _array(self, function: Any, die: _Die, *arguments: Any) -> list[_Die]:
        found = _ONE()
        count = function(ctypes.byref(die), *arguments, ctypes.byref(found))
        if count <= 0:
            return []
        try:
            return [_Die.from_buffer_copy(found[n]) for n in range(min(count, _MOST_SCOPES))]
        finally:
            libdw.libraries()[2].free(found)

    def _name(self, die: _Die) -> str:
        for name in (_LINKAGE_NAME, _MIPS_LINKAGE_NAME, _NAME) if self._named else ():
            attribute = _Attribute()
            if self._dw.dwarf_attr_integrate(ctypes.byref(die), name, ctypes.byref(attribute)):
                text = self._dw.dwarf_formstring(ctypes.byref(attribute))
                if text:
                    return _text(text)
        return ""

    def _number(self, die: _Die, name: int) -> int:
        attribute, value = _Attribute(), _U64()
        if not self._dw.dwarf_attr_integrate(ctypes.byref(die), name, ctypes.byref(attribute)):
            return -1
        failed = self._dw.dwarf_formudata(ctypes.byref(attribute), ctypes.byref(value))
        return -1 if failed else min(value.value, (1 << 31) - 1)

    def _file(self, unit: _Die, number: int) -> str:
        files, count = _P(), _SIZE()
        if self._dw.dwarf_getsrcfiles(ctypes.byref(unit), ctypes.byref(files), ctypes.byref(count)):
            return ""
        name = self._dw.dwarf_filesrc(files, number, None, None) if 0 <= number < count.value else None
        return "" if name == _NO_FILE else _text(name)

    def _line(self, unit: _Die, address: int) -> tuple[str, int]:
        line, number = self._dw.dwarf_getsrc_die(ctypes.byref(unit), address), _I()
        if not line or self._dw.dwarf_lineno(line, ctypes.byref(number)):
            return "", 0
        return _text(self._dw.dwarf_linesrc(line, None, None)), max(0, number.value)


def _text(found: bytes | None) -> str:
    return (found or b"")[:_LONGEST].decode(errors="replace")
