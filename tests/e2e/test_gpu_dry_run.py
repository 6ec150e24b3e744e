"""`make test-gpu ARGS=--dry-run`: the checks for a GPU run, answer, and notice stand-ins that are wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests import workers
from tests.bpf.cuda_node import BUILD, build_standins
from tests.gpu.__main__ import CHECKS
from tests.gpu.outcome import CANNOT, FAILED, OK, REPORTED

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "gpu-results.md"
WRONG_DRIVER = """
#include <string.h>
int right(const char *, void **, int, unsigned long, int *);
static int hidden(void) { return 0; }
int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long flags, int *status)
{
    int result = right(name, out, version, flags, status);
    if (!strcmp(name, "cuLaunchKernel"))
        *out = (void *)hidden;
    return result;
}
"""

pytestmark = pytest.mark.timeout(600)

Rows = dict[int, dict[str, tuple[str, str]]]


@pytest.fixture(scope="module")
def standins() -> None:
    build_standins()


def dry_run(folder: Path, *arguments: str, **variables: str) -> tuple[int, Rows]:
    """The status and the rows that were written: by check and question, outcome and answer."""
    output = folder / "results.md"
    command = [sys.executable, "-m", "tests.gpu", "--dry-run", f"--output={output}", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | workers.environment(folder) | variables,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    rows: Rows = defaultdict(dict)
    for number, question, outcome, answer in re.findall(
        r"^\| (\d) \| (.*?) \| (.*?) \| (.*) \|$", output.read_text(), re.M
    ):
        rows[int(number)][question] = (outcome, answer)
    assert output.read_text().splitlines()[2].startswith("A dry run against stand-ins")
    return done.returncode, rows


@pytest.mark.needs_bpf
def test_every_check_answers(standins: None, tmp_path: Path) -> None:
    """Each of the nine has rows, none fails, what cannot run has a reason, and counts are the job's own."""
    before = RESULTS.read_text()
    status, rows = dry_run(tmp_path)

    failed = {(number, it): row for number in rows for it, row in rows[number].items() if row[0] == FAILED}
    assert (0, {}) == (status, failed)
    assert set(CHECKS) == set(rows)
    assert {OK, REPORTED, CANNOT} >= {outcome for number in rows for outcome, _ in rows[number].values()}
    assert all(
        len(answer) > (20 if outcome == CANNOT else 0) for it in rows.values() for outcome, answer in it.values()
    )
    for allocator in ("False", "True"):
        suffix = f"expandable_segments:{allocator}"
        assert (OK, "runtime 230, driver 230, graphs 0") == rows[4][f"launches, eager, {suffix}"]
        assert (OK, "runtime 0, driver 0, graphs 30") == rows[4][f"launches, graphs, {suffix}"]
        assert CANNOT == rows[4][f"launches, compiled, {suffix}"][0]
        assert OK == rows[4][f"bytes copied, {suffix}"][0]
    assert (OK, "none") == rows[2]["of these not hooked (default)"]
    assert OK == rows[6]["energy agrees with power"][0]
    assert OK == rows[7]["GPU of the job's pid"][0]
    assert (OK, "23") == rows[8]["calls of AllReduce"]
    assert (OK, str(23 << 22)) == rows[8]["bytes of AllReduce"]
    assert (OK, "[('0', '1')]") == rows[8]["rank and size in memory"]
    assert before == RESULTS.read_text()


def test_a_driver_with_other_pointers_fails(standins: None, tmp_path: Path) -> None:
    """A libcuda with a cuGetProcAddress that gives an unprobed function is a failed row with the function's name."""
    source, driver = tmp_path / "wrong.c", tmp_path / "right.o"
    source.write_text(WRONG_DRIVER)
    renamed = ["--redefine-sym", "cuGetProcAddress_v2=right", BUILD / "libcuda.o", driver]
    subprocess.run(["objcopy", *renamed], check=True)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, "-o", tmp_path / "libcuda.so.1", source, driver, "-ldl", "-lpthread"], check=True)
    status, rows = dry_run(tmp_path, "--check=2", f"--standins={tmp_path}")

    outcome, answer = rows[2]["of these not hooked (default)"]
    assert (1, FAILED) == (status, outcome)
    assert answer.startswith("cuLaunchKernel 12000, cuLaunchKernel 13000 instead of")


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("gpu.field.83=1000000+312", "energy agrees with power"),  # joules for millijoules
        ("gpu.power_mw=312", "hw_power_watts is plausible"),  # watts for milliwatts
        ("gpu.temperature=4100", "hw_temperature_celsius is plausible"),
        ("gpu.energy_mj=312", "calls give what the fields give that they stand in for"),
    ],
)
def test_a_wrong_unit_fails(standins: None, tmp_path: Path, line: str, question: str) -> None:
    """NVML that answers in another unit is a failed row."""
    status, rows = dry_run(tmp_path, "--check=6", f"--scenario={line}")

    assert (1, FAILED) == (status, rows[6][question][0])


def test_absence_is_a_failure_where_a_gpu_is_required(standins: None, tmp_path: Path) -> None:
    """REQUIRE_GPU=1 turns a row that could not run into status 1, which it is not in a run of all checks."""
    status, rows = dry_run(tmp_path, "--check=5", REQUIRE_GPU="1")

    outcomes = {outcome for outcome, _ in rows[5].values()}
    assert (1, True, False) == (status, CANNOT in outcomes, FAILED in outcomes)
