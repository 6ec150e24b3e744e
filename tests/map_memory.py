"""Kernel memory of BPF maps by the number of possible processors: arithmetic, as map_mem_usage of kernel/bpf."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.bpf import sizing
from exporter.bpf.maps import RINGBUF, Map
from exporter.bpf.native import library

HASH, ARRAY, PROG_ARRAY, PERCPU_HASH, PERCPU_ARRAY, LRU_HASH, LPM_TRIE = 1, 2, 3, 5, 6, 9, 11
"""Kinds that the objects have, beside ring buffers (enum bpf_map_type)."""
_HASHES = (HASH, PERCPU_HASH, LRU_HASH)
_NO_PREALLOC = 1
_ELEMENT, _BUCKET, _POINTER = 48, 16, 8
"""struct htab_elem; struct bucket."""
_PAGE, _RING_PAGES = 4096, 3


@dataclass(frozen=True)
class Declared:
    """A map as an object declares it."""

    name: str
    kind: int
    entries: int
    key: int
    value: int
    flags: int

    def on(self, processors: int) -> int:
        """Return the rows of the map on a machine with so many possible processors."""
        return sizing.entries(self.kind, self.entries, processors)

    def memory(self, processors: int) -> int:
        """Return the bytes that the kernel takes at load, but for a kilobyte or two of the map itself."""
        rows = self.on(processors)
        if self.kind == RINGBUF:
            return rows + _RING_PAGES * _PAGE + (_RING_PAGES + 2 * rows // _PAGE) * _POINTER
        if self.kind in _HASHES:
            return (1 << (rows - 1).bit_length()) * _BUCKET + self._rows(rows, processors)
        if self.kind == PERCPU_ARRAY:
            return rows * (_POINTER + self._value * processors)
        if self.kind == LPM_TRIE:
            return 0  # its rows are allocated as needed
        assert self.kind in (ARRAY, PROG_ARRAY), f"{self.name}: the arithmetic of kind {self.kind} is missing"
        return rows * self._value

    def _rows(self, rows: int, processors: int) -> int:
        """Return the bytes of a hash table's rows: none if they are allocated as needed."""
        if self.flags & _NO_PREALLOC:
            return 0
        row = _ELEMENT + _padded(self.key)
        if self.kind == PERCPU_HASH:
            return rows * (row + _POINTER + self._value * processors)
        if self.kind == LRU_HASH:
            return rows * (row + self._value)
        return (rows + processors) * (row + self._value) + processors * _POINTER  # a spare one for each processor

    @property
    def _value(self) -> int:
        return _padded(self.value)


def declared(path: Path) -> Iterator[Declared]:
    """Yield the maps of an object, which is not loaded."""
    bpf = library()
    flags = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)(("bpf_map__map_flags", bpf))
    opened = bpf.bpf_object__open_file(os.fsencode(path), None)
    assert opened
    try:
        handle = bpf.bpf_object__next_map(opened, None)
        while handle:
            yield Declared(
                bpf.bpf_map__name(handle).decode(),
                bpf.bpf_map__type(handle),
                bpf.bpf_map__max_entries(handle),
                bpf.bpf_map__key_size(handle),
                bpf.bpf_map__value_size(handle),
                flags(handle),
            )
            handle = bpf.bpf_object__next_map(opened, handle)
    finally:
        bpf.bpf_object__close(opened)


def taken(table: Map) -> int:
    """Return the bytes that the kernel states for a loaded map: exact from Linux 6.4 on."""
    info = Path(f"/proc/self/fdinfo/{table.fd}").read_text()
    [amount] = re.findall(r"^memlock:\s*(\d+)$", info, re.MULTILINE)
    return int(amount)


def _padded(size: int) -> int:
    return -(-size // 8) * 8
