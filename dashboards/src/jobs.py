"""Jobs: who uses the GPUs and the network of a cluster, how much, and who holds GPUs without using them.

A job is a workload with all of its pods. If the workload is not known, the job is a pod, a Slurm job, or both. Without
a pod and a Slurm job, it is the processes of one command on one node.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.builders.dashboard import TextBoxVariable
from grafana_foundation_sdk.models.dashboard import Dashboard, VariableOption

from dashboards.labels import OF_JOB, columns, legend
from dashboards.parts import (
    FULL,
    HALF,
    THIRD,
    Query,
    board,
    choice,
    heat,
    lines,
    number,
    rows,
    select,
    share,
    total,
)
from dashboards.workloads import CHOSEN, KNOWN, allocated_to, now_of, rate_of, rate_of_owners, workloads

WHO = OF_JOB
JOB = ("workload", "namespace", "pod", "slurm_job_id", "command")
NAME = legend("workload", "namespace", "pod", "slurm_job_id", "command")
COLUMNS = columns("workload", "namespace", "pod", "slurm_job_id", "command")
GPU = ("instance", "gpu", "gpu_uuid")
NAMED = columns("workload", "workload_kind", "queue", "account")
OWNER = ("workload", "namespace", "pod", "container", "slurm_job_id")
OWNER_NAME = legend("workload", "namespace", "pod", "container", "slurm_job_id")
OWNER_COLUMNS = columns("workload", "namespace", "pod", "container", "slurm_job_id")
GPU_COLUMNS = columns("instance", "gpu", "gpu_uuid")
CARD = ("instance", "card", "pci_bus_id")
CARD_NAME = f"{NAME} {legend('card', 'pci_bus_id', 'instance')}"
SAME_GPU = "on (job, cluster, instance, gpu_uuid)"


def job_of(expr: str) -> str:
    """The expression with a label `command`, and without `pod` where the workload is known, because it has many pods.

    The command is comm and instance of series without a workload, a pod and a Slurm job, else empty.
    """
    named = f'label_join({expr}, "command", " @ ", "comm", "instance")'
    named = f'label_replace({named}, "command", "(folded) @ $1", "command", " @ (.*)")'
    for label in ("workload", "pod", "slurm_job_id"):
        named = f'label_replace({named}, "command", "", "{label}", ".+")'
    return f'label_replace({named}, "pod", "", "workload", ".+")'


def jobs(expr: str, *labels: str) -> str:
    """Sum of an expression by job, and by labels."""
    return total(job_of(expr), *JOB, *labels)


def of_workloads(recorded: str) -> str:
    """Sum of what is recorded of jobs with a name, over the chosen nodes."""
    return total(select(f"instance_workload:{recorded}", 'namespace=~"$namespace"', KNOWN, CHOSEN), *NAMED)


def of_jobs(metric: str, *matchers: str) -> str:
    return now_of(metric, *WHO, *matchers)


def rising(metric: str, *matchers: str) -> str:
    return rate_of(metric, *WHO, *matchers)


def by_pod_label(expr: str) -> str:
    """Sum of an expression by the label of pods that the dashboard's variable names."""
    labelled = f"group by (cluster, namespace, pod, $pod_label) ({PODS})"
    summed = total(expr, "cluster", "namespace", "pod")
    return total(f"{summed} * on (cluster, namespace, pod) group_left ($pod_label) {labelled}", "$pod_label")


