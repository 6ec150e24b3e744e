"""Joins of several metrics in panels, evaluated by Prometheus itself on a small cluster made up here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build import HERE
from dashboards.queries import flat

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not installed"
)

TRAIN, OTHER = 'namespace="ml",pod="train-0"', 'namespace="ml",pod="sleeper"'
SLURM, BASH = 'comm="x",pid="3",slurm_job_id="7"', 'comm="bash",pid="4"'
JOBS = {
    f'gpu_process_memory_usage_bytes{{instance="n1",gpu="0",gpu_uuid="A",{TRAIN},comm="python",pid="1"}}': "40x9",
    f'gpu_process_memory_usage_bytes{{instance="n1",gpu="1",gpu_uuid="B",{TRAIN},comm="loader",pid="2"}}': "20x9",
    f'gpu_process_memory_usage_bytes{{instance="n2",gpu="0",gpu_uuid="C",{SLURM}}}': "10x9",
    f'gpu_process_memory_usage_bytes{{instance="n2",gpu="0",gpu_uuid="C",{BASH}}}': "5x9",
    'gpu_process_memory_usage_bytes{instance="n2",gpu="0",gpu_uuid="C",overflow="true"}': "1x9",
    f'gpu_process_utilization_ratio{{instance="n1",gpu="0",gpu_uuid="A",{TRAIN},comm="python",pid="1",engine="sm"}}': (
        "0.5x9"
    ),
    **{
        f'hw_gpu_memory_{what}_bytes{{instance="{instance}",gpu="{gpu}",gpu_uuid="{uuid}"}}': "80x9"
        for instance, gpu, uuid in (("n1", 0, "A"), ("n1", 1, "B"), ("n2", 0, "C"), ("n2", 1, "D"))
        for what in ("usage", "limit")
    },
    'hw_gpu_utilization_ratio{instance="n1",gpu="0",gpu_uuid="A",task="general"}': "0.9x9",
    'hw_gpu_utilization_ratio{instance="n2",gpu="1",gpu_uuid="D",task="general"}': "0x9",
    f'gpu_allocation_info{{instance="n1",gpu="0",gpu_uuid="A",{TRAIN},container="c",label_app="llm"}}': "1x9",
    f'gpu_allocation_info{{instance="n2",gpu="1",gpu_uuid="D",{OTHER},container="c"}}': "1x9",
    f'gpu_allocation_info{{instance="n3",gpu="0",gpu_uuid="E",{OTHER},container="c"}}': "1x9",
    f'rdma_send_bytes_total{{instance="n1",device="m0",qp="5",peer_gid="g2",{TRAIN},comm="python",pid="1"}}': "0+60x9",
}
"""GPUs A to D as NVML knows them; n3 has no series of NVML, so E is not known to be idle."""

PID = 'instance="n1",comm="python",pid="1",device="m0"'
FAULT = "accel_node_fault_last_timestamp_seconds"
PORT = 'instance="n1",device="m0",port="1"'
RDMA = {
    f'rdma_queue_pairs{{{PID},type="RC",state="RTS",mtu="4096"}}': "2x9",
    f'rdma_queue_pairs{{{PID},type="RC",state="ERR",mtu="4096"}}': "1x9",
    f'rdma_gid_info{{{PORT},gid="g1"}}': "1x9",
    f'rdma_send_bytes_total{{{PID},qp="5",peer_gid="g2",opcode="SEND"}}': "0+60x9",
    f'rdma_send_bytes_total{{{PID},qp="5",peer_gid="g2",opcode="RDMA_WRITE"}}': "0+120x9",
    f'rdma_send_bytes_total{{{PID},qp="6",peer_gid="g2",opcode="SEND"}}': "0+60x9",
    f'rdma_send_bytes_total{{{PID},qp="4",peer_lid="9",opcode="SEND"}}': "0+600x9",
    f'rdma_work_request_latency_seconds_sum{{{PID},opcode="SEND"}}': "0+6x9",
    f'rdma_work_request_latency_seconds_count{{{PID},opcode="SEND"}}': "0+60x9",
    f'rdma_port_io_bytes_total{{{PORT},direction="transmit"}}': "0+6000x9",
    f'rdma_link_errors_total{{{PORT},error="symbol"}}': "0+60x9",
    f"rdma_link_speed_bytes_per_second{{{PORT}}}": "400x9",
}
"""Queue pair 4 is on a path without GIDs."""
RDMA_OF_NODE = {series: values for series, values in RDMA.items() if "rdma_send_bytes" not in series} | {
    f'rdma_send_bytes_total{{{PID},peer_gid="g2"}}': "0+240x9",
    f'rdma_send_bytes_total{{{PID},peer_lid="9"}}': "0+600x9",
}
"""The same in profile node."""

NCCL = 'instance="n1",comm="python",slurm_job_id="7"'
SUCCESS, AVAILABLE = "accel_exporter_collector_success", "accel_exporter_collector_available"
FLEET = {
    'up{instance="n1",rack="r1"}': "1x9",
    'up{instance="n2",rack="r1"}': "1x9",
    'up{instance="n3",rack="r2"}': "0x9",
    'accel_node_topology_info{instance="n1",rack="r1",leaf="l1",zone="z"}': "1x9",
    'accel_node_topology_info{instance="n2",rack="r1",leaf="l1"}': "1x9",
    'accel_node_topology_info{instance="n3",nvlink_domain="u.1"}': "1x4 stale",
    f'{FAULT}{{instance="n1",rack="r1",category="gpu",signal="xid",component="0"}}': "500x9",
    f'{FAULT}{{instance="n1",rack="r1",category="nic",signal="down",component="m0"}}': "500x9",
    f'{FAULT}{{instance="n2",rack="r1",category="gpu",signal="xid",component="0"}}': "-4000x9",
    'hw_status{instance="n1",gpu="0",gpu_uuid="A",state="ok"}': "0x9",
    'hw_status{instance="n1",gpu="0",gpu_uuid="A",state="lost"}': "1x9",
    'hw_status{instance="n2",gpu="0",gpu_uuid="C",state="ok"}': "1x9",
    'hw_status{instance="n2",gpu="0",gpu_uuid="C",state="lost"}': "0x9",
    'hw_gpu_utilization_ratio{instance="n1",gpu="1",gpu_uuid="B",task="general"}': "0.9x9",
    'hw_gpu_utilization_ratio{instance="n2",gpu="0",gpu_uuid="C",task="general"}': "0.01x9",
    'hw_gpu_utilization_ratio{instance="n2",gpu="1",gpu_uuid="D",task="general"}': "0x9",
    f'gpu_process_memory_usage_bytes{{instance="n1",gpu="1",gpu_uuid="B",{TRAIN},pid="1"}}': "40x9",
    f'gpu_process_memory_usage_bytes{{instance="n2",gpu="0",gpu_uuid="C",{OTHER},pid="1"}}': "20x9",
    f'gpu_process_memory_usage_bytes{{instance="n2",gpu="0",gpu_uuid="C",{OTHER},pid="2"}}': "10x9",
    'gpu_clock_slowed_seconds_total{instance="n1",gpu="1",reason="hw_thermal"}': "0+6x9",
    'gpu_clock_slowed_seconds_total{instance="n1",gpu="1",reason="sw_power"}': "0+60x9",
    'gpu_clock_slowed_seconds_total{instance="n2",gpu="0",reason="hw_thermal"}': "0x9",
    f'nccl_last_call_timestamp_seconds{{{NCCL},pid="1"}}': "100x9",
    f'nccl_calls_in_flight{{{NCCL},pid="1"}}': "1x9",
    f'nccl_last_call_timestamp_seconds{{{NCCL},pid="2"}}': "100x9",
    f'nccl_calls_in_flight{{{NCCL},pid="2"}}': "0x9",
    f'nccl_last_call_timestamp_seconds{{{NCCL},pid="3"}}': "120x9",
    f'nccl_rank_calls_behind{{{NCCL},pid="3",comm_hash="c",rank="3"}}': "2x9",
    f'nccl_last_call_timestamp_seconds{{{NCCL},pid="4"}}': "520x9",
    f'nccl_calls_in_flight{{{NCCL},pid="4"}}': "1x9",
    f'nccl_rank_arrival_lag_seconds_sum{{{NCCL},pid="3",comm_hash="c",rank="3"}}': "0+12x9",
    f'nccl_rank_arrival_lag_seconds_count{{{NCCL},pid="3",comm_hash="c",rank="3"}}': "0+60x9",
    'rdma_link_state{instance="n1",device="m0",port="1"}': "1x9",
    'rdma_link_physical_state{instance="n1",device="m0",port="1"}': "2x9",
    'rdma_link_state{instance="n1",device="m1",port="1"}': "4x9",
    'rdma_link_state{instance="n1",device="m9",port="1"}': "1x9",
    'port:rdma_link_state:best{instance="n1",device="m0",port="1"}': "4x9",
    'port:rdma_link_state:best{instance="n1",device="m1",port="1"}': "4x9",
    'port:rdma_link_state:best{instance="n1",device="m9",port="1"}': "1x9",
    'rdma_link_physical_state{instance="n1",device="m1",port="1"}': "5x9",
    'rdma_nack_ratio{instance="n1",device="m1",port="1",kind="rnr"}': "0.5x9",
    'rdma_nack_ratio{instance="n1",device="m1",port="1",kind="sequence"}': "0.25x9",
    f'{SUCCESS}{{instance="n1",collector="dcgm"}}': "0x9",
    f'{AVAILABLE}{{instance="n1",collector="dcgm"}}': "0x9",
    f'{SUCCESS}{{instance="n2",collector="nvml"}}': "0x9",
    f'{AVAILABLE}{{instance="n2",collector="nvml"}}': "1x9",
}
"""GPU A is lost, B is used, C is held and idle, D is nobody's; ranks 1 and 3 of NCCL wait, 2 is done, 4 is at work."""

