"""The demo's job on a GPU: a synthetic one on stand-ins, or PyTorch on the soft GPU of tests/softgpu."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.demo.gpu import LIVELY, PROCESS
from tests.real import job as soft
from tests.real.releases import CACHE, TORCH, NotInstalled, Release, installed, python

STANDINS = Path(__file__).resolve().parents[2] / "tests" / "standins" / "build"
RANKS, LATE_RANK, LATE_SECONDS = 4, 2, 0.035
KERNEL_NS = 100_000
"""Time for which each kernel of PyTorch keeps the soft GPU busy, in nanoseconds."""
_USER = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); sys.stdin.readline()"
_SPARE = 1.2
"""Disk space before a download: what it takes, and some."""


class NoJob(Exception):
    """The job cannot be had; the text is why and what to do."""


@dataclass(frozen=True)
class Job:
    """A program, and another user of its driver, which is there before it."""

    title: str
    driver: Path
    user: list[str]
    command: list[str]
    environment: Mapping[str, str]
    gpu: Mapping[str, object]
    """The scenario of NVML's stand-in."""
    processes: str = ""
    """NVML's report of the job, after its pid; empty where the soft GPU has the report."""
    status: Path | None = None
    """File to which the job writes its own counts."""

    def facts(self) -> dict[str, str]:
        """Return a line with what the job counts itself, if it does."""
        if not self.status:
            return {}
        try:
            found = json.loads(self.status.read_text())
        except (OSError, ValueError):
            return {"PyTorch": "-"}
        reserved = found["memory_reserved"] / (1 << 20)
        failed = f"OutOfMemoryError {found['out_of_memory']}"
        return {"PyTorch": f"{found['steps_per_second']:.0f} steps/s · memory_reserved() {reserved:.1f} MiB · {failed}"}


def synthetic() -> Job:
    """Return the job that needs nothing but this repository."""
    return Job(
        title="synthetic job",
        driver=STANDINS / "libcuda.so.1",
        user=[str(STANDINS / "workload"), "--gate"],
        command=[str(STANDINS / "workload"), "--steady"],
        environment={"LD_LIBRARY_PATH": str(STANDINS)},
        gpu=LIVELY,
        processes=PROCESS,
    )


def ranks() -> list[list[str]]:
    """Return the commands of the ranks of a job that has a straggler; all begin in a second."""
    library, start = str(STANDINS / "libnccl.so.2"), str(time.time() + 1)
    late = {LATE_RANK: LATE_SECONDS}
    return [
        [sys.executable, "-m", "deploy.demo.rank", library, str(rank), str(RANKS), start, str(late.get(rank, 0))]
        for rank in range(RANKS)
    ]


def pytorch(folder: Path) -> Job:
    """Return a training loop of PyTorch's wheel, downloaded from PyPI the first time. Raises NoJob."""
    release = TORCH[0]
    interpreter = _interpreter(release)
    try:
        soft.build()
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoJob(f"tests/softgpu cannot be compiled ({error}): `make setup` installs gcc") from error
    counts, status = folder / "counts", folder / "status"
    counts.mkdir(exist_ok=True)
    return Job(
        title=f"{release.title} on a soft GPU",
        driver=soft.DRIVER,
        user=[sys.executable, "-c", _USER, str(soft.DRIVER)],
        command=[str(interpreter), str(Path(__file__).with_name("torch_job.py")), str(status)],
        environment={
            **soft.environment_of(release, counts),
            "SOFTGPU_DEVICES": "1",
            "SOFTGPU_KERNEL_NS": str(KERNEL_NS),
        },
        gpu={"softgpu": counts, "gpu.gpm": 0},
        status=status,
    )


def _interpreter(release: Release) -> Path:
    if not installed(release):
        print(
            f"{release.title} is downloaded from PyPI once: about {release.download_gb:.1f} GB, "
            f"{release.gigabytes:.1f} GB in {CACHE / release.name}. Ctrl-C stops it.",
            flush=True,
        )
        _require_space(release)
    try:
        return python(release, progress=True)
    except NotInstalled as error:
        raise NoJob(f"{error}. `make demo` without --torch needs no download") from error


def _require_space(release: Release) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(CACHE).free / 1e9, _SPARE * (release.gigabytes + release.download_gb)
    if free < needed:
        raise NoJob(
            f"{CACHE} has {free:.1f} GB of free space and {release.title} needs {needed:.1f} GB while it is installed: "
            "make room, or run `make demo` without --torch"
        )
