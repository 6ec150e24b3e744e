"""The Slurm job in a process's environment, and the jobs of each GPU in the mapping folder that a prolog writes."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.resolve.environment import variable

_JOB = variable("SLURM_JOB_ID", "[0-9]{1,10}")
_GPU_FILE = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?", re.ASCII)
_MOST_FILES = 4096
_MOST_JOBS = 64
_MOST_MAPPED = 4096
_MOST_BYTES = 8192
_LONGEST_JOB = 128


def job_id(environ: bytes) -> str:
    """Return SLURM_JOB_ID of a /proc/PID/environ block, or an empty string without a valid number."""
    found = _JOB.search(environ)
    return found[1].decode("ascii") if found else ""


@dataclass(frozen=True, slots=True)
class JobGpu:
    """A job on a GPU by the GPU's index, or on a GPU instance."""

    gpu: int
    instance: int | None
    job: str


def job_gpus(folder: Path) -> list[JobGpu]:
    """Return the jobs in dcgm-exporter's mapping folder: a file `<gpu>` or `<gpu>.<gpu instance>` has one job a line.

    Raises OSError when the folder, or a file of that name, cannot be read, ValueError when there are too many jobs.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, _MOST_FILES)]
    found: list[JobGpu] = []
    for name in sorted(names):
        if parts := _GPU_FILE.fullmatch(name):
            instance = None if parts[2] is None else int(parts[2])
            found += (JobGpu(int(parts[1]), instance, job) for job in _jobs(folder / name))
        if len(found) > _MOST_MAPPED:
            raise ValueError(f"more than {_MOST_MAPPED} jobs: {folder} is no mapping of this node's GPUs")
    return found


def _jobs(path: Path) -> Iterator[str]:
    """Yield the lines of a file that are valid job ids; none of a missing or irregular file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        text = os.read(file, _MOST_BYTES) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)
    jobs = (line.strip() for line in text.decode("utf-8", "replace").splitlines())
    yield from itertools.islice((job for job in jobs if 0 < len(job) <= _LONGEST_JOB and job.isprintable()), _MOST_JOBS)