NODE = {
    'accel_node_boot_timestamp_seconds{instance="n1",boot_id="x"}': "-100x9",
    'accel_node_pci_link_width{instance="n1",kind="gpu",pci_bus_id="a"}': "8x9",
    'link:accel_node_pci_link_width:best{instance="n1",kind="gpu",pci_bus_id="a"}': "12x9",
    'accel_node_pci_link_width_max{instance="n1",kind="gpu",pci_bus_id="a"}': "16x9",
    f'gpu_cuda_memory_usage_bytes{{instance="n1",{TRAIN},api_layer="driver",memory="device"}}': "30x9",
    f'gpu_cuda_memory_usage_bytes{{instance="n1",{TRAIN},api_layer="driver",memory="pinned_host"}}': "50x9",
    f'gpu_cuda_memory_usage_bytes{{instance="n1",{TRAIN},api_layer="runtime",memory="device"}}': "20x9",
    'rdma_port_io_bytes_total{instance="n1",device="m0",port="1",direction="transmit"}': "0+60x9",
    'rdma_port_io_bytes_total{instance="n1",device="m0",port="1",direction="receive"}': "0+600x9",
    'accel_node_fault_last_timestamp_seconds{instance="n1",category="gpu",signal="xid",component="0"}': "500x9",
    'accel_node_fault_source_available{instance="n1",source="edac"}': "0x9",
    'accel_node_fault_source_available{instance="n1",source="kmsg"}': "1x9",
}

