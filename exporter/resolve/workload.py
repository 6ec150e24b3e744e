"""The job that a process belongs to, by the variables that launchers give their processes.

Slurm: https://slurm.schedmd.com/sbatch.html#lbAK and srun.html#lbAJ. torchrun:
https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables. PyTorch with any launcher: MASTER_ADDR and
MASTER_PORT, https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization. JAX:
JAX_COORDINATOR_ADDRESS. Open MPI sets OMPI_COMM_WORLD_* and, by PMIx, PMIX_NAMESPACE; MPICH and Intel MPI set PMI_*,
KubeRay RAY_CLUSTER_NAME.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from exporter.model import Kind, Labels, Metric
from exporter.resolve.environment import variable

INFO = Metric(
    "job.process.info",
    "Always 1: container and job of a process that a collector reports. The job comes from the variables that Slurm, "
    "torchrun, PyTorch, JAX, MPI or Ray read or set, with their values at the process's start. The process may have "
    "changed them, so they prove nothing. A label is absent where its variable is not set. Join it on pid. Kept for "
    "five minutes after the last look at the process, for 1,024 processes.",
    Kind.GAUGE,
    labels=("workload", "workload_kind", "queue", "account", "array_task", "het_group", "step", "rank", "world_size"),
    process=True,
)
MOST = 1024
"""Processes that have a series."""
SECONDS = 300.0

_TEXT, _NUMBER = r"[^\0]{1,256}", r"[0-9]{1,10}"
_LONGEST = 63
"""Characters of a value, as of a label of Kubernetes."""
_Patterns = Sequence[re.Pattern[bytes]]


def _text(*names: str) -> _Patterns:
    return [variable(name, _TEXT) for name in names]


def _number(*names: str) -> _Patterns:
    return [variable(name, _NUMBER) for name in names]


_KINDS: Mapping[str, tuple[_Patterns, Mapping[str, _Patterns]]] = {
    "slurm": (
        _text("SLURM_JOB_NAME"),
        {
            "queue": _text("SLURM_JOB_PARTITION"),
            "account": _text("SLURM_JOB_ACCOUNT"),
            "array_task": _number("SLURM_ARRAY_TASK_ID"),
            "step": _number("SLURM_STEP_ID"),
        },
    ),
    "raycluster": (_text("RAY_CLUSTER_NAME"), {}),
    "torchrun": (_text("TORCHELASTIC_RUN_ID"), {}),
}
"""By kind of workload: the variables of its name, and those of further labels. The first kind with a name counts."""
_UNNAMED = ("", "none")
"""torchrun's name of a run that nobody named is "none"."""
_ADDRESS, _PORT = _text("MASTER_ADDR"), _number("MASTER_PORT")
_COORDINATOR, _NAMESPACE = _text("JAX_COORDINATOR_ADDRESS"), _text("PMIX_NAMESPACE")
_OWN_NODE = re.compile(r"(?:localhost|127\.[0-9.]+|\[?::1\]?|0\.0\.0\.0|\[?::\]?)(?::[0-9]+)?", re.IGNORECASE)
"""Addresses that mean a different host on each node: as a name they would join jobs that have nothing in common."""
_OF_ANY: Mapping[str, _Patterns] = {
    "rank": _number("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "VLLM_DP_RANK"),
    "world_size": _number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "VLLM_DP_SIZE"),
}
"""torchrun's first: a launcher that Slurm or MPI started once on each node has another rank than its workers. Of vLLM
it is the rank of the replica that the process belongs to (data parallel)."""
_HET_SIZE = variable("SLURM_HET_SIZE", _NUMBER)
_OF_POD = ("rank", "world_size")
"""Labels from variables that count also where the pod's workload is known otherwise."""


def workload(environ: bytes, slurm_job_id: str = "") -> Labels:
    """Return the labels of a process's job from its /proc/PID/environ block, without those that are not known.

    `slurm_job_id` is that of the process's cgroup: of a heterogeneous job that of the component, which has variables
    of its own.
    """
    group = _het_group(environ, slurm_job_id)
    environ = _of_component(environ, group) if group else environ
    found = {label: value for label, patterns in _OF_ANY.items() if (value := _first(patterns, environ))}
    for kind, (names, others) in _KINDS.items():
        name = _first(names, environ)
        if name not in _UNNAMED:
            own = {label: value for label, patterns in others.items() if (value := _first(patterns, environ))}
            het = {"het_group": group} if group and kind == "slurm" else {}
            return {"workload": name, "workload_kind": kind, **own, **het, **found}
    return {**_met(environ), **found}


def _met(environ: bytes) -> Labels:
    """Return the workload and kind of a job without a name: the place where its ranks meet, the same for all."""
    address, port = _first(_ADDRESS, environ), _first(_PORT, environ)
    places = (
        ("pytorch", f"{address[: _LONGEST - 1 - len(port)]}:{port}" if address and port else ""),
        ("jax", _first(_COORDINATOR, environ)),
        ("mpi", _first(_NAMESPACE, environ)),
    )
    for kind, place in places:
        if place and not _OWN_NODE.fullmatch(place):
            return {"workload": place, "workload_kind": kind}
    return {}


def in_pod(own: Labels, of_pod: Labels) -> Labels:
    """Return the labels of a process by its variables, `own`, and by its pod's workload, which counts first."""
    if "workload" not in of_pod:
        return {**own, **of_pod}
    return {**{label: value for label, value in own.items() if label in _OF_POD}, **of_pod}


def _het_group(environ: bytes, slurm_job_id: str) -> str:
    """Return the number of the component of a heterogeneous Slurm job that has this job id; empty if there is none."""
    if not slurm_job_id.isdecimal() or not _HET_SIZE.search(environ):
        return ""
    found = re.search(rb"(?:^|\0)SLURM_JOB_ID_HET_GROUP_([0-9]{1,3})=" + slurm_job_id.encode() + rb"(?=\0|\Z)", environ)
    return found[1].decode() if found else ""


def _of_component(environ: bytes, group: str) -> bytes:
    """Return the variables with those of one component first, under the names that a job of one component has."""
    suffix = f"_HET_GROUP_{group}=".encode()
    own = (it.replace(suffix, b"=", 1) for it in environ.split(b"\0") if suffix in it.partition(b"=")[0] + b"=")
    return b"\0".join((*own, environ))


def _first(patterns: _Patterns, environ: bytes) -> str:
    """Return the first printable value, cut to a length, or an empty string."""
    for pattern in patterns:
        if (found := pattern.search(environ)) and (text := found[1].decode("utf-8", "replace")).isprintable():
            return text[:_LONGEST]
    return ""