PODS = allocated_to(*WHO, 'pod!=""')
DRIVER, GENERAL = 'api_layer="driver"', 'task="general"'
HELD = of_jobs("gpu_process_memory_usage_bytes")
SM = of_jobs("gpu_process_utilization_ratio", 'engine="sm"')
GPUS = f"count by ({', '.join(JOB)}) ({jobs(HELD, 'gpu_uuid')})"
MEMORY = of_jobs("gpu_cuda_memory_usage_bytes", DRIVER, 'memory!="pinned_host"')
REST = of_jobs("gpu_cuda_memory_unattributed_bytes")
LAUNCHES = rising("gpu_cuda_kernel_launch_calls_total", DRIVER)
GRAPHS = rising("gpu_cuda_graph_launch_calls_total", DRIVER)
COPIES = rising("gpu_cuda_memory_copies_bytes_total")
WAITED = rising("gpu_cuda_sync_wait_seconds_sum", DRIVER)
WAITS = rising("gpu_cuda_sync_wait_seconds_bucket", DRIVER)
ERRORS = rising("gpu_cuda_api_errors_total", DRIVER)
NCCL_ERRORS = rising("nccl_errors_total")
BUS = rising("nccl_collective_bus_bytes_total")
IN_NCCL = rising("nccl_enqueue_seconds_sum")
RDMA = rising("rdma_send_bytes_total")
MOVED = rising("cufile_io_bytes_total")
SUBMITTED = rising("cufile_submitted_bytes_total")
REQUESTS = rising("cufile_requests_total")
REQUEST_TIMES = rising("cufile_request_duration_seconds_bucket")
CUFILE_ERRORS = rising("cufile_errors_total")
HIP_USED = of_jobs("gpu_hip_memory_usage_bytes")
HIP_ON_GPU = of_jobs("gpu_hip_memory_usage_bytes", 'memory!="pinned_host"')
HIP_LAUNCHES = rising("gpu_hip_kernel_launch_calls_total")
HIP_GRAPHS = rising("gpu_hip_graph_launch_calls_total")
HIP_COPIES = rising("gpu_hip_memory_copies_bytes_total")
HIP_WAITED = rising("gpu_hip_sync_wait_seconds_sum")
HIP_ERRORS = rising("gpu_hip_api_errors_total")
GIVEN = allocated_to(*WHO, 'gpu_uuid!=""')
READ = select("hw_gpu_memory_usage_bytes")
IDLE = f"({GIVEN} and {SAME_GPU} {READ}) unless {SAME_GPU} {select('gpu_process_memory_usage_bytes')}"
LIMIT = f"max by (job, cluster, {', '.join(GPU)}) ({select('hw_gpu_memory_limit_bytes')})"
BUSY = f"max by (job, cluster, {', '.join(GPU)}) ({select('hw_gpu_utilization_ratio', GENERAL)})"
LAUNCHED = f"{of_jobs('gpu_cuda_last_launch_timestamp_seconds')} or {of_jobs('gpu_hip_last_launch_timestamp_seconds')}"
SINCE = f"time() - max by ({', '.join(JOB)}) ({job_of(LAUNCHED)})"
NAMED_BY = select("job_process_info", *WHO, KNOWN, CHOSEN)


def of_job(title: str, description: str, unit: str, expr: str, *labels: str, width: int = THIRD) -> timeseries.Panel:
    """Return a panel of an expression by job and these labels."""
    name = " ".join((NAME, legend(*labels))) if labels else NAME
    return lines(title, description, unit, Query(jobs(expr, *labels), name), width=width)


OVERVIEW = [
    number("Jobs", "Jobs that have a process on a GPU now.", "short", Query(f"count({jobs(HELD)})")),
    number("GPUs in use", "GPUs with a process of these jobs.", "short", Query(f"count({total(HELD, 'gpu_uuid')})")),
    number(
        "GPUs idle",
        "GPUs allocated to a pod or a Slurm job, without a process.",
        "short",
        Query(f"count(count by (gpu_uuid) ({IDLE})) or vector(0)"),
        alarm=1,
    ),
    number("Device memory", "Device memory held by these jobs, as NVML reports it.", "bytes", Query(total(HELD))),
    number("Waiting", "Threads blocked in calls that wait for the GPU, on average.", "short", Query(total(WAITED))),
    number(
        "Errors",
        "Driver and NCCL calls that returned an error, per second.",
        "eps",
        Query(f"({total(ERRORS)} or vector(0)) + ({total(NCCL_ERRORS)} or vector(0))"),
        alarm=0.001,
    ),
    rows(
        "Jobs",
        "What each job uses now. SMs is the sum over its GPUs: 200 % is two GPUs' worth. Waiting counts every blocked "
        "thread, over wall time. NCCL is bus bytes, RDMA what was posted.",
        "short",
        COLUMNS,
        Query(GPUS, "GPUs"),
        Query(jobs(SM), "SMs", "percentunit"),
        Query(jobs(HELD), "Memory (NVML)", "bytes"),
        Query(jobs(MEMORY), "Allocated (CUDA)", "bytes"),
        Query(jobs(LAUNCHES), "Launches", "ops"),
        Query(jobs(COPIES), "Copies", "Bps"),
        Query(jobs(WAITED), "Waiting", "percentunit"),
        Query(jobs(BUS), "NCCL", "Bps"),
        Query(jobs(RDMA), "RDMA", "Bps"),
    ),
    rows(
        "Jobs by name",
        "Jobs by the name in their launcher's variables or of the pod's workload, and their usage on all nodes, from "
        "recording rules. SMs is the sum over their GPUs: 200 % is two GPUs' worth.",
        "short",
        NAMED,
        Query(f"count by ({', '.join(NAMED)}) ({NAMED_BY})", "Processes"),
        Query(f"count by ({', '.join(NAMED)}) (count by ({', '.join(NAMED)}, instance) ({NAMED_BY}))", "Nodes"),
        Query(of_workloads("gpu_process_utilization_ratio:sum"), "SMs", "percentunit"),
        Query(of_workloads("gpu_cuda_memory_usage_bytes:sum"), "Memory", "bytes"),
        Query(of_workloads("gpu_hip_memory_usage_bytes:sum"), "Memory (HIP)", "bytes"),
        Query(of_workloads("nccl_collective_bus_bytes:rate5m"), "NCCL", "Bps"),
        Query(of_workloads("rdma_send_bytes:rate5m"), "RDMA", "Bps"),
    ),
]

