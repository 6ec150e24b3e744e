"""`make demo ARGS="--torch"`: PyTorch's own numbers beside those of the exporter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bpf.cuda_node import build_standins
from tests.real.conftest import Ran
from tests.real.releases import TORCH, Release

pytestmark = [pytest.mark.needs_bpf, pytest.mark.timeout(300)]

SOFTWARE = TORCH[:1]
ROOT = Path(__file__).parents[2]
CONTEXT_MIB = 512
LINE = re.compile(
    r"launches/s (?P<launches>[\d,]+) .*in use device (?P<used>[\d.]+) MiB · pinned_host .*"
    r"h2d pinned .*cuStreamSynchronize p50 .*errors cuMemAlloc_v2 (?P<errors>\d+) .*"
    r"its share memory (?P<share>[\d.]+) MiB · sm (?P<sm>\d+)%.*"
    r"PyTorch (?P<steps>\d+) steps/s · memory_reserved\(\) (?P<reserved>[\d.]+) MiB · OutOfMemoryError (?P<failed>\d+)"
)


def test_torch(release: Release, ran: Ran) -> None:
    """The demo: bytes in use are memory_reserved(), NVML has these and a context; an OutOfMemoryError is two errors.

    The line has what was true within a second: one with a new error may lack what PyTorch has written since.
    """
    build_standins()
    command = [sys.executable, "-m", "deploy.demo", "--torch", "--seconds=12", "--listen=127.0.0.1:0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (0, "") == (done.returncode, done.stderr)
    found = [match for line in done.stdout.splitlines() if (match := LINE.search(line))]
    assert found, done.stdout
    last = found[-1]
    assert int(last["launches"].replace(",", "")) > 100
    assert int(last["steps"]) > 0
    equal = [it for it in found if it["used"] == it["reserved"] and int(it["errors"]) == 2 * int(it["failed"]) > 0]
    assert equal and any(_share(it) == float(it["used"]) + CONTEXT_MIB for it in equal), done.stdout
    ran.note(f"{equal[-1]['used']} MiB in use, {equal[-1]['errors']} errors of cuMemAlloc_v2")


def _share(line: re.Match[str]) -> float:
    """Return the job's memory by NVML, in MiB."""
    return float(line["share"])
