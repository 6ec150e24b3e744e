"""Forks of a process with PyTorch on the soft GPU: children without CUDA, and those in which its calls fail."""

from __future__ import annotations

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import counted, seen
from tests.real.conftest import Ran
from tests.real.job import Job
from tests.real.releases import TORCH
from tests.softgpu.counts import Counts
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA waits and spans", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA errors", on="real program on a stand-in"),
]

SOFTWARE = TORCH


def test_data_loader(job: Job, exporter: Exporter, ran: Ran) -> None:
    """A DataLoader with two forked workers and pinned memory feeds 50 batches to the GPU."""
    job.run(
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 50 * 32\n"
        "    def __getitem__(self, n): return torch.full((1024,), float(n))\n"
        "loader = torch.utils.data.DataLoader(Data(), 32, num_workers=2, pin_memory=True)\n"
        "for batch in loader: batch.cuda(non_blocking=True).sum()\n"
        "torch.cuda.synchronize()"
    )
    copies = seen(exporter.scrape(), job.pid)["copies"]
    assert {"h2d pinned": 50 * 32 * 1024 * 4} == copies
    ran(job)


def test_fork(job: Job, exporter: Exporter, ran: Ran) -> None:
    """A forked child, in which each call fails: its counts have only its own calls, and no memory of its parent's."""
    child = job.run(
        "held = torch.empty(64 * MIB, dtype=torch.uint8, device='cuda')\n"
        "out = os.fork()\n"
        "if not out:\n"
        "    import ctypes; driver = ctypes.CDLL('libcuda.so.1')\n"
        "    for _ in range(23): driver.cuCtxSynchronize()\n"
        "    time.sleep(600); os._exit(0)"
    )
    until(lambda: seen(exporter.scrape(), child)["waits"] == {"cuCtxSynchronize": 23}, "the child's calls")
    found = seen(exporter.scrape(), child)
    assert ({}, {"cuCtxSynchronize": 23}) == (found["memory"], found["errors"])
    assert counted(Counts(job.folder, child)) == found
    ran(job)
    job.run(f"os.kill({child}, 9); os.waitpid({child}, 0)")


def test_fork_after_a_count(job: Job, exporter: Exporter, ran: Ran) -> None:
    """A child works on the GPU after its parent has counted GPUs by NVML, and not after a count by the runtime."""
    job.run(
        "import ctypes\n"
        "def in_child():\n"
        "    read, write = os.pipe(); child = os.fork()\n"
        "    if not child:\n"
        "        try: text = str(torch.ones(5, device='cuda').numel())\n"
        "        except Exception as error: text = str(error).splitlines()[0]\n"
        "        os.write(write, text.encode()); os._exit(0)\n"
        "    os.close(write); text = open(read).read(); os.waitpid(child, 0); return text\n"
        "def count(): ctypes.CDLL(None).cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))"
    )
    assert [2, "5"] == job.run("out = [torch.cuda.device_count(), in_child()]")
    refused = "CUDA driver initialization failed, you might not have a CUDA gpu."
    assert refused == job.run("count(); out = in_child()")
    assert 5 == job.run("out = torch.ones(5, device='cuda').numel()")
    ran(job)