ALERTS = Path(__file__).parents[2] / "alerts"
SAME, SAME_GPU = 'instance="n1",device="m0",port="1"', 'instance="n1",gpu="0",gpu_uuid="A"'
CLUSTERS = {
    **{
        f'{name}{{cluster="{cluster}",{labels}}}': f"{value}x9"
        for cluster, speed, sent, use, limit, available, lag in (
            ("a", 400, 6000, 0.9, 100, 1, "4"),
            ("b", 100, 3000, 0.1, 50, 0, "_"),
        )
        for name, labels, value in (
            ("rdma_link_speed_bytes_per_second", SAME, speed),
            ("rdma_port_io_bytes_total", f'{SAME},direction="transmit"', f"0+{sent}"),
            ("hw_gpu_utilization_ratio", f'{SAME_GPU},task="general"', use),
            ("hw_gpu_memory_usage_bytes", SAME_GPU, 1),
            ("gpu_allocation_info", f'{SAME_GPU},{TRAIN},container="c",label_app="{cluster}"', 1),
            ("accel_exporter_page_series", 'instance="n1"', 25),
            ("accel_exporter_series_limit", 'instance="n1",collector="page"', limit),
            (SUCCESS, 'instance="n1",collector="nvml"', 0),
            (AVAILABLE, 'instance="n1",collector="nvml"', available),
            ("nccl_ras_rank_lag", 'instance="n1",comm_hash="c",rank="1",host="h"', lag),
            ("nccl_ras_rank_collectives_total", 'instance="n1",comm_hash="c"', "0+60"),
        )
    },
    f'gpu_process_memory_usage_bytes{{cluster="a",{SAME_GPU},{TRAIN},pid="1"}}': "40x9",
}
"""Two clusters with the same names of nodes, GPUs, pods and communicators; only in b is the GPU idle."""
APART: dict[tuple[str, str], list[tuple[dict[str, str], float]]] = {
    ("rdma", "Sent over link speed"): [
        ({"cluster": "a", "instance": "n1", "device": "m0", "port": "1"}, 0.25),
        ({"cluster": "b", "instance": "n1", "device": "m0", "port": "1"}, 0.5),
    ],
    ("jobs", "GPUs idle"): [({}, 1)],
    ("jobs", "Use of allocated GPUs"): [({"namespace": "ml", "pod": "train-0", "container": "c"}, 0.5)],
    ("jobs", "Device memory by pod label"): [({"label_app": "a"}, 40)],
    ("exporter", "Collectors failing"): [({}, 1)],
    ("exporter", "Series of a page, of its limit"): [
        ({"job": "accel-exporter", "cluster": "a", "instance": "n1"}, 0.25),
        ({"job": "accel-exporter", "cluster": "b", "instance": "n1"}, 0.5),
    ],
    ("nccl", "Behind over all nodes"): [
        ({"cluster": "a", "comm_hash": "c", "rank": "1", "host": "h"}, 4),
        ({"cluster": "b", "comm_hash": "c", "rank": "none"}, 0),
    ],
}

