"""Pools of memory that two processes share, by NVIDIA's cuda-bindings on the soft GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import seen
from tests.real.conftest import Ran, followed
from tests.real.job import Job
from tests.real.releases import BINDINGS, Release

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.releases(BINDINGS),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
]

UNSEEN = "gpu_cuda_memory_frees_unseen_total"
STARTED = "import ctypes\nok(cu.cuInit(0)); context = ok(cu.cuCtxCreate(None, 0, 0)); own = ok(cu.cuMemAlloc(4096))\n"
KIND = "fd = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR\n"
MAKE = (
    "wanted = cu.CUmemPoolProps(); wanted.handleTypes = fd\n"
    "wanted.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED\n"
    "wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; wanted.location.id = 0\n"
    "pool = ok(cu.cuMemPoolCreate(wanted))\n"
    "held = [ok(cu.cuMemAllocFromPoolAsync(MIB + n, pool, 0)) for n in range(23)]\n"
    "out = [ok(cu.cuMemPoolExportToShareableHandle(pool, fd, 0)),"
    " [ctypes.string_at(int(ok(cu.cuMemPoolExportPointer(it)).getPtr()), 64).hex() for it in held]]"
)
IMPORT = (
    "def bring(text):\n"
    "    data = cu.CUmemPoolPtrExportData(); ctypes.memmove(int(data.getPtr()), bytes.fromhex(text), 64)\n"
    "    return ok(cu.cuMemPoolImportPointer(pool, data))\n"
    "pool = ok(cu.cuMemPoolImportFromShareableHandle(os.open({path!r}, os.O_RDONLY), fd, 0))\n"
    "held = [bring(it) for it in {pointers!r}]; mine = ok(cu.cuMemAllocAsync(MIB, 0))"
)


def test_memory_of_another_process(job: Job, release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """Memory of a pool is in use in the process that made the pool; in the one that imports it, only its own is."""
    with Job(release, folder) as other:
        for it in (job, other):
            it.run(STARTED + KIND)
            followed(exporter, it)
        handle, pointers = job.run(MAKE)
        other.run(IMPORT.format(path=f"/proc/{job.pid}/fd/{handle}", pointers=pointers))
        total = (23 << 20) + sum(range(23))
        assert {"imported": total, "pool": 1 << 20, "device": 4096} == other.counts.memory
        assert {"pool": 1 << 20, "device": 4096} == seen(exporter.scrape(), other.pid)["memory"]
        assert {"pool": total, "device": 4096} == seen(exporter.scrape(), job.pid)["memory"]
        other.run("for it in held: ok(cu.cuMemFreeAsync(it, 0))\nok(cu.cuMemPoolDestroy(pool))")
        ran(other)
        assert 23 == exporter.scrape().total(UNSEEN, pid=str(other.pid))
    job.run("for it in held[::2]: ok(cu.cuMemFreeAsync(it, 0))")
    ran(job)
    assert not exporter.scrape().total(UNSEEN, pid=str(job.pid))
