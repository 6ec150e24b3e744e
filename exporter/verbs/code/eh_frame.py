"""Starts and ends of functions, by the unwind tables that stripped files keep too.

.eh_frame_hdr is a sorted table of the starts of all functions, .eh_frame has their sizes. Linux Standard Base, Core,
"Exception Frames"; DWARF 5, 6.4.1.
"""

from __future__ import annotations

import struct

from exporter.bpf.elf import Elf, ElfError

MAX_FRAMES = 1 << 22

_EH_FRAME_HDR = 0x6474E550  # p_type PT_GNU_EH_FRAME
_HEADER = struct.Struct("<BBBBiI")
_VERSION, _PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4 = 1, 0x1B, 0x03, 0x3B
_ENTRY = struct.Struct("<ii")
_DESCRIPTION = struct.Struct("<IIiI")
_START_AT = 8


class Frames:
    """The functions of one file. Entries are read on demand, so a table of any size costs the same."""

    def __init__(self, elf: Elf) -> None:
        """Read the header. Raises ElfError where the file has no such table, or one that no known linker writes."""
        self._elf = elf
        parts = elf.parts(_EH_FRAME_HDR)
        if not parts or parts[0].size < _HEADER.size:
            raise ElfError("no .eh_frame_hdr: where functions start is not known")
        self._base = parts[0].address
        version, frames, counted, table, _, self._count = _HEADER.unpack(elf.read(self._base, _HEADER.size))
        if (version, frames, counted, table) != (_VERSION, _PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4):
            raise ElfError("an .eh_frame_hdr of an unknown format")
        if self._count > MAX_FRAMES or _HEADER.size + self._count * _ENTRY.size > parts[0].size:
            raise ElfError("an .eh_frame_hdr longer than its segment")

    def containing(self, address: int) -> tuple[int, int] | None:
        """Return start and size in bytes of the function that holds an address; None where no function does."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[0] <= address:
                low = middle + 1
            else:
                high = middle
        if not low:
            return None
        start, description = self._entry(low - 1)
        size = self._size(start, description)
        return (start, size) if start <= address < start + size else None

    def size(self, address: int) -> int:
        """Return the size in bytes of the function that starts at an address, 0 where none does."""
        found = self.containing(address)
        return found[1] if found and found[0] == address else 0

    def _entry(self, index: int) -> tuple[int, int]:
        start, description = _ENTRY.unpack(self._elf.read(self._base + _HEADER.size + index * _ENTRY.size, _ENTRY.size))
        return self._base + start, self._base + description

    def _size(self, start: int, description: int) -> int:
        """Return the size in .eh_frame; 0 where the entry is another function's or in an unknown encoding."""
        length, _, relative, size = _DESCRIPTION.unpack(self._elf.read(description, _DESCRIPTION.size))
        known = length >= _DESCRIPTION.size - 4 and description + _START_AT + relative == start
        return int(size) if known else 0
