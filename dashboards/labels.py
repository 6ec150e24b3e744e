"""Labels as panels show them: headings of columns, and legends."""

from __future__ import annotations

HEADINGS = {
    "account": "Account",
    "comm": "Command",
    "command": "Command",
    "container": "Container",
    "device": "Device",
    "gpu": "GPU",
    "gpu_uuid": "UUID",
    "instance": "Instance",
    "namespace": "Namespace",
    "peer_gid": "Peer GID",
    "peer_lid": "Peer LID",
    "pid": "PID",
    "pod": "Pod",
    "port": "Port",
    "queue": "Queue",
    "slurm_job_id": "Slurm job",
    "workload": "Workload",
    "workload_kind": "Launched by",
}
OF_JOB = ('namespace=~"$namespace"', 'pod=~"$pod"', 'slurm_job_id=~"$slurm_job_id"')
"""Matchers of the variables that choose a job."""


def columns(*labels: str) -> dict[str, str]:
    """Return the headings of a table's columns by label."""
    return {label: HEADINGS[label] for label in labels}


def legend(*labels: str) -> str:
    """Return a legend that has the values of these labels."""
    return " ".join(f"{{{{{label}}}}}" for label in labels)