SHARES = [
    lines(
        "GPUs' worth of SM time",
        "Share of time in which an SM worked for a job, summed over its GPUs: 1 is one GPU all the time. By NVML's "
        "samples of processes; not on MIG.",
        "short",
        Query(jobs(SM), NAME),
        stacked=True,
    ),
    lines(
        "Use of the GPUs a job is on",
        "SM time over the number of GPUs on which the job has processes. Low where the job holds more GPUs than it "
        "keeps busy.",
        "percentunit",
        Query(share(f"{jobs(SM)} / {GPUS}"), NAME),
    ),
    rows(
        "Shares of each GPU",
        "Who is on which GPU, with how much of its SM time and of its memory.",
        "percentunit",
        {**COLUMNS, **GPU_COLUMNS},
        Query(share(jobs(SM, *GPU)), "SMs"),
        Query(
            share(total(f"{jobs(HELD, 'job', 'cluster', *GPU)} / {SAME_GPU} group_left () {LIMIT}", *JOB, *GPU)),
            "Memory",
        ),
    ),
]

MEMORY_PANELS = [
    lines(
        "Device memory by job",
        "Device memory of processes as NVML reports it, including contexts and modules.",
        "bytes",
        Query(jobs(HELD), NAME),
        width=THIRD,
        stacked=True,
    ),
    lines(
        "Allocated by job",
        "Bytes allocated through the driver and not freed, as the probes saw it; allocations older than the probes "
        "are missing.",
        "bytes",
        Query(jobs(MEMORY), NAME),
        width=THIRD,
        stacked=True,
    ),
    lines(
        "Unattributed bytes",
        "Memory that NVML reports beyond the allocations seen: contexts, modules and memory of libraries. Only for "
        "processes seen from their start.",
        "bytes",
        Query(jobs(REST), NAME),
        width=THIRD,
    ),
]

WORK = [
    lines("Kernel launches", "Launch calls by job, without graph replays.", "ops", Query(jobs(LAUNCHES), NAME)),
    lines("Graph launches", "Graph launches by job; one may hold many kernels.", "ops", Query(jobs(GRAPHS), NAME)),
    lines("Copies by job", "Bytes of copy calls, all directions.", "Bps", Query(jobs(COPIES), NAME), width=THIRD),
    lines(
        "Copies by kind",
        "h2d: host to device; d2h: device to host; d2d: on or between devices; by kind of host memory. Pageable "
        "memory is staged and blocks the caller.",
        "Bps",
        Query(total(COPIES, "direction", "host_memory"), "{{direction}} {{host_memory}}"),
        width=THIRD,
        stacked=True,
    ),
    lines(
        "Time since the last launch",
        "Time since any process of the job launched a kernel or a graph with CUDA or HIP. A rising line is a job that "
        "gives its GPUs no work.",
        "s",
        Query(SINCE, NAME),
        width=THIRD,
    ),
]

