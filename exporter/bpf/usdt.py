"""Probes that a program was built with (USDT, sys/sdt.h): where they are in the file, and where their arguments are.

Each is a nop and a note in the section .note.stapsdt: three addresses (the nop, that of .stapsdt.base when it was
linked, a counter) and three texts (provider, name, arguments); systemtap's wiki, UserSpaceProbeImplementation.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

from exporter.bpf.elf import AARCH64, X86_64, Elf, ElfError, Function

_OWNER, _KIND = b"stapsdt\0", 3
_ADDRESSES = struct.Struct("<3Q")
_NOPS = {
    X86_64: (b"\x90", b"\x0f\x1f\x44\x00\x00", b"\x66\x90"),
    AARCH64: (b"\x1f\x20\x03\xd5",),
}
MOST_SITES = 128
"""Of one probe in one file: a name in a header that is compiled in everywhere can have thousands."""


@dataclass(frozen=True, slots=True)
class Site:
    """One place of a probe: offsets in the file of the nop and of the counter that switches it on (0: it has none)."""

    offset: int
    semaphore: int
    arguments: str
    """As the compiler wrote them: size@operand, separated by spaces."""
    emulated: bool
    """True if a hit costs one trap instead of two (exporter/bpf/placement.py)."""


def find(elf: Elf, wanted: Collection[str]) -> dict[str, tuple[Site, ...]]:
    """The sites of each wanted `provider:name` that the file has.

    A site that is no nop is left out: to probe the middle of an instruction would break the program. ElfError, OSError.
    """
    found: dict[str, list[Site]] = {}
    for note in elf.notes(_OWNER, _KIND) if wanted else ():
        texts = note[_ADDRESSES.size :].split(b"\0")
        if len(note) < _ADDRESSES.size or len(texts) < 3:
            continue
        name = b":".join(texts[:2]).decode(errors="replace")
        if name not in wanted:
            continue
        address, _, counter = _ADDRESSES.unpack_from(note)
        sites = found.setdefault(name, [])
        if (site := _site(elf, address, counter, texts[2].decode(errors="replace"))) and len(sites) < MOST_SITES:
            sites.append(site)
    return {name: tuple(sites) for name, sites in found.items() if sites}


def _site(elf: Elf, address: int, counter: int, arguments: str) -> Site | None:
    try:
        offset = elf.offset(address)
        code = elf.code(Function("", offset, 0, address, 0), 5)
        semaphore = elf.offset(counter) if counter else 0
    except ElfError:
        return None
    nop = next((nop for nop in _NOPS.get(elf.machine, ()) if code.startswith(nop)), None)
    return Site(offset, semaphore, arguments, nop in (b"\x90", b"\x66\x90")) if nop else None
