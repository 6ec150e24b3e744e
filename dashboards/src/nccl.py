"""NCCL jobs: what they communicate, which ranks are late, and what hangs or failed."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.labels import OF_JOB, columns, legend
from dashboards.parts import (
    DETAIL,
    FULL,
    HALF,
    THIRD,
    Query,
    board,
    choice,
    heat,
    lines,
    number,
    rate,
    rows,
    select,
    total,
)
from dashboards.workloads import CHOSEN, now_of, of_communicators, rate_of, workloads

JOB = OF_JOB
COMMUNICATOR = ('comm_hash=~"$comm_hash"',)
PROCESS = ("workload", "instance", "namespace", "pod", "slurm_job_id", "comm", "pid", "gpu")
PROCESS_NAME = legend("workload", "namespace", "pod", "slurm_job_id", "comm", "pid", "gpu", "instance")
PROCESS_COLUMNS = columns("workload", "instance", "namespace", "pod", "slurm_job_id", "comm", "pid", "gpu")
RANK = ("workload", "namespace", "pod", "slurm_job_id", "comm", "comm_hash", "rank", "instance", "pid")
RANK_NAME = (
    legend("workload", "namespace", "pod", "slurm_job_id", "comm") + " {{comm_hash}} rank {{rank}} {{instance}} {{pid}}"
)
HOST = ("cluster", "workload", "comm_hash", "rank", "host")
HOST_NAME = "{{workload}} {{comm_hash}} rank {{rank}} {{host}}"


def of_jobs(metric: str, *matchers: str) -> str:
    return now_of(metric, *JOB, *matchers)


def rising(metric: str, *labels: str) -> str:
    """A counter's rate over all ranks of the chosen jobs, by labels."""
    return total(rate_of(metric, *JOB), *labels)


def mean(histogram: str, *labels: str) -> str:
    """The mean of a histogram's observations."""
    chosen = (*JOB, *COMMUNICATOR) if "comm_hash" in labels else JOB
    sums, counts = (total(rate_of(f"{histogram}_{part}", *chosen), *labels) for part in ("sum", "count"))
    return f"{sums} / ({counts} > 0)"


def rising_lags(*labels: str) -> str:
    """Observations of the arrival lag per second in the chosen communicators, by labels."""
    return total(rate_of("nccl_rank_arrival_lag_seconds_bucket", *JOB, *COMMUNICATOR), *labels)


def ras(metric: str, *matchers: str) -> str:
    """Series of NCCL's RAS for the communicators of the chosen workloads."""
    return of_communicators(select(metric, *matchers), select(metric, *matchers, CHOSEN))


def per_rank(metric: str) -> str:
    return f"max by ({', '.join(RANK)}) ({of_jobs(metric, *COMMUNICATOR)})"


LAST_CALL = of_jobs("nccl_last_call_timestamp_seconds")
FAILED = of_jobs("nccl_last_error_timestamp_seconds")
SINCE = f"time() - max by ({', '.join(PROCESS)}) ({LAST_CALL})"
INFO = of_jobs("nccl_communicator_info", *COMMUNICATOR)
RAS_COLLECTIVES = of_communicators(
    rate("nccl_ras_rank_collectives_total", *COMMUNICATOR),
    select("nccl_ras_rank_collectives_total", *COMMUNICATOR, CHOSEN),
)
LAG = "nccl_rank_arrival_lag_seconds"

OVERVIEW = [
    number("Ranks", "Memberships of processes in communicators.", "short", Query(f"count({INFO})")),
    number("Collectives", "Calls per second, all ranks.", "cps", Query(rising("nccl_collective_calls_total"))),
    number(
        "Ranks late",
        "Ranks that call 50 ms or more after the first of their node, on average.",
        "short",
        Query(f"count({mean(LAG, *RANK)} > 0.05) or vector(0)"),
        alarm=1,
    ),
    number(
        "Behind",
        "The greatest number of calls that a rank is behind another rank of its node.",
        "short",
        Query(f"max({of_jobs('nccl_rank_calls_behind')})"),
    ),
    number(
        "Ranks missing",
        "Ranks that NCCL cannot reach, over all nodes of the jobs queried.",
        "short",
        Query(total(ras("nccl_ras_ranks_missing", 'state!="absent"'))),
        alarm=1,
    ),
    number("Errors", "Failed calls per second.", "eps", Query(f"{rising('nccl_errors_total')} or vector(0)")),
]

