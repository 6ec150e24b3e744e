"""The fleet: what needs attention now, on which node, and what that costs which jobs."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.parts import FULL, HALF, THIRD, Query, board, lines, number, rate, rows, select, total

HOUR, DAY = 3600, 86400
SLOWING = 'reason=~"(hw_|sw_)?thermal|hw_power_brake"'
WITH_OR_WITHOUT = 'job=~"$job|", instance=~"$instance|", cluster=~"$cluster"'
"""Alerts of a switch, a communicator or the whole fleet have no instance."""
FIRING = f'ALERTS{{{WITH_OR_WITHOUT}, alertstate="firing", severity=~"critical|warning"}}'
CRITICAL, WARNING = (f'{FIRING[:-1]}, severity="{it}"}}' for it in ("critical", "warning"))
FAULT = select("node_fault_last_timestamp_seconds")
NOT_OK = select("hw_status", 'state!="ok"')
BUSY = select("hw_gpu_utilization_ratio", 'task="general"')
HELD = select("gpu_process_memory_usage_bytes")
SAME_GPU = "on (job, instance, gpu_uuid)"
IDLE = f"{HELD} and {SAME_GPU} {BUSY} < 0.05"
DOWN = f"{select('rdma_link_state')} < 4 and {select('port:rdma_link_state:best')} >= 4"
STANDING = select("workload_pid:nccl_last_call_timestamp_seconds:standing")
LOST = select("rdma_nack_ratio", 'kind!="rnr"')
VERSIONS = (
    "max by (component, product, version) "
    '(component_product_version:hw_gpu_info:nodes{job=~"$job", instance=~"$instance|", cluster=~"$cluster"})'
)
LAG = "nccl_rank_arrival_lag_seconds"
RANK = ("instance", "comm_hash", "rank")
PROCESS = ("instance", "namespace", "pod", "slurm_job_id", "comm", "pid")
IN_NCCL = f"({select('nccl_calls_in_flight')} or {select('nccl_rank_calls_behind')})"
MISSING = select("nccl_ras_ranks_missing", 'state!="absent"')
SLOWED = f"clamp_max({rate('gpu_clock_slowed_seconds_total', SLOWING)}, 1)"
BEHIND = (
    f"{select('nccl_rank_calls_behind')} > 0 and on (job, instance, pid) "
    f"time() - {select('nccl_last_call_timestamp_seconds')} > 60"
)
FAILING = (
    f"{select('accel_exporter_collector_success')} == 0 "
    f"unless on (job, instance, collector) {select('accel_exporter_collector_available')} == 0"
)
NODE = {"instance": "Instance"}
PLACE = ("cluster", "rack")
WHO = {"namespace": "Namespace", "pod": "Pod", "slurm_job_id": "Slurm job", "comm": "Command"}


def recent(seconds: int, *labels: str) -> str:
    """Seconds since the last fault by labels, of those within so many seconds."""
    return f"time() - max by ({', '.join(labels)}) ({FAULT}) < {seconds}"


def per_node(how: str, expr: str) -> str:
    return f"{how} by (instance) ({expr})"


def per_place(how: str, expr: str) -> str:
    return f"{how} by ({', '.join(PLACE)}) ({expr})"


ATTENTION = [
    number(
        "Critical alerts",
        "Alerts of severity critical that fire for these nodes, or for no single one.",
        "short",
        Query(f"count({CRITICAL}) or vector(0)"),
        alarm=1,
    ),
    number(
        "Warnings",
        "Alerts of severity warning that fire for these nodes, or for no single one.",
        "short",
        Query(f"count({WARNING}) or vector(0)"),
        alarm=1,
    ),
    number(
        "Nodes with new faults",
        "Nodes on which a fault was seen within the last hour.",
        "short",
        Query(f"count({recent(HOUR, 'instance')}) or vector(0)"),
        alarm=1,
    ),
    number(
        "Unhealthy GPUs",
        "GPUs that are lost, failed, stalled, or need a recovery.",
        "short",
        Query(total(NOT_OK)),
        alarm=1,
    ),
    number(
        "RDMA links down",
        "Ports that were active before and are not now; one without a cable is none of them.",
        "short",
        Query(f"count({DOWN}) or vector(0)"),
        alarm=1,
    ),
    number(
        "Exporters down",
        "Exporters that did not answer the last scrape: the state of their nodes is unknown.",
        "short",
        Query(f"count({select('up')} == 0) or vector(0)"),
        alarm=1,
    ),
    rows(
        "Stalled workloads",
        "Processes that have called no collective and launched nothing for five minutes, inside a call or with a busy "
        "GPU: their GPUs are lost to the jobs.",
        "short",
        {"namespace": "Namespace", "slurm_job_id": "Slurm job", "workload": "Workload"},
        Query(f"count by (namespace, slurm_job_id, workload) ({STANDING} > 300)", "Processes", alarm=1),
        Query(f"max by (namespace, slurm_job_id, workload) ({STANDING} > 300)", "For", "s"),
        width=HALF,
    ),
    lines(
        "GPUs by health",
        "GPUs that answer and need nothing, the others, and those that a node had before or should have.",
        "short",
        Query(total(select("hw_status", 'state="ok"')), "healthy"),
        Query(total(NOT_OK), "unhealthy"),
        Query(
            f"sum({select('instance:hw_status:most')} - {select('instance:hw_status:working')}) or vector(0)", "missing"
        ),
        width=HALF,
        stacked=True,
    ),
    rows(
        "Firing alerts",
        "Pages and tickets, critical ones first, with the number of alerts at the same place. Those without an "
        "instance belong to a workload, a communicator, a switch or the fleet.",
        "short",
        {
            "severity": "Severity",
            "alertname": "Alert",
            "instance": "Instance",
            "workload": "Workload",
            "comm_hash": "Communicator",
            "switch": "Switch",
        },
        Query(f"count by (severity, alertname, instance, workload, comm_hash, switch) ({FIRING})", "Alerts"),
        first="Severity",
    ),
]

FAULTS = [
    rows(
        "Faults of the last day",
        "The newest of each kind on each node, by its row of the Llama 3 table of interruptions.",
        "s",
        {"instance": "Instance", "category": "Category", "signal": "Signal", "component": "Component"},
        Query(f"bottomk(50, {recent(DAY, 'instance', 'category', 'signal', 'component')})", "Ago"),
        width=HALF,
    ),
    lines(
        "Nodes with faults, by category",
        "Nodes on which the category was seen within the hour before.",
        "short",
        Query(f"count by (category) ({recent(HOUR, 'instance', 'category')})", "{{category}}"),
        width=HALF,
        stacked=True,
    ),
    rows(
        "Unhealthy GPUs",
        "What state each is in, and what the driver requests: 1 GPU reset, 2 node reboot, 4 drain and reset.",
        "short",
        {**NODE, "gpu": "GPU", "state": "State"},
        Query(f"max by (instance, gpu, state) ({NOT_OK}) == 1", "In this state", hidden=True),
        Query(f"max by (instance, gpu) ({select('gpu_recovery_action')}) > 0", "Action", alarm=1),
        width=HALF,
    ),
    rows(
        "Xids of the last day",
        "Xids that NVIDIA's driver reported, how long ago, and the recommended action.",
        "s",
        {**NODE, "gpu": "GPU", "xid": "Xid", "action": "Action"},
        Query(
            "bottomk(50, time() - max by (instance, gpu, xid, action) "
            f"({select('gpu_xid_last_timestamp_seconds')}) < {DAY})",
            "Ago",
        ),
        width=HALF,
    ),
]

WASTE = [
    lines(
        "Utilisation of the fleet",
        "Share of time in which a kernel ran, however small: mean of all GPUs, and of those that a process holds.",
        "percentunit",
        Query(f"avg({BUSY})", "all"),
        Query(
            f"avg({BUSY} and {SAME_GPU} {HELD})",
            "held by a process",
        ),
        width=HALF,
    ),
    lines(
        "GPUs by use",
        "With a process and busy, with a process and idle (less than 5 % of the time), and without a process.",
        "short",
        Query(f"count({BUSY} >= 0.05 and {SAME_GPU} {HELD}) or vector(0)", "busy"),
        Query(f"count({BUSY} < 0.05 and {SAME_GPU} {HELD}) or vector(0)", "idle with a process"),
        Query(f"count({BUSY} unless {SAME_GPU} {HELD}) or vector(0)", "without a process"),
        width=HALF,
        stacked=True,
    ),
    rows(
        "Allocated but idle",
        "Processes that hold the most memory of a GPU which is used less than 5 % of the time now.",
        "bytes",
        {**NODE, "gpu": "GPU", **WHO},
        Query(
            f"topk(20, {total(IDLE, 'instance', 'gpu', *WHO)})",
            "Memory",
        ),
        width=HALF,
    ),
    lines(
        "Slowed down, worst GPUs",
        "Share of time in which heat or the power brake held clocks down. A job of many GPUs runs at the pace of the "
        "slowest.",
        "percentunit",
        Query(f"topk(10, max by (instance, gpu, reason) ({SLOWED}) > 0)", "GPU {{gpu}} {{reason}} {{instance}}"),
        width=HALF,
        alarm=0.05,
    ),
]

NETWORK = [
    lines(
        "Loss, worst ports",
        "Negative acknowledgements for missing packets over packets sent. A thousandth costs throughput.",
        "percentunit",
        Query(f"topk(10, max by (instance, device, port) ({LOST}))", "{{device}} {{port}} {{instance}}"),
        width=THIRD,
        alarm=0.001,
    ),
    lines(
        "Stragglers",
        "How much later than the first rank of its node a rank calls on average; all others wait for it.",
        "s",
        Query(
            f"topk(10, {total(rate(f'{LAG}_sum'), *RANK)} / ({total(rate(f'{LAG}_count'), *RANK)} > 0))",
            "rank {{rank}} of {{comm_hash}} {{instance}}",
        ),
        width=THIRD,
        alarm=0.05,
    ),
    lines(
        "Ranks behind",
        "Collectives that another rank of the communicator on the node has called and this one has not, of ranks that "
        "have called none for a minute.",
        "short",
        Query(
            f"topk(10, max by (instance, comm_hash, rank) ({BEHIND}))",
            "rank {{rank}} of {{comm_hash}} {{instance}}",
        ),
        width=THIRD,
    ),
    rows(
        "Waiting in NCCL",
        "Processes inside a call, or with fewer calls than another rank, that have called no collective for a minute.",
        "s",
        {**NODE, **WHO, "pid": "PID"},
        Query(
            f"topk(20, time() - max by ({', '.join(PROCESS)}) ({select('nccl_last_call_timestamp_seconds')}) > 60 "
            f"and max by ({', '.join(PROCESS)}) ({IN_NCCL}) > 0)",
            "Last call",
            alarm=300,
        ),
        width=HALF,
    ),
    lines(
        "Ranks missing",
        "Ranks that NCCL's own RAS cannot reach, by communicator.",
        "short",
        Query(
            f"topk(10, max by (comm_hash, state) ({MISSING}) > 0)",
            "{{state}} of {{comm_hash}}",
        ),
        width=HALF,
        alarm=1,
    ),
    rows(
        "RDMA links down",
        "State as InfiniBand numbers it: 1 down, 2 init, 3 armed; and the physical one: 2 polling, 3 disabled.",
        "short",
        {**NODE, "device": "Device", "port": "Port"},
        Query(f"max by (instance, device, port) ({DOWN})", "State"),
        Query(
            f"max by (instance, device, port) ({select('rdma_link_physical_state')} "
            f"and on (job, instance, device, port) {DOWN})",
            "Physical",
        ),
        width=HALF,
    ),
    lines(
        "Ports with packet loss, by node",
        "Ports that were sent negative acknowledgements for missing packets within the last minute.",
        "short",
        Query(f"topk(10, count by (instance) ({LOST} > 0))", "{{instance}}"),
        width=HALF,
    ),
]

NODES = [
    rows(
        "Nodes",
        "One line for each node; its name leads to its own dashboard.",
        "short",
        NODE,
        Query(per_node("count", select("hw_status", 'state="ok"')), "GPUs"),
        Query(per_node("avg", BUSY), "Use", "percentunit"),
        Query(per_node("sum", select("hw_gpu_memory_usage_bytes")), "GPU memory", "bytes"),
        Query(per_node("sum", select("hw_power_watts")), "Power", "watt"),
        Query(per_node("max", select("hw_temperature_celsius", 'sensor="gpu"')), "Hottest", "celsius"),
        Query(per_node("sum", NOT_OK), "Unhealthy", alarm=1),
        Query(per_node("max", LOST), "Loss", "percentunit", alarm=0.001),
        Query(per_node("count", recent(DAY, "instance", "category", "signal", "component")), "Faults in a day"),
        Query(per_node("count", recent(30 * DAY, "instance", "category", "signal", "component")), "In 30 days"),
        width=FULL,
    ),
    rows(
        "Clusters and racks",
        "Sums by the labels cluster and rack that Prometheus adds to its targets; one line where it adds none.",
        "short",
        {"cluster": "Cluster", "rack": "Rack"},
        Query(per_place("count", select("up")), "Nodes"),
        Query(per_place("count", f"{select('up')} == 0"), "Exporters down", alarm=1),
        Query(
            per_place("count", f"time() - max by (job, instance, {', '.join(PLACE)}) ({FAULT}) < {HOUR}"),
            "Nodes with new faults",
            alarm=1,
        ),
        Query(per_place("count", select("hw_status", 'state="ok"')), "GPUs"),
        Query(per_place("avg", BUSY), "Use", "percentunit"),
        Query(per_place("sum", NOT_OK), "Unhealthy", alarm=1),
        Query(per_place("count", DOWN), "RDMA links down"),
        Query(per_place("max", LOST), "Loss", "percentunit", alarm=0.001),
        width=FULL,
    ),
]

EXPORTERS = [
    rows(
        "Exporters down",
        "No answer to the last scrape: the state of these nodes is unknown.",
        "short",
        NODE,
        Query(f"min by (instance) ({select('up')}) == 0", "Up", hidden=True),
        width=THIRD,
    ),
    rows(
        "Degraded exporters",
        "Collectors that fail, functions that could not be probed, and what was lost of events per second.",
        "short",
        NODE,
        Query(per_node("count", FAILING), "Collectors", alarm=1),
        Query(per_node("count", f"{select('accel_exporter_probe_attached')} == 0"), "Functions", alarm=1),
        Query(f"{per_node('sum', rate('accel_exporter_events_lost_total'))} > 0", "Events lost", "eps", alarm=0),
        width=THIRD,
    ),
    rows(
        "Versions in use",
        "Nodes by version of driver, VBIOS, firmware of NICs, and exporter. More than one of a product is an upgrade "
        "that is under way, or was not finished.",
        "short",
        {"component": "Component", "product": "Product", "version": "Version"},
        Query(VERSIONS, "Nodes"),
        width=THIRD,
    ),
]


def dashboard() -> Dashboard:
    return board(
        "accel-exporter-fleet",
        "Fleet",
        "What needs attention now, and on which node? Alerts, faults, idle GPUs, lossy links, ranks that are late.",
        [],
        {
            "Attention": ATTENTION,
            "Faults": FAULTS,
            "Waste": WASTE,
            "Network and collectives": NETWORK,
            "Nodes": NODES,
            "Exporters": EXPORTERS,
        },
    )
