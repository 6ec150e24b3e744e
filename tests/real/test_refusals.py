"""Calls of the CUDA driver that fail on the soft GPU, of Numba and NVIDIA's cuda-bindings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import ERRORS, counted, in_words, seen
from tests.real.conftest import EXACT, Keeper, Ran, followed
from tests.real.job import Job
from tests.real.releases import BINDINGS, NUMBA, Release
from tests.softgpu.counts import Counts
from tests.softgpu.story import CONTEXT

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="CUDA errors", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
]

_KERNEL = "@cuda.jit\ndef add(x):\n    at = cuda.grid(1)\n    if at < x.size: x[at] += 1\n"
of = pytest.mark.releases


@of(BINDINGS)
def test_refusals(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """Calls that fail, 23 of each: no memory left, no context, an address that was never allocated."""
    with Job(release, folder, SOFTGPU_BYTES=CONTEXT + (64 << 20)) as job:
        job.run(
            "ok(cu.cuInit(0))\n"
            "for _ in range(23): assert cu.cuMemAlloc(MIB)[0]\n"
            "ok(cu.cuCtxCreate(None, 0, 0))\n"
            "held = [ok(cu.cuMemAlloc(16 * MIB)) for _ in range(4)]\n"
            "for _ in range(23): assert cu.cuMemAlloc(1)[0]; assert cu.cuMemFree(4096)[0]\n"
        )
        errors = exporter.scrape().by("error", ERRORS, pid=str(job.pid))
        assert {
            "CUDA_ERROR_INVALID_CONTEXT": 23,
            "CUDA_ERROR_OUT_OF_MEMORY": 23,
            "CUDA_ERROR_INVALID_VALUE": 23,
        } == errors
        assert {"device": 64 << 20} == seen(exporter.scrape(), job.pid)["memory"]
        ran(job)


@of(BINDINGS)
def test_wrong_frees(job: Job, exporter: Exporter, ran: Ran) -> None:
    """Frees that fail, 23 of each: by the wrong function, inside an allocation, twice, after a context's end."""
    job.run(
        "ok(cu.cuInit(0)); first, second = (ok(cu.cuCtxCreate(None, 0, 0)) for _ in range(2))\n"
        "device, pinned, gone = ok(cu.cuMemAlloc(MIB)), ok(cu.cuMemHostAlloc(MIB, 0)), ok(cu.cuMemAlloc(MIB))\n"
        "ok(cu.cuMemFree(gone)); of_first = (ok(cu.cuCtxSetCurrent(first)), ok(cu.cuMemAlloc(MIB)))[1]\n"
        "ok(cu.cuCtxDestroy(first)); ok(cu.cuCtxSetCurrent(second))\n"
        "for _ in range(23):\n"
        "    for address in (pinned, int(device) + 512, gone, of_first): assert cu.cuMemFree(int(address))[0] == 1\n"
        "    assert cu.cuMemFreeHost(int(device))[0] == 1 and cu.cuCtxDestroy(first)[0] == 201"
    )
    found = seen(exporter.scrape(), job.pid)
    assert {"device": 1 << 20, "pinned_host": 1 << 20} == found["memory"]
    assert {"cuMemFree_v2": 4 * 23, "cuMemFreeHost": 23, "cuCtxDestroy_v2": 23} == found["errors"]
    ran(job)


