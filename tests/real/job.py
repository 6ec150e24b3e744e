"""A process with released software on the soft GPU that executes the lines that a test sends."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.real import releases
from tests.real.releases import Release
from tests.softgpu.counts import Counts
from tests.softgpu.process import Executor

SOFTGPU = Path(__file__).parents[1] / "softgpu"
BUILD = SOFTGPU / "build"
DRIVER = BUILD / "libcuda.so.1"

_LOOP = """
import json, os, sys, time
MIB = 1 << 20
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # libraries print too
exec(os.environ["JOB_PRELUDE"])
for line in sys.stdin:
    out = None
    exec(json.loads(line))
    print(json.dumps(out), flush=True, file=answers)
"""


def runtime(cuda: int) -> Path:
    """The soft CUDA runtime of a release, under the name that it has in the release's wheels."""
    return BUILD / str(cuda) / ("libcudart-e409450e.so.11.0" if cuda == 11 else f"libcudart.so.{cuda}")


def preloaded(release: Release) -> list[Path]:
    """The soft libraries that stand before those that a release's libraries name, under their names."""
    names = ("libcublas", "libcublasLt") if release.cublas else ()
    cublas = [BUILD / str(release.cuda) / f"{name}.so.{release.cuda}" for name in names]
    return [*([runtime(release.cuda)] if release.runtime else []), *cublas]


def build() -> None:
    """Compiles the soft GPU's libraries."""
    subprocess.run(["make", "-s", "-C", SOFTGPU], check=True)


class Job(Executor):
    """One with a release. Variables of its environment are keywords; `folder` is where calls are counted."""

    folder: Path

    def __init__(self, release: Release, folder: Path, **environment: object) -> None:
        variables = {**environment_of(release, folder), "JOB_PRELUDE": release.prelude, **environment}
        super().__init__(releases.python(release), _LOOP, folder, variables)

    @property
    def runtime_counts(self) -> Counts:
        """The same of the soft runtime."""
        return Counts(self.folder, self.pid, "libcudart")


def environment_of(release: Release, folder: Path) -> Mapping[str, str]:
    """Variables of a process with a release.

    The soft runtime and cuBLAS are there before the wheel's, under the same names; no file of the wheel is changed.
    """
    paths = (BUILD, releases.libraries(release), BUILD / "cudnn" if release.cudnn else None)
    return {
        "LD_LIBRARY_PATH": ":".join(str(path) for path in paths if path),
        "SOFTGPU_COUNTS": str(folder),
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": ":".join(str(path) for path in preloaded(release)),
    }
