"""Call frame information of ELF files (.eh_frame) by elfutils' libdw, through ctypes.

Only in the child process that unwinds: files are hostile, and libdw maps them. The frame information at an address
becomes a rule, which is kept: unwinding a stack again needs no library.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

INSTALL = "install elfutils' libdw (package libdw1 on Debian and Ubuntu, elfutils-libs on RHEL and Fedora)"
_READ_MMAP = 8  # ELF_C_READ_MMAP
_EV_CURRENT = 1
_MOST_OPERATIONS = 64
_MAP_FAILED, _MAP_NORESERVE = (1 << 64) - 1, 0x4000
_E_SHOFF = 40
"""Offset of the place of the section headers in the header of an ELF file."""
_HEADER_BYTES, _SH_TYPE, _NOBITS = 64, 4, 8
"""Of a section header: its bytes, the offset of the type, and the type of a section that has nothing in the file."""
_P, _I, _U64, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_size_t

# DWARF 5, section 7.7.1.
_DEREF, _PLUS_UCONST, _CALL_FRAME_CFA, _STACK_VALUE = 0x06, 0x23, 0x9C, 0x9F
_BREG0, _BREGX, _REG0, _REGX = 0x70, 0x92, 0x50, 0x90

Operations = tuple[tuple[int, int, int], ...]
"""Code and two operands of each operation of a DWARF expression."""


class _Operation(ctypes.Structure):
    """Dwarf_Op of elfutils/libdw.h."""

    _fields_ = [("atom", ctypes.c_uint8), ("number", _U64), ("number2", _U64), ("offset", _U64)]


_FUNCTIONS: dict[str, tuple[Any, ...]] = {  # result, then arguments
    "dwarf_getcfi_elf": (_P, _P),
    "dwarf_cfi_addrframe": (_I, _P, _U64, ctypes.POINTER(_P)),
    "dwarf_frame_info": (_I, _P, _P, _P, ctypes.POINTER(ctypes.c_bool)),
    "dwarf_frame_cfa": (_I, _P, ctypes.POINTER(ctypes.POINTER(_Operation)), ctypes.POINTER(_SIZE)),
    "dwarf_frame_register": (
        *(_I, _P, _I, _P),
        *(ctypes.POINTER(ctypes.POINTER(_Operation)), ctypes.POINTER(_SIZE)),
    ),
}


@dataclass(frozen=True, slots=True)
class UnwindRule:
    """Rule to compute the caller's registers from the registers of a frame, at one address of a file.

    The CFA is the register `base` and `offset`, or the expression `cfa` where `base` is negative; `saved` are the
    places, from the CFA, of registers that the frame has put on the stack, `computed` expressions of places. `returns`
    is the column of the return address; an `outermost` frame has no caller. `signal` frames interrupted their caller
    before an instruction.
    """

    base: int
    offset: int
    cfa: Operations
    saved: tuple[tuple[int, int], ...]
    computed: tuple[tuple[int, Operations], ...]
    returns: int
    outermost: bool
    signal: bool


@cache
def libraries() -> tuple[Any, Any, Any]:
    """Return libdw, libelf and the C library. Raises OSError where this machine lacks the first two."""
    dw, elf, c = ctypes.CDLL("libdw.so.1"), ctypes.CDLL("libelf.so.1"), ctypes.CDLL(None)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(dw, name)
        function.restype, function.argtypes = result, arguments
    elf.elf_version(_EV_CURRENT)
    elf.elf_begin.restype, elf.elf_begin.argtypes = _P, (_I, _I, _P)
    elf.elf_memory.restype, elf.elf_memory.argtypes = _P, (_P, _SIZE)
    elf.elf_end.restype, elf.elf_end.argtypes = _I, (_P,)
    c.free.restype, c.free.argtypes = None, (_P,)
    c.mmap.restype, c.mmap.argtypes = _P, (_P, _SIZE, _I, _I, _I, ctypes.c_long)
    c.munmap.restype, c.munmap.argtypes = _I, (_P, _SIZE)
    c.madvise.restype, c.madvise.argtypes = _I, (_P, _SIZE, _I)
    return dw, elf, c


def missing() -> str:
    """Return why native frames cannot be unwound on this machine, with the remedy; empty where they can."""
    try:
        libraries()
    except (OSError, AttributeError) as error:
        return f"stacks have no native frames ({str(error).replace(': ', ', ')}): {INSTALL}"
    return ""


def begin(descriptor: int) -> Any:
    """Have libelf map an open file; None if that fails. The descriptor stays the caller's."""
    return libraries()[1].elf_begin(descriptor, _READ_MMAP, None)