WAIT_PANELS = [
    lines(
        "Waiting by job",
        "Time threads were blocked in synchronising driver calls, over wall time; many threads exceed 100 %. Waste "
        "only where the GPU idles meanwhile.",
        "percentunit",
        Query(jobs(WAITED), NAME),
        width=THIRD,
    ),
    lines(
        "99th percentile of a wait",
        "By job. Absent where return probes are not safe for its processes.",
        "s",
        Query(f"histogram_quantile(0.99, {jobs(WAITS, 'le')})", NAME),
        width=THIRD,
    ),
    heat(
        "Waits",
        "Distribution of waits; the dots are single waits, and lead to their traces.",
        "s",
        Query(total(WAITS, "le"), "{{le}}"),
        width=THIRD,
    ),
]

NETWORK = [
    of_job(
        "NCCL bus bytes",
        "Bytes that the links of a job's ranks have to carry, as nccl-tests defines bus bandwidth.",
        "Bps",
        BUS,
    ),
    lines(
        "Time in NCCL calls",
        "Host time in NCCL's calls over wall time; several threads can exceed 100 %. Enqueueing, not the transfers: a "
        "high share is a job that is held up by the host, or waits in blocking groups.",
        "percentunit",
        Query(jobs(IN_NCCL), NAME),
        width=THIRD,
    ),
    of_job(
        "RDMA bytes",
        "Bytes of work requests posted with ibv_post_send. What GPUs or UCX's rc_mlx5 post is not seen.",
        "Bps",
        RDMA,
    ),
]

STORAGE = [
    of_job(
        "GPUDirect bytes", "Bytes that jobs read and wrote with cuFileRead and cuFileWrite.", "Bps", MOVED, "operation"
    ),
    of_job(
        "GPUDirect bytes submitted",
        "Bytes requested by asynchronous calls and batches of cuFile; the number of bytes transferred is not known.",
        "Bps",
        SUBMITTED,
        "operation",
    ),
    lines(
        "GPUDirect bytes by file system",
        "Bytes that jobs read and wrote with cuFile, by the type of the file system.",
        "Bps",
        Query(total(MOVED, "filesystem", "operation"), "{{filesystem}} {{operation}}"),
        width=THIRD,
        stacked=True,
    ),
    lines(
        "GPUDirect requests",
        "Reads and writes by file system, entries of batches each by itself.",
        "reqps",
        Query(total(REQUESTS, "filesystem", "operation"), "{{filesystem}} {{operation}}"),
        width=THIRD,
    ),
    lines(
        "99th percentile of a GPUDirect request",
        "Time in cuFileRead and cuFileWrite, by file system. Absent where return probes are not safe.",
        "s",
        Query(
            f"histogram_quantile(0.99, {total(REQUEST_TIMES, 'filesystem', 'operation', 'le')})",
            "{{filesystem}} {{operation}}",
        ),
        width=THIRD,
    ),
    of_job(
        "GPUDirect errors",
        "cuFile calls that failed, by function and error.",
        "eps",
        CUFILE_ERRORS,
        "api",
        "error",
        "code",
    ),
]

HIP = [
    of_job(
        "HIP memory",
        "Bytes in use by kind of memory. Of a process of which some calls on memory were not seen they are absent.",
        "bytes",
        HIP_USED,
        "memory",
    ),
    lines(
        "HIP memory by GPU",
        "GPU memory in use by the jobs on each GPU, without pinned host memory. The GPU has no name where it is not "
        "known.",
        "bytes",
        Query(jobs(HIP_ON_GPU, *CARD), CARD_NAME),
        width=THIRD,
        stacked=True,
    ),
    lines(
        "HIP launches",
        "Kernels and graphs launched by each job; kernels of graphs are not counted.",
        "cps",
        Query(jobs(HIP_LAUNCHES), f"{NAME} kernels"),
        Query(jobs(HIP_GRAPHS), f"{NAME} graphs"),
        width=THIRD,
    ),
    of_job(
        "HIP copies",
        "Bytes of copies that HIP accepted, by direction; unknown is hipMemcpyDefault.",
        "Bps",
        HIP_COPIES,
        "direction",
    ),
    of_job(
        "HIP waits",
        "Threads blocked in HIP calls that wait for the GPU, on average. Absent where return probes are not safe.",
        "short",
        HIP_WAITED,
    ),
    of_job(
        "HIP errors",
        "HIP calls that returned an error, by function, error and GPU; those of launches are not seen.",
        "eps",
        HIP_ERRORS,
        "api",
        "error",
        "code",
        "pci_bus_id",
        "instance",
    ),
]