TRAFFIC = [
    lines(
        "Collectives by kind",
        "Calls per second, all ranks. A replayed CUDA graph makes none.",
        "cps",
        Query(rising("nccl_collective_calls_total", "collective"), "{{collective}}"),
    ),
    lines(
        "Bus bytes by process",
        "Bytes that the links of each rank have to carry, as nccl-tests defines bus bandwidth.",
        "Bps",
        Query(rising("nccl_collective_bus_bytes_total", *PROCESS), PROCESS_NAME),
    ),
    lines(
        "Bytes by kind",
        "Bytes passed to the calls, all ranks.",
        "Bps",
        Query(rising("nccl_collective_bytes_total", "collective"), "{{collective}}"),
        width=THIRD,
    ),
    lines(
        "Time to enqueue",
        "Mean host time in a call, which only enqueues: not the time of the transfer.",
        "s",
        Query(mean("nccl_enqueue_seconds", "instance"), "{{instance}}"),
        width=THIRD,
    ),
    lines(
        "Operations on communicators",
        "Mean host time of Init, Split, Destroy and the others.",
        "s",
        Query(mean("nccl_communicator_operation_seconds", "operation"), "{{operation}}"),
        width=THIRD,
    ),
]

STRAGGLERS = [
    heat(
        "Arrival lags",
        "Distribution of the lag behind the first rank of the node. A separate band is a straggler.",
        "s",
        Query(rising_lags("le"), "{{le}}"),
    ),
    lines(
        "99th percentile of the arrival lag",
        "99th percentile by rank. Far above the mean (below), the rank is late at times, for example while it saves "
        "or loads.",
        "s",
        Query(f"histogram_quantile(0.99, {rising_lags('le', *RANK)})", RANK_NAME),
    ),
    lines(
        "Arrival lag by rank",
        "How much later than the first rank of its node each rank calls, on average. One line above the others: a "
        "straggler. Only where a node has two ranks of a communicator.",
        "s",
        Query(mean(LAG, *RANK), RANK_NAME),
    ),
    lines(
        "Calls behind",
        "Collectives that another rank of the node has called and this rank has not yet. The other ranks wait for a "
        "rank that stays behind.",
        "short",
        Query(per_rank("nccl_rank_calls_behind"), RANK_NAME),
    ),
    lines(
        "Time since last collective",
        "Time since each process called a collective last.",
        "s",
        Query(SINCE, PROCESS_NAME),
    ),
    lines(
        "Calls in flight",
        "Threads inside an NCCL call. A thread that stays in a call belongs to a rank that waits.",
        "short",
        Query(total(of_jobs("nccl_calls_in_flight"), *PROCESS), PROCESS_NAME),
    ),
    lines(
        "Behind over all nodes",
        "Collectives that a rank is behind the first of its communicator, as NCCL's RAS counts them; 0 where no rank "
        "of the communicator is behind.",
        "short",
        Query(
            f"max by ({', '.join(HOST)}) ({ras('nccl_ras_rank_lag', *COMMUNICATOR)}) or on (cluster, comm_hash) "
            f"label_replace(0 * {total(RAS_COLLECTIVES, 'cluster', 'workload', 'comm_hash')}, "
            '"rank", "none", "", "")',
            HOST_NAME,
        ),
        width=HALF,
    ),
    lines(
        "Missing over all nodes",
        "Ranks that NCCL's RAS cannot reach, by communicator and state.",
        "short",
        Query(
            total(ras("nccl_ras_ranks_missing", *COMMUNICATOR), "workload", "comm_hash", "state"),
            "{{workload}} {{comm_hash}} {{state}}",
        ),
        width=HALF,
    ),
]

WHO = [
    rows(
        "Communicators",
        "Rank of each process, and size of the communicator.",
        "short",
        {"comm_hash": "Communicator", "rank": "Rank", "nranks": "Ranks", **PROCESS_COLUMNS},
        Query(f"max by (comm_hash, rank, nranks, {', '.join(PROCESS)}) ({INFO})", "Is", hidden=True),
        width=FULL,
    ),
    rows(
        "Errors by call",
        "Time since the newest failed call, by process and function.",
        "s",
        {**PROCESS_COLUMNS, "api": "Call", "error": "Error", "code": "Code"},
        Query(
            f"time() - max by ({', '.join(PROCESS)}, api, error, code) ({FAILED})",
            "Ago",
        ),
        width=FULL,
    ),
]


DETAILS = [
    lines(
        "Time to enqueue by collective",
        "Mean host time in a call of each collective.",
        "s",
        Query(mean("nccl_enqueue_seconds", "collective"), "{{collective}}"),
        width=FULL,
    ),
]


def dashboard() -> Dashboard:
    info = select("nccl_communicator_info")
    return board(
        "accel-exporter-nccl",
        "NCCL jobs",
        "Which rank is late, behind or missing? Collectives of the processes on these nodes, and their errors.",
        [
            choice("namespace", "Namespace", f"label_values({info}, namespace)", every=".*"),
            workloads('namespace=~"$namespace"'),
            choice("pod", "Pod", f"label_values({info}, pod)", every=".*"),
            choice("slurm_job_id", "Slurm job", f"label_values({info}, slurm_job_id)", every=".*"),
            choice("comm_hash", "Communicator", f"label_values({info}, comm_hash)", every=".*"),
        ],
        {
            "Overview": OVERVIEW,
            "Traffic": TRAFFIC,
            "Stragglers and hangs": STRAGGLERS,
            "Communicators and errors": WHO,
            DETAIL: DETAILS,
        },
    )
