"""Tables of functions that a provider passes to verbs_set_ops: the second argument of each of its calls."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from exporter.bpf.elf import AARCH64, Elf, ElfError, LoadedPart
from exporter.verbs.code.constant_propagation import MAX_CODE, Code
from exporter.verbs.code.eh_frame import Frames
from exporter.verbs.code.relocations import Relocations

SET_OPS = "verbs_set_ops"
MAX_BYTES = 1 << 21
"""Bytes of a provider's code; the largest known has 370 kB."""
MAX_SITES = MAX_TABLES = 16
MAX_DECODED = 1 << 16
"""Bytes of the functions with these calls, together."""
_TABLE_ARGUMENT = 1

# x86-64: jmp or call through [rip + d32], and jmp or call to rip + d32
_THROUGH_SLOT = re.compile(rb"(?=\xff([\x15\x25])(....))", re.DOTALL)
_DIRECT = re.compile(rb"(?=[\xe8\xe9](....))", re.DOTALL)
_ENDBR64, _BND = b"\xf3\x0f\x1e\xfa", b"\xf2"
_CALL_THROUGH, _THROUGH_SIZE, _DIRECT_SIZE = b"\x15", 6, 5

# arm64: what a stub of the procedure linkage table begins with; adrp x16, page and ldr x17, [x16, offset]
_BTI_C = 0xD503245F
_ADRP_X16 = (0x9F00001F, 0x90000010)
_LDR_X17 = (0xFFC003FF, 0xF9400211)
_BRANCH = (0x7C000000, 0x14000000)


@dataclass(frozen=True, slots=True)
class Tables:
    """Addresses of the tables, and of calls with a table that is not, or not always, a constant."""

    addresses: tuple[int, ...]
    unresolved: tuple[int, ...]


def find(elf: Elf, relocations: Relocations, frames: Frames) -> Tables:
    """Return the tables of all calls. Raises ElfError for more code or more calls than a provider has."""
    slots = {address for address, name in relocations.imported.items() if name == SET_OPS}
    by_function: dict[tuple[int, int], set[int]] = defaultdict(set)
    unresolved: set[int] = set()
    for count, site in enumerate(calls(elf, slots)):
        if count >= MAX_SITES:
            raise ElfError("calls verbs_set_ops more often than a provider would")
        function = frames.containing(site)
        if function is None or function[1] > MAX_CODE:
            unresolved.add(site)
        else:
            by_function[function].add(site)
    if sum(size for _, size in by_function) > MAX_DECODED:
        raise ElfError("calls verbs_set_ops from larger functions than a provider would")
    found: set[int] = set()
    for (start, size), sites in by_function.items():
        reached = Code(elf.machine, elf.read(start, size), start).constants_at(sites, _TABLE_ARGUMENT)
        unresolved |= sites - reached.keys()
        for site, tables in reached.items():
            found |= {table for table in tables if table is not None}
            if None in tables:
                unresolved.add(site)
    if len(found) > MAX_TABLES:
        raise ElfError("gives verbs_set_ops more tables than a provider would")
    return Tables(tuple(sorted(found)), tuple(sorted(unresolved)))


def calls(elf: Elf, slots: Collection[int]) -> Iterator[int]:
    """Yield the addresses of instructions that call the function in one of the slots, or jump there at their end."""
    parts = elf.code_parts
    if sum(part.size for part in parts) > MAX_BYTES:
        raise ElfError("more code than a provider has")
    codes = [(part, elf.read(part.address, part.size)) for part in parts]
    stubs: set[int] = set()
    if elf.machine == AARCH64:
        for part, code in codes:
            stubs |= set(_arm_stubs(part, _words(code), slots))
        for part, code in codes:
            yield from _arm_calls(part, _words(code), stubs)
        return
    through: set[int] = set()
    for part, code in codes:
        for at, calls in _through_slot(part, code, slots):
            if calls:
                yield part.address + at
            else:
                through.add(part.address + at)
                stubs |= {part.address + start for start in _stub_starts(code, at)}
    reached = set()
    for part, code in codes:
        for match in _DIRECT.finditer(code):
            site = part.address + match.start()
            target = site + _DIRECT_SIZE + int.from_bytes(match[1], "little", signed=True)
            if target in stubs:
                reached.add(target)
                yield site
    if not reached:
        yield from through  # no stub: a function ends with the jump


def _through_slot(part: LoadedPart, code: bytes, slots: Collection[int]) -> Iterator[tuple[int, bool]]:
    for match in _THROUGH_SLOT.finditer(code):
        next_at = part.address + match.start() + _THROUGH_SIZE
        if next_at + int.from_bytes(match[2], "little", signed=True) in slots:
            yield match.start(), match[1] == _CALL_THROUGH


def _stub_starts(code: bytes, at: int) -> Iterator[int]:
    """Yield where a stub with its jump at this offset may begin."""
    yield at
    if code[at - len(_BND) : at] == _BND:
        at -= len(_BND)
        yield at
    if code[at - len(_ENDBR64) : at] == _ENDBR64:
        yield at - len(_ENDBR64)


def _words(code: bytes) -> list[int]:
    return memoryview(code[: len(code) // 4 * 4]).cast("I").tolist()


def _arm_stubs(part: LoadedPart, words: list[int], slots: Collection[int]) -> Iterator[int]:
    for index, word in enumerate(words[:-1]):
        if word & _ADRP_X16[0] != _ADRP_X16[1] or words[index + 1] & _LDR_X17[0] != _LDR_X17[1]:
            continue
        at = part.address + 4 * index
        pages = _signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)
        if (at & ~0xFFF) + (pages << 12) + (words[index + 1] >> 10 & 0xFFF) * 8 in slots:
            yield at
            if index and words[index - 1] == _BTI_C:
                yield at - 4


def _arm_calls(part: LoadedPart, words: list[int], stubs: Collection[int]) -> Iterator[int]:
    """Yield the addresses of b and bl to a stub; a conditional branch does not reach that far."""
    mask, branch = _BRANCH
    for index in [index for index, word in enumerate(words) if word & mask == branch]:
        at = part.address + 4 * index
        if at + 4 * _signed(words[index] & 0x3FFFFFF, 26) in stubs:
            yield at


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value
