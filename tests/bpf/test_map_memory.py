"""The kernel takes for maps what tests/map_memory.py calculates, on which the budget of memory rests."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from exporter.bpf.libbpf import Object
from exporter.bpf.native import library
from tests.map_memory import declared, taken

OF_THE_MAP = 2048
"""The most that the kernel's description of a map takes, besides its rows."""
OBJECTS = sorted(Path("exporter/bpf/objects", platform.machine()).glob("*.bpf.o"))


@pytest.mark.needs_bpf
@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 4), reason="this kernel estimates the memory of maps (6.4)"
)
@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_the_kernel_agrees(path: Path) -> None:
    """Each map of each object takes its calculated memory, with the processors of this machine."""
    processors = library().libbpf_num_possible_cpus()
    calculated = {table.name: table.memory(processors) for table in declared(path)}
    with Object(path) as loaded:
        found = {name: taken(table) for name, table in loaded.maps.items()}
    assert {} == {
        name: (amount, calculated[name])
        for name, amount in found.items()
        if not calculated[name] <= amount <= calculated[name] + OF_THE_MAP
    }
