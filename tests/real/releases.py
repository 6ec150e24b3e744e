"""The releases of PyTorch that `make test-real` runs, and their virtual environments, kept for the next run."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CACHE = Path.home() / ".cache" / "accel-exporter" / "real"
TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Release:
    """A release on PyPI, which links CUDA's runtime dynamically, and that runtime's release."""

    torch: str
    cuda: int
    gigabytes: float
    """What its environment takes on disk."""

    @property
    def name(self) -> str:
        return f"torch-{self.torch}"


RELEASES = (Release("2.14.1", 13, 5.5), Release("2.10.0", 12, 7.0))
"""2.10 is the last for CUDA 12 on PyPI. 2.15.0, the newest, depends on the runtime as 2.14.1 does and was not tried."""


class NotInstalled(Exception):
    """pip could not install a release; the message has the reason."""


def python(release: Release) -> Path:
    """The Python of an environment with the release and what it depends on, installed once. Raises NotInstalled."""
    folder = CACHE / release.name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{release.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "installed"
        if not done.exists():
            _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
            _run([*pip, "--only-binary=:all:", f"torch=={release.torch}", "numpy"])
            done.touch()
    return folder / "bin" / "python"


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{command[0]} did not end within {TIMEOUT_S} s") from error
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["no reason given"]
        raise NotInstalled(f"{' '.join(command[-2:])} cannot be installed: {errors[-1]}")