class MappedFile:
    """An ELF file that libelf reads from memory: `elf`, None where it cannot. The descriptor stays the caller's.

    libelf changes section headers in place when it unpacks sections, so pages are private. The sections with the
    numbers `without` are left out.
    """

    def __init__(self, descriptor: int, without: Sequence[int] = ()) -> None:
        self._size = os.fstat(descriptor).st_size
        self._headers = int.from_bytes(os.pread(descriptor, 8, _E_SHOFF), sys.byteorder)
        _, elf, c = libraries()
        rights, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_NORESERVE
        self._at = c.mmap(None, self._size, rights, flags, descriptor, 0)
        for number in without if self._at != _MAP_FAILED else ():
            kind = self._headers + number * _HEADER_BYTES + _SH_TYPE
            if kind + 4 <= self._size:
                ctypes.c_uint32.from_address(self._at + kind).value = _NOBITS
        self.elf = elf.elf_memory(self._at, self._size) if self._at != _MAP_FAILED else None

    def release(self) -> None:
        """Give back the pages in front of the section headers, which the kernel reads again where they are needed."""
        if self._at != _MAP_FAILED and self._headers <= self._size:
            libraries()[2].madvise(self._at, self._headers & -mmap.PAGESIZE, mmap.MADV_DONTNEED)

    def close(self) -> None:
        if self.elf:
            libraries()[1].elf_end(self.elf)
        if self._at != _MAP_FAILED:
            libraries()[2].munmap(self._at, self._size)
        self.elf, self._at = None, _MAP_FAILED


def trim() -> None:
    """Give memory that was freed back to the kernel, where the C library can."""
    with suppress(AttributeError):
        libraries()[2].malloc_trim(0)


class FrameInformation:
    """The rules of one ELF file. Its descriptor stays the caller's, and open. `registers` are the DWARF numbers of
    those that functions preserve.
    """

    def __init__(self, descriptor: int, registers: tuple[int, ...]) -> None:
        self._registers = registers
        self._dw, _, self._c = libraries()
        elf = begin(descriptor)
        self._cfi = self._dw.dwarf_getcfi_elf(elf) if elf else None

    def rule(self, address: int) -> UnwindRule | None:
        """Return the rule at an address, before relocation; None where there is none, or it is not understood."""
        frame = _P()
        if not self._cfi or self._dw.dwarf_cfi_addrframe(self._cfi, address, ctypes.byref(frame)):
            return None
        try:
            return self._read(frame)
        finally:
            self._c.free(frame)

    def _read(self, frame: Any) -> UnwindRule | None:
        signal, operations, count = ctypes.c_bool(), ctypes.POINTER(_Operation)(), _SIZE()
        returns = self._dw.dwarf_frame_info(frame, None, None, ctypes.byref(signal))
        if returns < 0 or self._dw.dwarf_frame_cfa(frame, ctypes.byref(operations), ctypes.byref(count)):
            return None
        expression = _copy(operations, count.value)
        if not expression:
            return None
        saved, computed, outermost = [], [], False
        for register in (*self._registers, returns):
            place = self._place(frame, register)
            if place is None:
                return None
            if place == "undefined":
                outermost = outermost or register == returns
            elif isinstance(place, int):
                saved.append((register, place))
            elif place != "same":
                computed.append((register, place))
        base, offset = _base(expression)
        return UnwindRule(base, offset, expression, tuple(saved), tuple(computed), returns, outermost, signal.value)

    def _place(self, frame: Any, register: int) -> Any:
        """Return where the caller's register is: an offset from the CFA, an expression of a place, "same" as here, or
        "undefined"; None for what is not understood.
        """
        memory, operations, count = (_Operation * 3)(), ctypes.POINTER(_Operation)(), _SIZE()
        if self._dw.dwarf_frame_register(frame, register, memory, ctypes.byref(operations), ctypes.byref(count)):
            return None
        if not count.value:
            return "undefined" if operations else "same"
        found = _copy(operations, count.value)
        if not found or found[-1][0] == _STACK_VALUE:
            return None
        if found[0][0] == _CALL_FRAME_CFA and len(found) == 1:
            return 0
        if found[0][0] == _CALL_FRAME_CFA and len(found) == 2 and found[1][0] == _PLUS_UCONST:
            return found[1][1]
        in_register = len(found) == 1 and (found[0][0] == _REGX or _REG0 <= found[0][0] < _BREG0)
        return None if in_register else found


def _copy(operations: Any, count: int) -> Operations:
    if not 0 < count <= _MOST_OPERATIONS:
        return ()
    return tuple((it.atom, it.number, it.number2) for it in operations[:count])


def _base(expression: Operations) -> tuple[int, int]:
    """Return register and offset of an expression that is nothing else; (-1, 0) for others."""
    atom, first, second = expression[0]
    if len(expression) == 1 and _BREG0 <= atom < _REGX:
        return atom - _BREG0, first
    return (first, second) if len(expression) == 1 and atom == _BREGX else (-1, 0)