SERIES = {"jobs": (JOBS,), "rdma": (RDMA, RDMA_OF_NODE), "fleet": (FLEET,), "node": (NODE,)}
POD, JOB, ALONE, FOLDED = (
    {"namespace": "ml", "pod": "train-0"},
    {"slurm_job_id": "7"},
    {"command": "bash @ n2"},
    {"command": "(folded) @ n2"},
)
PEERS = [{"instance": "n1", "device": "m0", **peer} for peer in ({"peer_gid": "g2"}, {"peer_lid": "9"})]
EXPECTED: dict[tuple[str, str, str], list[tuple[dict[str, str], float]]] = {
    ("jobs", "Jobs", "GPUs"): [(POD, 2), (JOB, 1), (ALONE, 1), (FOLDED, 1)],
    ("jobs", "Jobs", "Memory (NVML)"): [(POD, 60), (JOB, 10), (ALONE, 5), (FOLDED, 1)],
    ("jobs", "Jobs", "SMs"): [(POD, 0.5)],
    ("jobs", "Jobs", "RDMA"): [(POD, 1)],
    ("jobs", "Use of the GPUs a job is on", ""): [(POD, 0.25)],
    ("jobs", "Shares of each GPU", "Memory"): [
        ({**POD, "instance": "n1", "gpu": "0", "gpu_uuid": "A"}, 0.5),
        ({**POD, "instance": "n1", "gpu": "1", "gpu_uuid": "B"}, 0.25),
        ({**JOB, "instance": "n2", "gpu": "0", "gpu_uuid": "C"}, 0.125),
        ({**ALONE, "instance": "n2", "gpu": "0", "gpu_uuid": "C"}, 0.0625),
        ({**FOLDED, "instance": "n2", "gpu": "0", "gpu_uuid": "C"}, 0.0125),
    ],
    ("jobs", "GPUs idle", ""): [({}, 1)],
    ("jobs", "Idle allocations", "Idle"): [
        (
            {"namespace": "ml", "pod": "sleeper", "container": "c", "instance": "n2", "gpu": "1", "gpu_uuid": "D"},
            1,
        )
    ],
    ("jobs", "Use of allocated GPUs", ""): [
        ({**POD, "container": "c"}, 0.9),
        ({"namespace": "ml", "pod": "sleeper", "container": "c"}, 0),
    ],
    ("jobs", "Device memory by pod label", ""): [({"label_app": "llm"}, 60)],
    ("jobs", "GPUs by pod label", ""): [({"label_app": "llm"}, 1), ({}, 2)],
    ("rdma", "Traffic by peer", "Bytes"): [(PEERS[0], 4), (PEERS[1], 10)],
    ("rdma", "Traffic by peer", "Latency"): [(peer, 0.1) for peer in PEERS],
    ("rdma", "Sent over link speed", ""): [({"instance": "n1", "device": "m0", "port": "1"}, 0.25)],
    ("rdma", "Link errors", ""): [({"instance": "n1", "device": "m0", "port": "1", "error": "symbol"}, 1)],
    ("rdma", "Queue pairs in error", ""): [({}, 1)],
    ("rdma", "GID owners", "Is"): [({"gid": "g1", "instance": "n1", "device": "m0", "port": "1"}, 1)],
    ("fleet", "Exporters down", ""): [({}, 1)],
    ("fleet", "Nodes with new faults", ""): [({}, 1)],
    ("fleet", "Unhealthy GPUs", "In this state"): [({"instance": "n1", "gpu": "0", "state": "lost"}, 1)],
    ("fleet", "Nodes with faults, by category", ""): [({"category": "gpu"}, 1), ({"category": "nic"}, 1)],
    ("fleet", "GPUs by use", "busy"): [({}, 1)],
    ("fleet", "GPUs by use", "idle with a process"): [({}, 1)],
    ("fleet", "GPUs by use", "without a process"): [({}, 1)],
    ("fleet", "Allocated but idle", ""): [({"instance": "n2", "gpu": "0", "namespace": "ml", "pod": "sleeper"}, 30)],
    ("fleet", "Slowed down, worst GPUs", ""): [({"instance": "n1", "gpu": "1", "reason": "hw_thermal"}, 0.1)],
    ("fleet", "Waiting in NCCL", ""): [({"instance": "n1", "comm": "python", "slurm_job_id": "7"}, 440)],
    ("fleet", "Ranks behind", ""): [({"instance": "n1", "comm_hash": "c", "rank": "3"}, 2)],
    ("fleet", "Utilisation of the fleet", "all"): [({}, 0.91 / 3)],
    ("fleet", "Utilisation of the fleet", "held by a process"): [({}, 0.455)],
    ("fleet", "GPUs by health", "healthy"): [({}, 1)],
    ("fleet", "Stragglers", ""): [({"instance": "n1", "comm_hash": "c", "rank": "3"}, 0.2)],
    ("fleet", "RDMA links down", "State"): [({"instance": "n1", "device": "m0", "port": "1"}, 1)],
    ("fleet", "RDMA links down", "Physical"): [({"instance": "n1", "device": "m0", "port": "1"}, 2)],
    ("fleet", "Nodes", "Loss"): [({"instance": "n1"}, 0.25)],
    ("fleet", "Clusters, zones and racks", "Nodes"): [
        ({"kind": "rack", "place": "r1"}, 2),
        ({"kind": "rack", "place": "r2"}, 1),
        ({"kind": "zone", "place": "z"}, 1),
    ],
    ("fleet", "Clusters, zones and racks", "Exporters down"): [({"kind": "rack", "place": "r2"}, 1)],
    ("fleet", "Clusters, zones and racks", "Nodes with new faults"): [
        ({"kind": "rack", "place": "r1"}, 1),
        ({"kind": "zone", "place": "z"}, 1),
    ],
    ("fleet", "Leaf switches", "Nodes"): [({"place": "l1"}, 2)],
    ("fleet", "Leaf switches", "GPUs"): [({"place": "l1"}, 1)],
    ("fleet", "Leaf switches", "Unhealthy"): [({"place": "l1"}, 1)],
    ("fleet", "Leaf switches", "Use"): [({"place": "l1"}, 0.91 / 3)],
    ("fleet", "Leaf switches", "RDMA links down"): [({"place": "l1"}, 1)],
    ("fleet", "Leaf switches", "Loss"): [({"place": "l1"}, 0.25)],
    ("fleet", "NVLink domains", "Nodes"): [({"place": "u.1"}, 1)],
    ("fleet", "NVLink domains", "Exporters down"): [({"place": "u.1"}, 1)],
    ("fleet", "Degraded exporters", "Collectors"): [({"instance": "n2"}, 1)],
    ("node", "Uptime", ""): [({}, 640)],
    ("node", "PCIe links", "Fewer"): [({"instance": "n1", "kind": "gpu", "pci_bus_id": "a"}, 4)],
    ("node", "PCIe links, current and maximum", "Missing"): [({"instance": "n1", "kind": "gpu", "pci_bus_id": "a"}, 8)],
    ("node", "Processes", "Allocated"): [({"instance": "n1", "namespace": "ml", "pod": "train-0"}, 30)],
    ("node", "RDMA sent and received", ""): [({"instance": "n1", "device": "m0", "port": "1"}, 1)],
    ("node", "Faults", "Ago"): [({"instance": "n1", "category": "gpu", "signal": "xid", "component": "0"}, 40)],
    ("node", "Unavailable sources", ""): [({"instance": "n1", "source": "edac"}, 0)],
}