TROUBLE = [
    of_job("CUDA errors", "Driver calls that returned an error.", "eps", ERRORS, "error", "code"),
    of_job("NCCL errors", "NCCL calls that returned an error.", "eps", NCCL_ERRORS, "error", "code"),
    lines(
        "Processes ended",
        "GPU processes that ended, by exit status or the signal that killed them; 0 is success.",
        "cps",
        Query(jobs(rate_of_owners("gpu_process_exits_total", *WHO), "status"), f"{NAME} {{{{status}}}}"),
        width=THIRD,
    ),
]

ALLOCATIONS = [
    rows(
        "Idle allocations",
        "GPUs that the kubelet allocated to a container, or a prolog to a Slurm job, with no process on them.",
        "bool_yes_no",
        {**GPU_COLUMNS, "mig_uuid": "MIG UUID", **OWNER_COLUMNS},
        Query(f"max by ({', '.join((*GPU, 'mig_uuid', *OWNER))}) ({IDLE})", "Idle", hidden=True),
        width=FULL,
    ),
    lines(
        "Use of allocated GPUs",
        "Share of time in which any kernel ran, mean of the allocated GPUs. A GPU that several share counts for each.",
        "percentunit",
        Query(f"avg by ({', '.join(OWNER)}) ({GIVEN} * {SAME_GPU} group_left () {BUSY})", OWNER_NAME),
        width=HALF,
    ),
    lines(
        "GPUs allocated",
        "GPUs, MIG devices or slices allocated to each container and Slurm job.",
        "short",
        Query(f"count by ({', '.join(OWNER)}) ({GIVEN})", OWNER_NAME),
        width=HALF,
        stacked=True,
    ),
]

LABEL_NAME = "{{$pod_label}}"
BY_LABEL = [
    lines(
        "GPUs by pod label",
        "GPUs, MIG devices or slices allocated to pods, by the label named above, as app, team or owner. Needs "
        "--kubernetes.pod-labels.",
        "short",
        Query(total(PODS, "$pod_label"), LABEL_NAME),
        width=THIRD,
        stacked=True,
    ),
    lines(
        "SM time by pod label",
        "SM time of the pods with each value of the label, in GPUs.",
        "short",
        Query(by_pod_label(SM), LABEL_NAME),
        width=THIRD,
        stacked=True,
    ),
    lines(
        "Device memory by pod label",
        "Device memory of the pods with each value of the label, as NVML reports it.",
        "bytes",
        Query(by_pod_label(HELD), LABEL_NAME),
        width=THIRD,
        stacked=True,
    ),
]


def dashboard() -> Dashboard:
    seen = "gpu_process_memory_usage_bytes|gpu_cuda_api_calls_total|nccl_communicator_info|rdma_queue_pairs"
    anyone = select("", f'__name__=~"{seen}|gpu_allocation_info"')
    label = TextBoxVariable("pod_label").label("Pod label").default_value("label_app")
    return board(
        "accel-exporter-jobs",
        "Jobs",
        "Which workload, pod, Slurm job or command uses which GPUs and how much of the network? Which GPUs are idle?",
        [
            choice("namespace", "Namespace", f"label_values({anyone}, namespace)", every=".*"),
            workloads('__name__=~"job_process_info|gpu_allocation_info"', 'namespace=~"$namespace"', metric=""),
            choice("pod", "Pod", f"label_values({anyone}, pod)", every=".*"),
            choice("slurm_job_id", "Slurm job", f"label_values({anyone}, slurm_job_id)", every=".*"),
            label.current(VariableOption(selected=True, text="label_app", value="label_app")),
        ],
        {
            "Usage": OVERVIEW,
            "Shares of the GPUs": SHARES,
            "Memory": MEMORY_PANELS,
            "Work": WORK,
            "Waits": WAIT_PANELS,
            "Network": NETWORK,
            "GPUDirect Storage": STORAGE,
            "AMD's HIP": HIP,
            "Errors and ends": TROUBLE,
            "Allocations": ALLOCATIONS,
            "By label of the pod": BY_LABEL,
        },
    )
