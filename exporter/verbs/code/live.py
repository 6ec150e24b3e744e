"""Functions of a provider that only a running process shows: those that its contexts point to.

For providers that choose their table when they run (hns), those that no file analysis understands, and programs that
contain rdma-core. bpf/verbs/live.bpf.h reads the pointers; a process may have written anything there. The pointers are
accepted only if a table in the file itself has the three next to each other, as every struct verbs_context_ops does.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

from exporter import process_memory
from exporter.bpf.elf import Elf, ElfError, Function
from exporter.bpf.file_worker import WORKER, FileArgument
from exporter.bpf.library import Library, file_of
from exporter.verbs.code import relocations
from exporter.verbs.code.eh_frame import Frames
from exporter.verbs.code.providers import ProviderFunctions

POINTERS = ("poll_cq", "post_recv", "post_send")
"""In the order that they have in every struct verbs_context_ops (layout.yaml), and in struct live_functions."""

MAPS_BYTES = 1 << 23
"""Of /proc/PID/maps, some 65,000 lines."""
MAX_LOADED = 1 << 26
"""Bytes of a file that are searched for a table without relocations; larger ones are refused."""
_LOAD, _WORD = 1, 8
_LOCAL = 0
_LINE = re.compile(rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ..x. ([0-9a-f]{1,16}) \S+ (\d+)")


def offsets_in(library: Library, pid: int, addresses: Mapping[str, int], proc: Path = Path("/proc")) -> dict[str, int]:
    """Return the offsets in a library's file of the addresses of a process, without addresses of other files.

    Raises OSError where the process or the library cannot be read.
    """
    found: dict[str, int] = {}
    folder = process_memory.living(proc, pid)
    for start, end, offset in _code_mappings(process_memory.read(proc, pid, "maps", MAPS_BYTES)):
        inside = {op: offset + address - start for op, address in addresses.items() if start <= address < end}
        if inside:
            mapped = FileArgument(str(folder / "map_files" / f"{start:x}-{end:x}"), device=library.identity[0])
            with suppress(ElfError):
                found |= inside if WORKER.call(are_one, file_of(library), mapped) else {}
    return found


def are_one(elf: Elf, other: Elf) -> bool:
    """Return whether two files are the same. Not by device and inode, which overlays of one file do not share."""
    one, two = (os.fstat(it.fileno()) for it in (elf, other))
    return (one.st_size, one.st_mtime_ns) == (two.st_size, two.st_mtime_ns)


def learn(library: Library, offsets: Mapping[str, int]) -> ProviderFunctions:
    """Return the functions at these offsets of a library's file, or why they are not certain.

    Raises OSError and ElfError.
    """
    return cast(ProviderFunctions, WORKER.call(confirm, file_of(library), dict(offsets)))


def confirm(elf: Elf, offsets: Mapping[str, int]) -> ProviderFunctions:
    """Return all of POINTERS as functions of the file if a table in the file has them in a row, else none, and why."""
    if offsets.keys() != set(POINTERS):
        return _refused("A process calls functions for them that are not all in this file.")
    frames = Frames(elf)
    functions: dict[str, tuple[Function, ...]] = {}
    for op in POINTERS:
        address = address_of(elf, offsets[op])
        size = frames.size(address) if address is not None else 0
        if address is None or not size:
            return _refused(f"A process calls offset {offsets[op]:#x} for {op}, where no function begins.")
        functions[op] = (Function(op, offsets[op], size, address, _LOCAL),)
    if not _in_a_table(elf, [functions[op][0].address for op in POINTERS]):
        return _refused("A process calls functions for them that no table in the file has next to each other.")
    return ProviderFunctions(functions, {})


def _refused(why: str) -> ProviderFunctions:
    return ProviderFunctions({}, dict.fromkeys(POINTERS, why))


def address_of(elf: Elf, offset: int) -> int | None:
    """Return the address of the code at an offset of the file; None where there is no code."""
    part = next((part for part in elf.code_parts if 0 <= offset - part.offset < part.size), None)
    return part.address + offset - part.offset if part else None


def _in_a_table(elf: Elf, functions: list[int]) -> bool:
    with suppress(ElfError):  # a program at fixed addresses may have no relocations
        pointers = relocations.read(elf).pointers
        starts = [word for word, address in pointers.items() if address == functions[0]]
        if any(all(pointers.get(word + _WORD * i) == it for i, it in enumerate(functions)) for word in starts):
            return True
    loaded = elf.parts(_LOAD)
    if sum(part.size for part in loaded) > MAX_LOADED:
        return False
    table = struct.pack(f"<{len(functions)}Q", *functions)
    return any(table in elf.read(part.address, part.size) for part in loaded if part.size)


def _code_mappings(maps: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and file offset of executable mappings of files."""
    for line in maps.splitlines():
        found = _LINE.match(line)
        if found and found[4] != b"0":
            yield int(found[1], 16), int(found[2], 16), int(found[3], 16)
