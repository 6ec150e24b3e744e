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
    r"PyTorch (?P<steps>\d+) steps/s · memory_reserved\(\) (?P<reserved>[\d.]+) MiB"
)


def test_torch(release: Release, ran: Ran) -> None:
    """The demo: bytes in use are memory_reserved(), NVML has these and a context; failed allocations are counted."""
    build_standins()
    command = [sys.executable, "-m", "deploy.demo", "--torch", "--seconds=12", "--listen=127.0.0.1:0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (0, "") == (done.returncode, done.stderr)
    found = [match for line in done.stdout.splitlines() if (match := LINE.search(line))]
    assert found, done.stdout
    last = found[-1]
    assert int(last["launches"].replace(",", "")) > 100
    assert int(last["errors"]) > 0 and int(last["steps"]) > 0
    assert any(it["used"] == it["reserved"] and _share(it) == float(it["used"]) + CONTEXT_MIB for it in found)
    ran.note(f"{last['used']} MiB in use, {last['launches']} launches/s, {last['errors']} errors of cuMemAlloc_v2")


def _share(line: re.Match[str]) -> float:
    """Return the job's memory by NVML, in MiB."""
    return float(line["share"])
