"""Inserts rows into LRU maps on every processor and prints how many are left; run in a virtual machine.

Usage: python -m tests.kernels.lru_rows; the second line is without exporter/bpf/sizing.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from unittest.mock import patch

from exporter.bpf import object_path, sizing
from exporter.bpf.libbpf import Map, Object

ROWS = 100
"""Of each processor; the kernel gives it 128 free rows at a time."""


def main() -> None:
    print(json.dumps(dict(left())))
    with patch.object(sizing, "entries", lambda kind, declared, processors: declared):
        print(json.dumps(dict(left())))


def left() -> Iterator[tuple[str, int]]:
    """Yield the names of LRU maps, with the number of rows that are left."""
    for path in sorted(object_path("any").parent.glob("*.bpf.o")):
        with Object(path) as loaded:
            for table in loaded.maps.values():
                if table.kind in sizing.LRU_KINDS:
                    yield table.name, fill(table)


def fill(table: Map) -> int:
    """Insert rows on each processor, and return how many there are."""
    processors = sorted(os.sched_getaffinity(0))
    value = table.value()
    try:
        for processor in processors:
            os.sched_setaffinity(0, [processor])
            for row in range(ROWS):
                key = processor * ROWS + row
                table.set(table.key.from_buffer_copy(key.to_bytes(64, "little")), value)
    finally:
        os.sched_setaffinity(0, processors)
    return len(list(table.items()))


if __name__ == "__main__":
    main()
