"""The workload of the tests and the demo, on the whole soft GPU: each call succeeds, and its account is right.

The stand-ins that it runs with elsewhere are the same sources, without a look at most arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.bpf.cuda_node import BUILD, build_standins
from tests.softgpu.counts import Counts
from tests.support import until

SOFTGPU = Path(__file__).parents[1] / "softgpu"
WORK = "--threads 2 --launches 23 --allocations 5 --frees 3 --copies 4 --waits 2 --wait-ms 0"
NAMES = {"launches": "LaunchKernel", "waits": "StreamSynchronize"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for a process with libraries that no other worker's exporter looks at."""
    build_standins()
    build = tmp_path_factory.mktemp("softgpu")
    targets = [build / "libcuda.so.1", build / "12" / "libcudart.so.12"]
    subprocess.run(["make", "-s", "-C", SOFTGPU, f"BUILD={build}", *targets], check=True)
    return os.environ | {"LD_LIBRARY_PATH": f"{build}:{build / '12'}"}


@pytest.mark.parametrize("layer", ["driver", "runtime"])
def test_its_account_is_the_librarys(environment: dict[str, str], tmp_path: Path, layer: str) -> None:
    """Calls and bytes in its report are those that the driver counted; none failed or was missing."""
    command = [BUILD / "workload", "--layer", layer, *WORK.split()]
    environment = environment | {"SOFTGPU_COUNTS": str(tmp_path)}
    report = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)

    driver, runtime = (Counts(tmp_path, report["pid"], library) for library in ("libcuda", "libcudart"))
    assert {46, 4} == {report[it] for it in NAMES}
    for counts, prefix in ((driver, "cu"), *([(runtime, "cuda")] if layer == "runtime" else [])):
        assert {it: report[it] for it in NAMES} == {it: counts.calls(prefix + name) for it, name in NAMES.items()}
    assert {"device": report["allocated"] - report["freed"]} == driver.memory
    assert {"h2d pageable": report["copied"]} == driver.copied
    failed = {name for counts in (driver, runtime) for name, it in counts.functions.items() if it.failures}
    assert (set(), []) == (failed, driver.missing)
    assert bool(runtime.functions) == (layer == "runtime")


def test_training_has_no_call_that_fails(environment: dict[str, str], tmp_path: Path) -> None:
    """A job that trains, which ends at the first call that fails, ends when it is ended."""
    environment = environment | {"SOFTGPU_COUNTS": str(tmp_path)}
    with subprocess.Popen([BUILD / "workload", "--steady", "--step-ms", "1"], env=environment) as job:
        try:
            until(lambda: job.poll() or Counts(tmp_path, job.pid).calls("cuGraphLaunch") > 60, "a checkpoint, at 50")
        finally:
            job.terminate()
    counts = Counts(tmp_path, job.pid)
    assert 0 == job.returncode
    assert counts.copied["h2d pinned"] == counts.calls("cuGraphLaunch") * (16 << 20)
    assert counts.copied["d2h pageable"] == counts.calls("cuCtxSynchronize") * (32 << 20) > 0
