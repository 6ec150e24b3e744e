"""LRU maps have rows enough on machines with many processors, and their memory stays within what is meant for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.bpf import object_path, sizing
from exporter.bpf.native import BpfError, library

MANY = 224
"""Two sockets of 56 cores with two threads each."""
BUDGET = 64 << 20
"""Of all LRU maps of all objects together, on such a machine."""
OBJECTS = sorted(path for path in object_path("nccl").parents[1].glob("*/*.bpf.o"))
_ROW, _BUCKET = 64, 16  # struct htab_elem with its LRU node; struct bucket


@dataclass(frozen=True)
class Declared:
    """A map as an object declares it."""

    name: str
    kind: int
    entries: int
    row: int

    def on(self, processors: int) -> int:
        return sizing.entries(self.kind, self.entries, processors)

    def memory(self, processors: int) -> int:
        """Bytes that the kernel takes for its rows and buckets."""
        rows = self.on(processors)
        return rows * (_ROW + self.row) + (1 << (rows - 1).bit_length()) * _BUCKET


def declared(path: Path) -> Iterator[Declared]:
    """The maps of an object, which is not loaded."""
    bpf = library()
    opened = bpf.bpf_object__open_file(os.fsencode(path), None)
    assert opened
    try:
        handle = bpf.bpf_object__next_map(opened, None)
        while handle:
            row = sum(-(-size // 8) * 8 for size in (bpf.bpf_map__key_size(handle), bpf.bpf_map__value_size(handle)))
            name = bpf.bpf_map__name(handle).decode()
            yield Declared(name, bpf.bpf_map__type(handle), bpf.bpf_map__max_entries(handle), row)
            handle = bpf.bpf_object__next_map(opened, handle)
    finally:
        bpf.bpf_object__close(opened)


def lru_maps(path: Path) -> list[Declared]:
    return [it for it in declared(path) if it.kind in sizing.LRU_KINDS]


@pytest.fixture(autouse=True)
def _needs_libbpf() -> None:
    try:
        library()
    except BpfError as error:
        pytest.skip(str(error))
    assert OBJECTS, "no objects: make objects"


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("processors", [1, 8, MANY, 512])
def test_no_processor_starves(path: Path, processors: int) -> None:
    """Every LRU map of every object has two batches of 128 rows for each possible processor."""
    for table in lru_maps(path):
        assert table.on(processors) >= 2 * 128 * processors, table.name
        assert table.on(processors) >= table.entries


def test_there_are_lru_maps() -> None:
    """The objects have some: the other tests are not of nothing."""
    assert {"contexts", "poll_rates"} <= {table.name for path in OBJECTS for table in lru_maps(path)}


def test_memory() -> None:
    """On a machine of 224 processors all LRU maps together take no more than the budget."""
    of_one_machine = [path for path in OBJECTS if path.parent == OBJECTS[0].parent]
    taken = {f"{path.stem}:{table.name}": table.memory(MANY) for path in of_one_machine for table in lru_maps(path)}
    assert sum(taken.values()) <= BUDGET, taken


def test_arrays_and_hashes_stay() -> None:
    """A map other than LRU has its declared rows; more processors than any machine has do not take all memory."""
    assert [4096, 4096] == [sizing.entries(kind, 4096, MANY) for kind in (1, 2)]
    assert 1 << 17 == sizing.entries(9, 4096, 8192)
