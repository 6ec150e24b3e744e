"""The workload of series of processes, and the variable that chooses workloads.

Series of processes have no label `workload`: it is on `job_process_info`. Series without a known workload are shown
only if "All" is chosen, because its pattern also matches an absent label.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import QueryVariable

from dashboards.parts import choice, rate, select

CHOSEN = 'workload=~"$workload"'
"""The matcher of the variable."""
KNOWN = 'workload!=""'
PID = "job, cluster, instance, pid"
OWNER = "job, cluster, namespace, pod, slurm_job_id"
COMMUNICATOR = "cluster, comm_hash"
NAMED = ('pid!=""', KNOWN, CHOSEN)
"""Processes of the chosen workloads. A series without a pid covers many processes, and has one of several workloads."""
OF_PIDS = f"topk by ({PID}) (1, {select('job_process_info', *NAMED)})"
"""One series for each of these processes, also if a process has two, as in the minutes after an exec."""
_PART = ("_bucket", "_sum")


def workloads(*matchers: str, metric: str = "job_process_info") -> QueryVariable:
    """The variable, with the workloads of the series of a metric."""
    return choice("workload", "Workload", f"label_values({select(metric, *matchers, KNOWN)}, workload)", every=".*")


def now_of(metric: str, *matchers: str) -> str:
    """A gauge of processes of the chosen workloads, with the label `workload` where it is known."""
    return joined(select(metric, *matchers), PID, OF_PIDS, select(metric, *matchers, CHOSEN))


def rate_of(metric: str, *matchers: str) -> str:
    """A counter's rate of processes of the chosen workloads, with the label `workload` where it is known."""
    counted, least = metric, [it for it in matchers if not it.startswith("le=")]
    for part in _PART:
        counted = f"{metric.removesuffix(part)}_count" if metric.endswith(part) else counted
    return joined(rate(metric, *matchers), PID, OF_PIDS, select(counted, *least, CHOSEN))


def allocated_to(*matchers: str) -> str:
    """GPUs allocated to the chosen workloads."""
    metric = "gpu_allocation_info"
    return _of_owners(select(metric, *matchers), select(metric, *matchers, CHOSEN))


def rate_of_owners(metric: str, *matchers: str) -> str:
    """The rate of a counter that has a pod and Slurm job, but no pid, for the chosen workloads."""
    return _of_owners(rate(metric, *matchers), select(metric, *matchers, CHOSEN))


def _of_owners(values: str, own: str) -> str:
    """The values with the workload of the processes of the same pod or Slurm job, or of the pod itself."""
    processes = (select("job_process_info", *NAMED, f'{owner}!=""') for owner in ("pod", "slurm_job_id"))
    known = " or ".join((*processes, select("gpu_allocation_info", KNOWN, CHOSEN)))
    return joined(values, OWNER, f"topk by ({OWNER}) (1, group by ({OWNER}, workload) ({known}))", own)


def members(metric: str, keys: str, *matchers: str) -> str:
    """The workload by keys: that of one of the processes that have these keys and a series of the metric."""
    named = f"{select(metric, *matchers)} * on ({PID}) group_left (workload) {OF_PIDS}"
    return f"topk by ({keys}) (1, group by ({keys}, workload) ({named}))"


def of_communicators(values: str, own: str) -> str:
    """Series of NCCL's RAS of the communicators that processes of the chosen workloads are in.

    `own` is a selector of the same series for the chosen workloads.
    """
    return joined(values, COMMUNICATOR, members("nccl_communicator_info", COMMUNICATOR), own)


def joined(values: str, keys: str, named: str, own: str) -> str:
    """The values with the workload that `named` has by keys, or without a workload if they are among `own`."""
    return f"({values} * on ({keys}) group_left (workload) ({named} or on ({keys}) group by ({keys}) ({own})))"
