"""Facts about the GPUs for collectors that need them at start."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from exporter.nvml.gpus import Gpus
from exporter.nvml.snapshot import Gpu, GpuSnapshot, Readings
from tests.unit.resolve.gpus import gpu, snapshot

LONG = 60.0


def of(*gib: int | None) -> GpuSnapshot:
    read: list[Gpu] = []
    for index, size in enumerate(gib):
        values = {} if size is None else {"memory_bytes": size << 30}
        read.append(replace(gpu(index), sets={"fast": Readings(0.0, values)}))
    return snapshot(*read)


def served(*snapshots: GpuSnapshot) -> Gpus:
    """Answers with each of these once, and with the last one from then on."""
    gpus, left = Gpus(), [*snapshots]
    gpus.serve(lambda: left.pop(0) if len(left) > 1 else left[0], lambda seconds: True)
    return gpus


def test_memory_of_all() -> None:
    """The memory of all GPUs is waited for until the first reading of each GPU is there."""
    assert 160 << 30 == served(GpuSnapshot("starting"), of(80, None), of(80, 80)).memory(LONG)


def test_no_nvml() -> None:
    """Nobody waits where there is none."""
    assert served(GpuSnapshot("starting"), GpuSnapshot("absent")).memory(LONG) is None
    assert Gpus().memory(LONG) is None


@pytest.mark.parametrize("last", [GpuSnapshot("starting"), of(80, None), snapshot()])
def test_memory_that_is_not_known(last: GpuSnapshot) -> None:
    """NVML does not answer, or not for all: then it is not known, in time."""
    assert served(last).memory(0.1) is None


def test_free_memory_of_a_gpu() -> None:
    """With the age of the reading; none of another GPU, or where NVML has not reported it."""
    read = replace(gpu(0), sets={"fast": Readings(time.monotonic() - 5, {"memory_free_bytes": 4096})})
    gpus = served(snapshot(read, replace(gpu(1), sets={"fast": Readings(0.0)})))

    free = gpus.free(read.uuid)

    assert free and (free.bytes, free.source, free.seconds >= 5) == (4096, "NVML", True)
    divided = replace(read, identity=replace(read.identity, mig_enabled=True))
    assert served(snapshot(divided)).free(read.uuid) is None
    assert gpus.free(gpu(1).uuid) is gpus.free("GPU-other") is Gpus().free(read.uuid) is None
