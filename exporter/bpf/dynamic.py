"""The dynamic section of a shared library: what the dynamic linker reads of it (System V gABI, chapter 5)."""

from __future__ import annotations

import struct

from exporter.bpf.elf import Elf, ElfError

_DYNAMIC = 2  # p_type
_DT_STRTAB, _DT_STRSZ, _DT_SONAME = 5, 10, 14
_ENTRY = struct.Struct("<qQ")
_MOST = 1 << 12
_LONGEST_NAME = 256


def entries(elf: Elf) -> dict[int, int]:
    """Return the section's entries by tag, of each tag the first. Raises ElfError for a file without one."""
    parts = elf.parts(_DYNAMIC)
    if not parts:
        raise ElfError("no dynamic section: not a shared library")
    size = min(parts[0].size, _MOST * _ENTRY.size) // _ENTRY.size * _ENTRY.size
    found: dict[int, int] = {}
    for tag, value in _ENTRY.iter_unpack(elf.read(parts[0].address, size) if size else b""):
        if not tag:
            break
        found.setdefault(tag, value)
    return found


def soname(elf: Elf) -> str:
    """Return the name that a library has for the programs linked with it; empty where it has none that can be read."""
    try:
        found = entries(elf)
        at, left = found[_DT_SONAME], found[_DT_STRSZ] - found[_DT_SONAME]
        name = elf.read(found[_DT_STRTAB] + at, min(_LONGEST_NAME, left)) if left > 0 else b""
    except (ElfError, KeyError):
        return ""
    return name.partition(b"\0")[0].decode(errors="replace")
