"""The static library of a provider in libibverbs-dev: names of functions, and code to compare with.

It was compiled from the same sources a second time, so most functions are the same to the byte but for what linking
fills in, and the others nearly so.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import capstone
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from exporter.bpf.elf import X86_64

_MAGIC, _HEADER = b"!<arch>\n", 60
ENDBR64, BTI_C = b"\xf3\x0f\x1e\xfa", b"\x5f\x24\x03\xd5"
_EIGHT_BYTES = {1, 24, 257}  # R_X86_64_64, R_X86_64_PC64, R_AARCH64_ABS64


@dataclass
class Compiled:
    """A function of an object file: its code, and which bytes of it linking fills in."""

    code: bytes
    filled: set[int]
    shape: Counter[tuple[str, ...]]
    calls: set[str]
    """Of the symbols that linking fills in."""
    jumps_to: str
    """The function that this one is no more than a jump to."""


@dataclass
class Archive:
    functions: dict[str, list[Compiled]]
    tables: dict[str, dict[int, str]]
    """Structs of pointers, by name: offset to the function there. Their sizes are in `sizes`."""
    sizes: dict[str, int]


def read(path: Path, machine: int) -> Archive:
    """All functions and structs of pointers of an archive."""
    archive = Archive(defaultdict(list), defaultdict(dict), {})
    for content in _members(path.read_bytes()):
        if content.startswith(b"\x7fELF"):
            _read_object(ELFFile(io.BytesIO(content)), machine, archive)
    return archive


def shape(machine: int, code: bytes) -> Counter[tuple[str, ...]]:
    """Return counts of sequences of three mnemonics, without operands, to compare two compilations of a function."""
    if machine == X86_64:
        decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    else:
        decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    names = ["", ""] + [name for _, _, name, _ in decoder.disasm_lite(code, 0)]
    return Counter(zip(names, names[1:], names[2:], strict=False))


def likeness(one: Counter[tuple[str, ...]], other: Counter[tuple[str, ...]]) -> float:
    """1 for the same instructions in the same order, 0 for nothing in common."""
    return (one & other).total() / max((one | other).total(), 1)


def jump_at(machine: int, code: bytes) -> int:
    """Return the offset in bytes of the jump that is a function's only instruction; -1 for other functions."""
    landing, size = (ENDBR64, 5) if machine == X86_64 else (BTI_C, 4)
    body = code.removeprefix(landing)
    jumps = body[:1] == b"\xe9" if machine == X86_64 else body[3:4] in (b"\x14", b"\x15", b"\x16", b"\x17")
    return len(code) - len(body) if jumps and len(body) == size else -1


def jump(machine: int, code: bytes) -> int:
    """Return the target of the jump, in bytes from the start of the function."""
    at = max(jump_at(machine, code), 0)
    if machine == X86_64:
        return at + 5 + int.from_bytes(code[at + 1 : at + 5], "little", signed=True)
    words = int.from_bytes(code[at : at + 4], "little") & 0x3FFFFFF
    return at + 4 * (words - (words >> 25 << 26))


def same(compiled: Compiled, code: bytes) -> bool:
    """Return whether code equals a compiled function to the byte, except bytes filled in by linking."""
    return len(code) == len(compiled.code) and all(
        a == b for at, (a, b) in enumerate(zip(compiled.code, code, strict=True)) if at not in compiled.filled
    )


def _members(archive: bytes) -> Iterator[bytes]:
    at = len(_MAGIC)
    while at + _HEADER <= len(archive):
        size = int(archive[at + 48 : at + 58])
        yield archive[at + _HEADER : at + _HEADER + size]
        at += _HEADER + size + size % 2


def _read_object(elf: ELFFile, machine: int, archive: Archive) -> None:
    symbols = next(section for section in elf.iter_sections() if isinstance(section, SymbolTableSection))
    placed = {}  # (section, offset): function
    structs = defaultdict(list)
    for symbol in symbols.iter_symbols():
        kind, section = symbol["st_info"]["type"], symbol["st_shndx"]
        if isinstance(section, int) and kind == "STT_FUNC":
            placed[section, symbol["st_value"]] = symbol.name
        elif isinstance(section, int) and kind == "STT_OBJECT":
            structs[section].append((symbol["st_value"], symbol["st_size"], symbol.name))
            archive.sizes[symbol.name] = symbol["st_size"]
    filled: dict[int, set[int]] = defaultdict(set)
    named: dict[tuple[int, int], str] = {}  # (section, offset): what is filled in
    for relocations in elf.iter_sections():
        if not isinstance(relocations, RelocationSection):
            continue
        section = relocations["sh_info"]
        for relocation in relocations.iter_relocations():
            at = relocation["r_offset"]
            filled[section].update(range(at, at + (8 if relocation["r_info_type"] in _EIGHT_BYTES else 4)))
            symbol = symbols.get_symbol(relocation["r_info_sym"])
            addend = relocation["r_addend"] + (4 if machine == X86_64 else 0)  # counts from the end of the field
            target = symbol["st_shndx"], symbol["st_value"] + addend
            named[section, at] = placed.get(target, symbol.name)
            name = placed.get((symbol["st_shndx"], symbol["st_value"] + relocation["r_addend"]), symbol.name)
            for start, size, struct in structs[section]:
                if start <= at < start + size:
                    archive.tables[struct][at - start] = name
    for symbol in symbols.iter_symbols():
        section, start, size = symbol["st_shndx"], symbol["st_value"], symbol["st_size"]
        if isinstance(section, int) and symbol["st_info"]["type"] == "STT_FUNC" and size:
            code = elf.get_section(section).data()[start : start + size]
            inside = {at - start for at in filled[section] if start <= at < start + size}
            at = start + jump_at(machine, code)
            direct = placed.get((section, start + jump(machine, code)), "")
            jumps_to = named.get((section, at + (machine == X86_64)), direct) if at >= start else ""
            calls = {named[section, start + there] for there in inside if (section, start + there) in named}
            archive.functions[symbol.name].append(Compiled(code, inside, shape(machine, code), calls, jumps_to))