def query(stem: str, title: str, column: str) -> str:
    """The first query of a panel, or a table's of that column, with all of every variable chosen."""
    board: dict[str, Any] = json.loads((HERE / f"{stem}.json").read_text())
    (expr, *_) = (
        target["expr"]
        for panel in flat(board)
        if panel["title"] == title
        for target in panel.get("targets") or []
        if column in ("", target["legendFormat"])
    )
    everything = re.sub(r'=~"\$\w+"', '=~".*"', expr)
    return everything.replace("$__rate_interval", "5m").replace("$pod_label", "label_app")


@needs_promtool
@pytest.mark.parametrize(("stem", "title", "column"), EXPECTED)
def test_joined(stem: str, title: str, column: str, tmp_path: Path) -> None:
    """The panel has exactly the rows and values that the cluster has."""
    rules = [str(ALERTS / "nodes.yaml")] if stem == "fleet" else []
    check(query(stem, title, column), EXPECTED[stem, title, column], SERIES[stem], rules, tmp_path)


@needs_promtool
@pytest.mark.parametrize(("stem", "title"), APART)
def test_clusters_are_kept_apart(stem: str, title: str, tmp_path: Path) -> None:
    """With two clusters in one store, no series is joined with a series of the other cluster."""
    check(query(stem, title, ""), APART[stem, title], (CLUSTERS,), [], tmp_path)


def check(
    expr: str,
    rows: list[tuple[dict[str, str], float]],
    stores: Iterable[Mapping[str, str]],
    rules: list[str],
    folder: Path,
) -> None:
    """Have promtool evaluate the expression on each store of series by name, and expect exactly these rows."""
    expected = [
        {"labels": "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}", "value": value}
        for labels, value in rows
    ]
    tests = [
        {
            "interval": "1m",
            "input_series": [
                {"series": name.replace("{", '{job="accel-exporter",', 1), "values": values}
                for name, values in series.items()
            ],
            "promql_expr_test": [{"expr": expr, "eval_time": "9m", "exp_samples": expected}],
        }
        for series in stores
    ]
    file = folder / "panel.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": rules, "evaluation_interval": "1m", "tests": tests}))
    checked = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
