"""Functions that only a running process tells of: which file holds an address, and which pointers are of interest.

For providers whose table is chosen when they run (hns), those no file analysis understands, and the extended API.
A probe at SET_OPS sees every table of functions that a provider sets, as its second argument (`table_block`); one at
the return of OPEN_DEVICE, or anything that has a struct ibv_context, sees those in use (`context_block`). Both are
symbols of libibverbs, and of programs that contain it unless they are stripped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from exporter.bpf.elf import Elf, ElfError, Function
from exporter.verbs import ops
from exporter.verbs.frames import Frames
from exporter.verbs.objects import pointers
from exporter.verbs.ops import POINTER, Layout
from exporter.verbs.providers import OPS, Refused
from exporter.verbs.tables import SET_OPS

__all__ = ["OPEN_DEVICE", "SET_OPS", "Block", "Located", "context_block", "locate", "table_block"]

OPEN_DEVICE = "verbs_open_device"
"""Returns struct ibv_context *."""

MAX_LINES = 1 << 16
_LOCAL = 0
_LINE = re.compile(rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ..x. ([0-9a-f]{1,16}) \S+ (\d+)")


@dataclass(frozen=True, slots=True)
class Block:
    """What to read of a process's memory: `size` bytes from `start` bytes after (before, if negative) a pointer."""

    start: int
    size: int
    offsets: Mapping[str, int]
    """Operation to the place of its pointer, in bytes from the same pointer."""

    def addresses(self, content: bytes) -> dict[str, int]:
        """The functions in what was read, by operation; those that are not set are left out."""
        return pointers(content, self.offsets, self.start)


def context_block() -> Block:
    """The functions in use of a struct ibv_context."""
    return _block({op: at for op, at in ops.in_context().items() if op in OPS})


def table_block(layout: Layout) -> Block:
    """The functions in a table given to verbs_set_ops, laid out as `exporter.verbs.ops` tells."""
    return _block({op: at for op, at in layout.offsets.items() if op in OPS})


def _block(offsets: Mapping[str, int]) -> Block:
    start = min(offsets.values())
    return Block(start, max(offsets.values()) + POINTER - start, offsets)


@dataclass(frozen=True, slots=True)
class Located:
    """The function at an address of a process."""

    identity: tuple[int, int]
    """st_dev and st_ino of its file as the process sees it: another than its real file's below an overlay."""
    open_path: str
    """For attaching to it; lasts as long as the process has it mapped."""
    function: Function
    """`offset` is where it is in the file."""


def locate(pid: int, address: int, name: str = "", proc: Path = Path("/proc")) -> Located:
    """Which file and function an address of a process is; `name` is what the function is to be called.

    Refused, with a sentence, where no function of a file begins there; OSError where the process may not be looked at.
    """
    for start, end, offset in _code_mappings(proc / str(pid) / "maps"):
        if start <= address < end:
            path = proc / str(pid) / "map_files" / f"{start:x}-{end:x}"
            try:
                return _function(path, offset + address - start, name)
            except ElfError as error:
                raise Refused(f"The file of address {address:#x} cannot be understood: {error}.") from error
    raise Refused(f"Address {address:#x} is in no file that the process executes.")


def _function(path: Path, offset: int, name: str) -> Located:
    with Elf.open(path) as elf:
        part = next((part for part in elf.code_parts if 0 <= offset - part.offset < part.size), None)
        address = part.address + offset - part.offset if part else 0
        size = Frames(elf).size(address) if part else 0
        if not size:
            raise Refused(f"No function begins at offset {offset:#x} of the file.")
        found = path.stat()
        return Located((found.st_dev, found.st_ino), str(path), Function(name, offset, size, address, _LOCAL))


def _code_mappings(maps: Path) -> Iterator[tuple[int, int, int]]:
    """Start, end and file offset of executable mappings of files."""
    with maps.open("rb") as lines:
        for line in islice(lines, MAX_LINES):
            found = _LINE.match(line)
            if found and found[4] != b"0":
                yield int(found[1], 16), int(found[2], 16), int(found[3], 16)
