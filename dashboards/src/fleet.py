"""The fleet: what needs attention now, on which node, and what that costs which jobs."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.labels import columns, legend
from dashboards.parts import FULL, HALF, THIRD, Query, board, lines, number, rows, select, share, total
from dashboards.workloads import CHOSEN, workloads

HOUR, DAY = 3600, 86400
WITH_OR_WITHOUT = 'job=~"$job|", instance=~"$instance|", cluster=~"$cluster"'
"""Alerts of a switch, a communicator or the whole fleet have no instance."""
FIRING = f'ALERTS{{{WITH_OR_WITHOUT}, alertstate="firing", severity=~"critical|warning"}}'
CRITICAL, WARNING = (f'{FIRING[:-1]}, severity="{it}"}}' for it in ("critical", "warning"))
FAULT = select("instance_fault:accel_node_fault_last_timestamp_seconds:max")
STATES = "instance_state:hw_status:sum"
UNHEALTHY = select("gpu_state:hw_status:unhealthy")
SUMMED, COUNTED = (f"instance_use:hw_gpu_utilization_ratio:{it}" for it in ("sum", "count"))
USE, GPUS = select(SUMMED), select(COUNTED)
HELD_USE, HELD = (select(it, 'use!="free"') for it in (SUMMED, COUNTED))
DOWN = select("port:rdma_link_state:lost")
STANDING, STALLED = (
    select(f"instance_workload:nccl_last_call_timestamp_seconds:{it}", CHOSEN) for it in ("standing", "stalled")
)
LOST = select("port:rdma_nack_ratio:max")
VERSIONS = (
    "max by (component, product, version) "
    '(component_product_version:hw_gpu_info:nodes{job=~"$job", instance=~"$instance|", cluster=~"$cluster"})'
)
MISSING = 'comm_hash_state:nccl_ras_ranks_missing:max{job=~"$job", instance=~"$instance|", cluster=~"$cluster"}'
WAITING = select("instance_job:nccl_last_call_timestamp_seconds:waiting", CHOSEN)
BEHIND = select("rank:nccl_rank_calls_behind:standing", CHOSEN)
LAG = select("rank:nccl_rank_arrival_lag_seconds:mean5m", CHOSEN)
SLOWED = select("gpu_reason:gpu_clock_slowed_seconds:rate5m")
IDLE = select("instance_gpu_job:gpu_process_memory_usage_bytes:idle", CHOSEN)
NODE = columns("instance")
WHO = columns("workload", "namespace", "pod", "slurm_job_id", "comm")
WHO_NAME = legend(*WHO)
BY = (*columns("workload", "workload_kind", "queue", "account"), *(it for it in WHO if it != "workload"))
USES = select("", '__name__=~"instance_workload:(gpu|nccl_collective|rdma).*"', CHOSEN)


def of_workloads(recorded: str) -> str:
    """Sum of a recorded series of workloads over the chosen nodes."""
    return total(select(f"instance_workload:{recorded}", CHOSEN), *BY)


def recent(seconds: int, *labels: str) -> str:
    """Seconds since the last fault by labels, of those within so many seconds."""
    return f"time() - max by ({', '.join(labels)}) ({FAULT}) < {seconds}"


def per_node(how: str, expr: str) -> str:
    return f"{how} by (instance) ({expr})"


def of_places(kinds: str, *labels: str) -> tuple[Query, ...]:
    """The columns of a table of places of these kinds, a pattern, by labels."""

    def of(name: str, how: str = "sum") -> str:
        where = f'job=~"$job", instance=~"$instance|", cluster=~"$cluster", kind=~"{kinds}"'
        return f"{how} by ({', '.join(labels)}) ({name}{{{where}}})"

    return (
        Query(of("place:up:count"), "Nodes"),
        Query(of("place:up:down"), "Exporters down", alarm=1),
        Query(of("place:accel_node_fault_last_timestamp_seconds:nodes1h"), "Nodes with new faults", alarm=1),
        Query(of("place:hw_status:ok"), "GPUs"),
        Query(share(of("place:hw_gpu_utilization_ratio:avg", "max")), "Use", "percentunit"),
        Query(of("place:hw_power_watts:sum"), "Power", "watt"),
        Query(of("place:hw_status:unhealthy"), "Unhealthy", alarm=1),
        Query(of("place:rdma_link_state:lost"), "RDMA links down"),
        Query(share(of("place:rdma_nack_ratio:max", "max")), "Loss", "percentunit", alarm=0.001),
    )


ATTENTION = [
    number(
        "Critical alerts",
        "Critical alerts that fire on the chosen nodes, or that have no instance.",
        "short",
        Query(f"count({CRITICAL}) or vector(0)"),
        alarm=1,
    ),
    number(
        "Warnings",
        "Warning alerts that fire on the chosen nodes, or that have no instance.",
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
        Query(f"count({UNHEALTHY}) or vector(0)"),
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
        WHO,
        Query(total(STALLED, *WHO), "Processes", alarm=1),
        Query(f"max by ({', '.join(WHO)}) ({STANDING})", "For", "s"),
        width=HALF,
    ),
    lines(
        "GPUs by health",
        "Healthy GPUs, unhealthy GPUs, and missing GPUs: those that a node had before or should have.",
        "short",
        Query(total(select(STATES, 'state="ok"')), "healthy"),
        Query(total(select(STATES, 'state!="ok"')), "unhealthy"),
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

WORKLOADS = [
    rows(
        "Workloads",
        "What each workload uses on all chosen nodes. Where the workload is not known, by pod, Slurm job and command. "
        "SMs is the sum over the workload's GPUs: 200 % is two GPUs' worth. Memory is what CUDA or HIP allocated.",
        "short",
        {**columns("workload", "workload_kind", "queue", "account"), **WHO},
        Query(f"count by ({', '.join(BY)}) (count by (instance, {', '.join(BY)}) ({USES}))", "Nodes"),
        Query(of_workloads("gpu_process_utilization_ratio:sum"), "SMs", "percentunit"),
        Query(of_workloads("gpu_cuda_memory_usage_bytes:sum"), "Memory", "bytes"),
        Query(of_workloads("gpu_hip_memory_usage_bytes:sum"), "Memory (HIP)", "bytes"),
        Query(of_workloads("nccl_collective_bus_bytes:rate5m"), "NCCL", "Bps"),
        Query(of_workloads("rdma_send_bytes:rate5m"), "RDMA", "Bps"),
    ),
    lines(
        "SM time by workload",
        "SM time of the ten workloads that use the most, in GPUs.",
        "short",
        Query(f"topk(10, {of_workloads('gpu_process_utilization_ratio:sum')})", WHO_NAME),
        stacked=True,
    ),
    lines(
        "Device memory by workload",
        "Device memory that the ten workloads with the most memory have allocated with CUDA, and with HIP.",
        "bytes",
        Query(f"topk(10, {of_workloads('gpu_cuda_memory_usage_bytes:sum')})", WHO_NAME),
        Query(f"topk(10, {of_workloads('gpu_hip_memory_usage_bytes:sum')})", f"{WHO_NAME} HIP"),
        stacked=True,
    ),
]

FAULTS = [
    rows(
        "Faults of the last day",
        "The newest fault of each kind on each node, with its row of the Llama 3 table of interruptions.",
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
        "State of each GPU, and the action that the driver requests: 1 GPU reset, 2 node reboot, 4 drain and reset.",
        "short",
        {**NODE, "gpu": "GPU", "state": "State"},
        Query(f"max by (instance, gpu, state) ({UNHEALTHY})", "In this state", hidden=True),
        Query(f"max by (instance, gpu) ({select('gpu:gpu_recovery_action:needed')})", "Action", alarm=1),
        width=HALF,
    ),
    rows(
        "Xids of the last day",
        "Xids that NVIDIA's driver reported, how long ago, and the recommended action.",
        "s",
        {**NODE, "gpu": "GPU", "xid": "Xid", "action": "Action"},
        Query(
            "bottomk(50, time() - max by (instance, gpu, xid, action) "
            f"({select('gpu_xid:gpu_xid_last_timestamp_seconds:max')}) < {DAY})",
            "Ago",
        ),
        width=HALF,
    ),
]

WASTE = [
    lines(
        "Utilisation of the fleet",
        "Share of time in which any kernel ran: mean over all GPUs, and over the GPUs that a process holds.",
        "percentunit",
        Query(share(f"{total(USE)} / {total(GPUS)}"), "all"),
        Query(
            share(f"{total(HELD_USE)} / {total(HELD)}"),
            "held by a process",
        ),
        width=HALF,
    ),
    lines(
        "GPUs by use",
        "GPUs with a process and busy, with a process and idle (busy less than 5 % of the time), and without a "
        "process.",
        "short",
        *(
            Query(f"{total(select(COUNTED, use))} or vector(0)", legend)
            for use, legend in (
                ('use="busy"', "busy"),
                ('use="idle"', "idle with a process"),
                ('use="free"', "without a process"),
            )
        ),
        width=HALF,
        stacked=True,
    ),
    rows(
        "Allocated but idle",
        "Processes with the most memory on GPUs that are busy less than 5 % of the time.",
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
        Query(f"topk(10, max by (instance, gpu, reason) ({share(SLOWED)}))", "GPU {{gpu}} {{reason}} {{instance}}"),
        width=HALF,
        alarm=0.05,
    ),
]

NETWORK = [
    lines(
        "Loss, worst ports",
        "Negative acknowledgements for missing packets over packets sent. A thousandth costs throughput.",
        "percentunit",
        Query(f"topk(10, max by (instance, device, port) ({share(LOST)}))", "{{device}} {{port}} {{instance}}"),
        width=THIRD,
        alarm=0.001,
    ),
    lines(
        "Stragglers",
        "Mean delay of a rank after the first rank of its node, for the three latest ranks of each node. All other "
        "ranks wait for them.",
        "s",
        Query(
            f"topk(10, max by (instance, workload, comm_hash, rank) ({LAG}))",
            "{{workload}} rank {{rank}} of {{comm_hash}} {{instance}}",
        ),
        width=THIRD,
        alarm=0.05,
    ),
    lines(
        "Ranks behind",
        "Collectives that another rank of the communicator on the node has called and this rank has not, for ranks "
        "that have called no collective for a minute.",
        "short",
        Query(
            f"topk(10, max by (instance, workload, comm_hash, rank) ({BEHIND}))",
            "{{workload}} rank {{rank}} of {{comm_hash}} {{instance}}",
        ),
        width=THIRD,
    ),
    rows(
        "Waiting in NCCL",
        "Jobs with a process inside a call, or with fewer calls than another rank, that has called no collective for a "
        "minute: the longest on each node.",
        "s",
        {**NODE, **WHO},
        Query(
            f"topk(20, time() - min by ({', '.join(('instance', *WHO))}) ({WAITING}))",
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
            f"topk(10, max by (comm_hash, state) ({MISSING}))",
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
            f"max by (instance, device, port) ({select('port:rdma_link_physical_state:lost')})",
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
        Query(per_node("sum", select(STATES)), "GPUs"),
        Query(share(f"{per_node('sum', USE)} / {per_node('sum', GPUS)}"), "Use", "percentunit"),
        Query(per_node("sum", select("instance:hw_gpu_memory_usage_bytes:sum")), "GPU memory", "bytes"),
        Query(per_node("sum", select("instance:hw_power_watts:sum")), "Power", "watt"),
        Query(per_node("max", select("instance:hw_temperature_celsius:max")), "Hottest", "celsius"),
        Query(per_node("sum", select(STATES, 'state!="ok"')), "Unhealthy", alarm=1),
        Query(per_node("max", share(LOST)), "Loss", "percentunit", alarm=0.001),
        Query(per_node("count", recent(DAY, "instance", "category", "signal", "component")), "Faults in a day"),
        Query(per_node("count", recent(30 * DAY, "instance", "category", "signal", "component")), "In 30 days"),
        width=FULL,
    ),
]

PLACES = [
    rows(
        "Clusters, zones and racks",
        "Sums by the labels cluster and rack of targets, and the zone and rack of accel_node_topology_info.",
        "short",
        {"cluster": "Cluster", "kind": "Kind", "place": "Place"},
        *of_places("cluster|zone|rack", "cluster", "kind", "place"),
        width=FULL,
    ),
    rows(
        "Leaf switches",
        "Sums over the nodes below each leaf, by accel_node_topology_info.",
        "short",
        {"cluster": "Cluster", "place": "Leaf"},
        *of_places("leaf", "cluster", "place"),
        width=FULL,
    ),
    rows(
        "NVLink domains",
        "Sums over the nodes of each NVLink domain, which is the cluster UUID and the clique of its GPUs.",
        "short",
        {"cluster": "Cluster", "place": "NVLink domain"},
        *of_places("nvlink_domain", "cluster", "place"),
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
        Query(per_node("sum", select("instance:accel_exporter_collector_success:failing")), "Collectors", alarm=1),
        Query(per_node("sum", select("instance:accel_exporter_probe_attached:missing")), "Functions", alarm=1),
        Query(per_node("sum", select("instance:accel_exporter_events_lost:rate5m")), "Events lost", "eps", alarm=0),
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
        [workloads(metric="instance_workload:job_process_info:count")],
        {
            "Attention": ATTENTION,
            "Workloads": WORKLOADS,
            "Faults": FAULTS,
            "Waste": WASTE,
            "Network and collectives": NETWORK,
            "Nodes": NODES,
            "Places": PLACES,
            "Exporters": EXPORTERS,
        },
    )