@of(BINDINGS)
def test_children(job: Job, exporter: Exporter, ran: Ran) -> None:
    """Children of a process that has called cuInit: all of their calls fail, 23 of each, and count as theirs."""
    job.run("ok(cu.cuInit(0)); ok(cu.cuCtxCreate(None, 0, 0)); held = ok(cu.cuMemAlloc(MIB))")
    followed(exporter, job)
    children = job.run(
        "out = []\n"
        "for _ in range(3):\n"
        "    read, write = os.pipe(); out.append(os.fork())\n"
        "    if not out[-1]:\n"
        "        for _ in range(23):\n"
        "            codes = (cu.cuInit(0)[0], cu.cuMemAlloc(1)[0], cu.cuMemFree(held)[0], cu.cuCtxSynchronize()[0])\n"
        "            assert set(codes) == {3}, codes\n"
        "        os.write(write, b'done'); time.sleep(600)\n"
        "    assert os.read(read, 4) == b'done'"
    )
    for child in children:
        found = seen(exporter.scrape(), child)
        assert ({}, {"cuMemAlloc_v2": 23, "cuMemFree_v2": 23, "cuCtxSynchronize": 23}) == (
            found["memory"],
            found["errors"],
        )
        assert counted(Counts(job.folder, child)) == found
    ran(job)
    job.run(f"for child in {children}: os.kill(child, 9); os.waitpid(child, 0)")


def errors(exporter: Exporter, job: Job) -> dict[tuple[str, str], float]:
    """Calls of a job that returned an error, by function and error."""
    rows = exporter.scrape().rows(ERRORS, pid=str(job.pid))
    return {(labels["api"], labels["error"]): count for labels, count in rows}


@of(NUMBA)
def test_failures(job: Job, exporter: Exporter, keeper: Keeper, ran: Ran) -> None:
    """23 launches, copies and allocations that the driver refuses, then a kernel that fails and ends the context."""
    job.run(
        f"{_KERNEL}"
        "array, host = cuda.device_array(MIB, np.uint8), np.zeros(MIB, np.uint8)\n"
        "add[4, 256](array); cuda.synchronize()\n"
        "def failing(call, fails=''):\n"
        "    os.environ['SOFTGPU_FAIL'] = fails\n"
        "    raised = 0\n"
        "    for _ in range(23):\n"
        "        try: call()\n"
        "        except Exception: raised += 1\n"
        "    os.environ['SOFTGPU_FAIL'] = ''\n"
        "    return raised\n"
    )
    launch, copy = "cuLaunchKernelEx", "cuMemcpyHtoD_v2"
    with Exporter((EXACT, "--collector.cuda.all-errors"), dict(os.environ)) as all_errors:
        all_errors.until(lambda: keeper.observed(all_errors), "the soft driver was not probed")
        assert 23 == job.run(f"out = failing(lambda: add[4, 256](array), '{launch}=701')")
        assert 23 == job.run(f"out = failing(lambda: array.copy_to_device(host), '{copy}=1')")
        assert 23 == job.run("out = failing(lambda: cuda.device_array(MIB, np.uint8), 'cuMemAlloc_v2=2')")
        tried = job.counts.functions["cuMemAlloc_v2"].failures
        assert tried == 2 * 23  # Numba tries again, after it has freed what it can
        refused = {(copy, "CUDA_ERROR_INVALID_VALUE"): 23, ("cuMemAlloc_v2", "CUDA_ERROR_OUT_OF_MEMORY"): tried}
        of_launches = {(launch, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"): 23}
        assert refused == errors(exporter, job)
        assert refused | of_launches == errors(all_errors, job)
        assert 0 == job.run("out = failing(lambda: (add[4, 256](array), cuda.synchronize()))")
        assert 23 == job.run("out = failing(lambda: cuda.synchronize(), 'cuCtxSynchronize=719')")
        assert 23 == job.run("out = failing(lambda: add[4, 256](array))")
        refused[("cuCtxSynchronize", "CUDA_ERROR_LAUNCH_FAILED")] = 23
        of_launches[(launch, "CUDA_ERROR_LAUNCH_FAILED")] = 23
        assert refused == errors(exporter, job)
        assert refused | of_launches == errors(all_errors, job)
    found, shown = counted(job.counts), seen(exporter.scrape(), job.pid)
    assert 46 == found["errors"].pop(launch)
    assert found == shown
    ran.note(in_words(found) + f", and 46 of {launch} with --collector.cuda.all-errors")
