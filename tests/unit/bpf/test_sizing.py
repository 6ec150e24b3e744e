"""LRU maps have rows enough on machines with many processors, and the memory of all maps stays within its budget."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter.bpf import object_path, sizing
from exporter.bpf.native import BpfError, library
from tests.map_memory import HASH, LRU_HASH, PERCPU_ARRAY, PERCPU_HASH, RINGBUF, Declared, declared

MANY = 224
"""Two sockets of 56 cores with two threads each."""
PROCESSORS = (1, 8, 16, MANY, 512)
BUDGET, OF_EACH = 212 << 20, 384 << 10
"""Of all maps of all objects together as they are loaded, and of each possible processor besides (docs/overhead.md)."""
PER_CPU = 160 << 10
"""Of that, what per-CPU maps take."""
DOCS = Path(__file__).parents[3] / "docs" / "overhead.md"
OBJECTS = sorted(path for path in object_path("nccl").parents[1].glob("*/*.bpf.o"))


def lru_maps(path: Path) -> list[Declared]:
    return [it for it in declared(path) if it.kind in sizing.LRU_KINDS]


def of_one_machine() -> list[Path]:
    """Return the objects with maps of their own: the one of threads is loaded with those of stacks."""
    return [path for path in OBJECTS if path.parent == OBJECTS[0].parent and path.name != "threads.bpf.o"]


@pytest.fixture(autouse=True)
def _needs_libbpf() -> None:
    try:
        library()
    except BpfError as error:
        pytest.skip(str(error))
    assert OBJECTS, "no objects: make objects"


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("processors", PROCESSORS)
def test_no_processor_starves(path: Path, processors: int) -> None:
    """Every LRU map of every object has two batches of 128 rows for each possible processor."""
    for table in lru_maps(path):
        assert table.on(processors) >= 2 * 128 * processors, table.name
        assert table.on(processors) >= table.entries


def test_there_are_lru_maps() -> None:
    """The objects have some: the other tests are not of nothing."""
    assert {"contexts", "poll_rates"} <= {table.name for path in OBJECTS for table in lru_maps(path)}


@pytest.mark.parametrize("processors", PROCESSORS)
def test_memory(processors: int) -> None:
    """All maps of all objects take no more than the budget, and what is for each processor is little of it."""
    taken = {
        f"{path.stem}:{table.name}": (table.kind, table.memory(processors))
        for path in of_one_machine()
        for table in declared(path)
    }
    assert {HASH, LRU_HASH, PERCPU_HASH, PERCPU_ARRAY, RINGBUF} <= {kind for kind, _ in taken.values()}
    assert sum(amount for _, amount in taken.values()) <= BUDGET + processors * OF_EACH, taken
    per_cpu = {name: amount for name, (kind, amount) in taken.items() if kind in (PERCPU_HASH, PERCPU_ARRAY)}
    assert sum(per_cpu.values()) <= processors * PER_CPU + (1 << 20), per_cpu


def test_the_page_has_the_numbers() -> None:
    """The memory of each object in docs/overhead.md is that of its maps, with 2 and 224 processors, in MiB."""
    stated = re.findall(r"^\| `(\w+)`.*\| ([\d.]+) \| ([\d.]+) \|$", DOCS.read_text(), re.MULTILINE)
    sums = {
        path.name.removesuffix(".bpf.o"): tuple(
            sum(table.memory(processors) for table in declared(path)) / 2**20 for processors in (2, MANY)
        )
        for path in of_one_machine()
    }
    large = {name: tuple(f"{it:.1f}" for it in both) for name, both in sums.items() if both[1] >= 0.1}
    assert large == {name: (few, many) for name, few, many in stated}
    total = [f"{sum(both[i] for both in sums.values()):.0f} MiB" for i in (0, 1)]
    assert all(it in DOCS.read_text() for it in total), total


def test_arrays_and_hashes_stay() -> None:
    """A map other than LRU has its declared rows; more processors than any machine has do not take all memory."""
    assert [4096, 4096] == [sizing.entries(kind, 4096, MANY) for kind in (1, 2)]
    assert 1 << 17 == sizing.entries(9, 4096, 8192)
