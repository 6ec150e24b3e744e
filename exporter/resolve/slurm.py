"""The Slurm job of a process whose cgroup does not name it (plugins without cgroups, SLUIDs in place of job ids)."""

from __future__ import annotations

import re

_JOB = re.compile(rb"(?:^|\0)SLURM_JOB_ID=([0-9]{1,10})(?=\0|$)")


def job_id(environ: bytes) -> str:
    """SLURM_JOB_ID of a /proc/PID/environ block; empty when there is none or it is no number."""
    found = _JOB.search(environ)
    return found[1].decode("ascii") if found else ""
