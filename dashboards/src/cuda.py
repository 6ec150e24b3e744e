"""CUDA jobs: who uses the GPUs of a node, for what, and what holds them up."""

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
    red,
    rows,
    select,
    share,
    total,
)
from dashboards.workloads import now_of, rate_of, workloads

DRIVER = 'api_layer="driver"'
WHO = (*OF_JOB, 'comm=~"$comm"')
PROCESS = ("workload", "instance", "namespace", "pod", "container", "slurm_job_id", "comm", "pid")
NAME = legend("workload", "namespace", "pod", "slurm_job_id", "comm", "pid", "instance")
COLUMNS = columns("workload", "instance", "namespace", "pod", "container", "slurm_job_id", "comm", "pid")

MEMORY = now_of("gpu_cuda_memory_usage_bytes", *WHO, DRIVER, 'memory!="pinned_host"')
LAUNCHES = rate_of("gpu_cuda_kernel_launch_calls_total", *WHO, DRIVER)
GRAPHS = rate_of("gpu_cuda_graph_launch_calls_total", *WHO, DRIVER)
COPIES = rate_of("gpu_cuda_memory_copies_bytes_total", *WHO)
OVER_THE_BUS = rate_of("gpu_cuda_memory_copies_bytes_total", *WHO, 'direction=~"h2d|d2h"')
PAGEABLE = rate_of("gpu_cuda_memory_copies_bytes_total", *WHO, 'direction=~"h2d|d2h"', 'host_memory="pageable"')
WAITED = rate_of("gpu_cuda_sync_wait_seconds_sum", *WHO, DRIVER)
WAITS = rate_of("gpu_cuda_sync_wait_seconds_bucket", *WHO, DRIVER)
ERRORS = rate_of("gpu_cuda_api_errors_total", *WHO)
LAST_LAUNCH = f"time() - max by ({', '.join(PROCESS)}) ({now_of('gpu_cuda_last_launch_timestamp_seconds', *WHO)})"
LAST_ERROR = now_of("gpu_cuda_api_last_error_timestamp_seconds", *WHO)
CHURN = rate_of("gpu_cuda_api_calls_total", *WHO, DRIVER, 'api=~"cuMem(Alloc|Free|Create|Release|Host|Managed).*"')

OVERVIEW = [
    number(
        "Processes",
        "Processes that called CUDA; ended processes count for five more minutes.",
        "short",
        Query(f"count({total(now_of('gpu_cuda_api_calls_total', *WHO), *PROCESS)})"),
    ),
    number(
        "Device memory", "Device memory allocated and not freed, as the probes saw it.", "bytes", Query(total(MEMORY))
    ),
    number("Kernel launches", "Kernels launched by calls, without graph replays.", "ops", Query(total(LAUNCHES))),
    number("Graph launches", "Graphs launched; one may hold many kernels.", "ops", Query(total(GRAPHS))),
    number("Copies", "Bytes of copy calls, all directions.", "Bps", Query(total(COPIES))),
    number(
        "Errors",
        "Calls per second that returned an error, in the API layer with more errors.",
        "ops",
        Query(f"max({total(ERRORS, 'api_layer')}) or vector(0)"),
        alarm=0.001,
    ),
    rows(
        "Processes",
        "Usage by process. Waiting is the time its threads spent blocked in synchronising calls, over wall time; "
        "more than 100 % means several threads. A high share is right while the GPU is busy.",
        "short",
        COLUMNS,
        Query(total(MEMORY, *PROCESS), "Device memory", "bytes"),
        Query(total(LAUNCHES, *PROCESS), "Launches", "ops"),
        Query(total(GRAPHS, *PROCESS), "Graph launches", "ops"),
        Query(total(COPIES, *PROCESS), "Copies", "Bps"),
        Query(total(WAITED, *PROCESS), "Waiting", "percentunit"),
        Query(LAST_LAUNCH, "Last launch", "s"),
    ),
]

MEMORY_PANELS = [
    lines(
        "Device memory in use by process",
        "Allocated and not freed through the driver: device, pool, VMM and managed memory. A framework's cache counts "
        "as used; the CUDA context itself does not appear.",
        "bytes",
        Query(total(MEMORY, *PROCESS), NAME),
        stacked=True,
    ),
    lines(
        "Memory in use by kind",
        "Memory in use by kind, and pinned host memory beside it.",
        "bytes",
        Query(total(now_of("gpu_cuda_memory_usage_bytes", *WHO, DRIVER), "memory"), "{{memory}}"),
        stacked=True,
    ),
    lines(
        "Unattributed memory",
        "Memory that NVML reports beyond the allocations seen: contexts, modules and memory of libraries. Only for "
        "processes seen from their start.",
        "bytes",
        Query(total(now_of("gpu_cuda_memory_unattributed_bytes", *WHO), *PROCESS), NAME),
    ),
    lines(
        "Processes not seen from their start",
        "Processes that ran before the probes were attached: earlier allocations are known to NVML alone.",
        "short",
        Query(total(f"1 - {now_of('gpu_cuda_seen_from_start', *WHO)}", "instance"), "{{instance}}"),
    ),
    lines(
        "Allocated and freed",
        "Bytes of successful allocations and of frees per second. Steady flows of both are churn: reuse the buffers, "
        "or take them from a pool.",
        "Bps",
        Query(
            total(rate_of("gpu_cuda_memory_allocations_bytes_total", *WHO, DRIVER), "memory"), "{{memory}} allocated"
        ),
        Query(total(rate_of("gpu_cuda_memory_frees_bytes_total", *WHO, DRIVER), "memory"), "{{memory}} freed"),
    ),
    lines(
        "Allocation calls",
        "Calls that allocate or free memory, by API function. Each cuMemFree may wait for the GPU.",
        "ops",
        Query(total(CHURN, "api"), "{{api}}"),
    ),
]

