"""Allocations that fail for want of memory, of a real interpreter with the stand-in driver: frozen with stacks."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from exporter.stack_profiles.published import StackProfiles
from tests.bpf.cuda_node import BUILD, MIB, observe
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(200),
    pytest.mark.evidence(feature="profiles of stacks", on="stand-in"),
]
JOB = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
address = ctypes.c_uint64()

def held():
    return driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))

def too_much():
    return driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(5 << 30))

def too_much_of_a_host():
    return driver.cuMemHostAlloc(ctypes.byref(address), ctypes.c_size_t(5 << 30), 0)

def wrong():
    driver.standin_fail(b"cuMemAlloc_v2", 1)
    code = held()
    driver.standin_fail(None, 0)
    return code

for line in sys.stdin:
    print(eval(line), flush=True)
"""


observed = once(partial(observe, layers="driver", stack_profiles=StackProfiles(wanted=True)))


def run(job: subprocess.Popen[str], command: str) -> str:
    assert job.stdin and job.stdout
    job.stdin.write(command + "\n")
    job.stdin.flush()
    return job.stdout.readline().strip()


def test_a_failed_allocation_is_frozen(observed: Observed, tmp_path: Path) -> None:
    """The frozen profile has the job's memory, and the request's size, function and line; other errors freeze none."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    environ = {"LD_LIBRARY_PATH": str(BUILD), "PATH": os.environ["PATH"], "SOFTGPU_BYTES": str(1 << 30)}
    with subprocess.Popen(
        [sys.executable, "-E", "-s", script], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:
        interpreters = observed.collector.profiling.capture.object.maps["interpreters"]  # type: ignore[union-attr]
        until(lambda: interpreters.get(job.pid) is not None, "its interpreter is known")
        until(lambda: job.pid in observed.collector.ledger, "its calls are seen")
        assert "[0, 0, 0]" == run(job, "[held() for _ in range(3)]")
        assert "1" == run(job, "wrong()")
        assert "2" == run(job, "too_much()")
        frozen = observed.collector.node.stack_profiles.frozen
        until(lambda: frozen.newest_first(), "it is frozen")
        job.kill()

    [kept] = frozen.newest_first()
    failed = kept.failed
    assert (5 << 30, "cuMemAlloc_v2", str(job.pid)) == (failed.size, failed.api, failed.labels["pid"])
    lines = {it.function.rpartition(".")[2]: it.line for it in failed.stack if it.kind == "python"}
    [expected] = [
        n for n, text in enumerate(JOB.splitlines(), 1) if "driver.cuMemAlloc_v2" in text and "byref" in text
    ][1:]
    assert expected == lines["too_much"]
    own = [it for it in kept.profile.samples if it.labels.get("pid") == str(job.pid)]
    assert (3 * MIB, 3) == (sum(it.values[0] for it in own), sum(it.values[1] for it in own))
