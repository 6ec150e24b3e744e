"""The GPU that an identifier names."""

from __future__ import annotations

import pytest

from exporter.nvml.snapshot import GpuProcess
from exporter.resolve.gpu import GpuDevice, Inventory
from tests.unit.resolve.gpus import PART, WHOLE, gpu, mig, snapshot

FIRST = GpuDevice(0, WHOLE.format(0))
SECOND = GpuDevice(1, WHOLE.format(1))
PARTS = tuple(GpuDevice(1, WHOLE.format(1), PART.format(number)) for number in range(3))


@pytest.fixture
def inventory() -> Inventory:
    """Two GPUs with swapped minor numbers; the second has three MIG devices in two GPU instances."""
    processes = (GpuProcess(7, "compute", 100), GpuProcess(7, "graphics", 20), GpuProcess(8, "compute", None))
    migs = (mig(0, 3), mig(1, 5, 0), mig(2, 5, 1))
    return Inventory(snapshot(gpu(0, minor=1, processes=processes), gpu(1, minor=0, migs=migs)))


def test_by_uuid(inventory: Inventory) -> None:
    """A GPU and a MIG device are found as NVML prints them; an unknown one is not."""
    assert (FIRST, PARTS[2]) == (inventory.of(WHOLE.format(0)), inventory.of(PART.format(2)))
    assert (None, None) == (inventory.of("GPU-1"), inventory.of(""))


def test_by_number(inventory: Inventory) -> None:
    """Index and minor number are different things; a GPU instance may be several MIG devices."""
    assert ((FIRST,), (SECOND,), ()) == tuple(inventory.at(index) for index in (0, 1, 2))
    assert ((SECOND,), (FIRST,), ()) == tuple(inventory.minor(minor) for minor in (0, 1, 2))
    assert (PARTS[:1], PARTS[1:], ()) == tuple(inventory.at(1, instance) for instance in (3, 5, 6))
    assert PARTS[1:] == inventory.minor(0, 5)
    assert () == inventory.at(0, 0)


def test_by_process(inventory: Inventory) -> None:
    """Memory of a process for computing and for graphics is one sum; an unreported number stays unknown."""
    assert {FIRST: 120} == inventory.used_by(7)
    assert {FIRST: None} == inventory.used_by(8)
    assert {} == inventory.used_by(9)


def test_unknown_bytes_are_no_sum() -> None:
    """A sum with an unknown part is unknown."""
    both = (GpuProcess(7, "compute", 100), GpuProcess(7, "graphics", None))
    assert {FIRST: None} == Inventory(snapshot(gpu(0, processes=both))).used_by(7)


def test_labels() -> None:
    """A MIG device has the labels of its GPU, and a UUID of its own."""
    assert {"gpu": "1", "gpu_uuid": WHOLE.format(1)} == PARTS[0].labels == SECOND.labels
    assert (PART.format(0), WHOLE.format(1)) == (PARTS[0].uuid, SECOND.uuid)


def test_no_gpus() -> None:
    """Without NVML nothing is known, and nothing fails; a GPU without a UUID is left out."""
    assert [] == [*Inventory(snapshot()).at(0), *Inventory(snapshot()).used_by(1)]
    nameless = gpu(0)
    assert () == Inventory(snapshot(type(nameless)(type(nameless.identity)("", 0, "H100", "0")))).at(0)