WORK = [
    lines(
        "Kernel launches",
        "Launch calls by process, without graph replays.",
        "ops",
        Query(total(LAUNCHES, *PROCESS), NAME),
    ),
    lines("Graph launches", "Graph launches by process.", "ops", Query(total(GRAPHS, *PROCESS), NAME)),
    lines(
        "Time since the last launch",
        "Time since the last launch of a kernel or a graph. A rising line is a process that gives the GPU no work.",
        "s",
        Query(LAST_LAUNCH, NAME),
    ),
    lines(
        "Calls by API function",
        "The ten most frequent. Where both layers are probed, a runtime call makes driver calls: never add the layers.",
        "ops",
        Query(
            f"topk(10, {total(rate_of('gpu_cuda_api_calls_total', *WHO), 'api_layer', 'api')})", "{{api_layer}} {{api}}"
        ),
    ),
]

COPY_PANELS = [
    lines(
        "Copies by direction",
        "Bytes of copy calls: h2d host to device, d2h device to host, d2d on or between devices. Enqueued, not yet "
        "copied.",
        "Bps",
        Query(total(COPIES, "direction"), "{{direction}}"),
        width=THIRD,
        stacked=True,
    ),
    red(
        lines(
            "Copies between host and device by host memory",
            "Pageable memory (red) is staged through a driver buffer and blocks the caller. Unknown: allocated before "
            "the exporter saw the process.",
            "Bps",
            Query(total(OVER_THE_BUS, "host_memory"), "{{host_memory}}"),
            width=THIRD,
            stacked=True,
        ),
        "pageable",
    ),
    lines(
        "Pageable share by process",
        "Pageable bytes over all bytes copied between host and device. Pin the buffers of processes that stay high.",
        "percentunit",
        Query(share(f"{total(PAGEABLE, *PROCESS)} / ({total(OVER_THE_BUS, *PROCESS)} > 0)"), NAME),
        width=THIRD,
    ),
]

WAIT_PANELS = [
    lines(
        "Waiting share by process",
        "Time blocked in synchronising calls over wall time; several threads can exceed 100 %. Waste only where the "
        "GPU idles meanwhile.",
        "percentunit",
        Query(total(WAITED, *PROCESS), NAME),
        width=THIRD,
    ),
    lines(
        "99th percentile of a wait",
        "99th percentile of waits by process. Absent where return probes are not safe for the process.",
        "s",
        Query(f"histogram_quantile(0.99, {total(WAITS, 'le', *PROCESS)})", NAME),
        width=THIRD,
    ),
    heat("Waits", "Distribution of waits.", "s", Query(total(WAITS, "le"), "{{le}}"), width=THIRD),
]

DETAILS = [
    lines(
        "99th percentile of a wait by API function",
        "99th percentile over all processes.",
        "s",
        Query(f"histogram_quantile(0.99, {total(WAITS, 'le', 'api')})", "{{api}}"),
        width=FULL,
    ),
]

ERROR_PANELS = [
    lines(
        "Errors by code",
        "Calls that returned an error, per second. Where both layers are probed, the runtime passes on the driver's.",
        "ops",
        Query(total(ERRORS, "api_layer", "api", "code", "error"), "{{error}} {{code}} {{api}}"),
    ),
    rows(
        "Last errors",
        "Time since the newest error of each process, by call and code.",
        "s",
        {**COLUMNS, "api": "Call", "code": "Code", "error": "Error"},
        Query(f"time() - max by ({', '.join((*PROCESS, 'api', 'code', 'error'))}) ({LAST_ERROR})", "Ago"),
        width=HALF,
    ),
    lines(
        "Untracked allocations",
        "Bytes for which the table of live allocations had no room. From then on bytes in use of that kind of memory "
        "are absent for the process.",
        "Bps",
        Query(total(rate_of("gpu_cuda_memory_untracked_bytes_total", *WHO, DRIVER), *PROCESS), NAME),
        width=THIRD,
    ),
    lines(
        "Frees of unseen allocations",
        "Frees of memory that is older than the probes or belongs to another process; never part of the bytes in use.",
        "ops",
        Query(total(rate_of("gpu_cuda_memory_frees_unseen_total", *WHO, DRIVER), *PROCESS), NAME),
        width=THIRD,
    ),
    lines(
        "Copies not read",
        "Copies with a description that could not be read; their bytes are in no panel.",
        "ops",
        Query(total(rate("gpu_cuda_memory_copies_unread_total"), "instance"), "{{instance}}"),
        width=THIRD,
    ),
]


def dashboard() -> Dashboard:
    calls = select("gpu_cuda_api_calls_total")
    return board(
        "accel-exporter-cuda",
        "CUDA jobs",
        "Memory, launches, copies, waits and errors of processes on GPUs. From probes on the driver.",
        [
            choice("namespace", "Namespace", f"label_values({calls}, namespace)", every=".*"),
            workloads('namespace=~"$namespace"'),
            choice("pod", "Pod", f"label_values({calls}, pod)", every=".*"),
            choice("slurm_job_id", "Slurm job", f"label_values({calls}, slurm_job_id)", every=".*"),
            choice("comm", "Command", f"label_values({calls}, comm)", every=".*"),
        ],
        {
            "Usage": OVERVIEW,
            "Memory": MEMORY_PANELS,
            "Work": WORK,
            "Copies": COPY_PANELS,
            "Waits": WAIT_PANELS,
            "Errors and blind spots": ERROR_PANELS,
            DETAIL: DETAILS,
        },
    )
