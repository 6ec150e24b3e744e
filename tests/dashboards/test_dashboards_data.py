"""Every panel of every dashboard and every recording rule has data on a node where everything happens."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards import draw, queries
from dashboards.parts import DETAIL
from tests.bpf.custom_node import bcc_missing
from tests.e2e.backend import QueryError
from tests.e2e.scene import RESOLUTION, Scene, scene

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus (Debian package) is not installed"),
    pytest.mark.evidence(feature="queries of dashboards", on="real software"),
]

JOINS = "tests/program/test_dashboard_joins.py has the series"
ETHTOOL = "counters that only a NIC's driver has (ethtool -S); tests/program/infiniband/test_netdev.py has them"
SMART = "a drive's SMART log; tests/unit/faults/test_smart.py has one"
PROCESSES = "tests/program/faults/test_processes.py has it"
IN_PODS = f"processes in the cgroup of a kubelet's pod; {JOINS}"
REAL_RDMA = "queue pairs and memory of a device that the kernel knows: make test-rdma has them"
WITHOUT: dict[str, dict[str, str]] = {
    "cuda": {
        "Untracked allocations": "a full table; tests/bpf/test_cuda_memory.py fills one",
        "Frees of unseen allocations": "memory older than the probes; tests/bpf/test_cuda_memory.py has some",
    },
    "exporter": {"Probes not attached": "a function that cannot be probed; tests/bpf/test_bridge_failures.py has some"},
    "fleet": {
        "Waiting in NCCL": f"a rank that hangs for a minute; {JOINS}",
        "Stalled workloads": "ranks that hang for five minutes; alerts/nccl.test.yaml has some",
        "Ranks behind": f"a rank that is behind for a minute; {JOINS}",
        "RDMA links down": f"a port that was active before; {JOINS}",
        "Degraded exporters": f"an exporter that fails; {JOINS}",
        "Leaf switches": f"nodes with a leaf; {JOINS}",
        "NVLink domains": f"GPUs of a domain; {JOINS}",
    },
    "gpu": {"PCIe replays and errors": "PCIe errors by kind, which newer GPUs report; tests/unit/nvml has them"},
    "jobs": {"SM time by pod label": IN_PODS, "Device memory by pod label": IN_PODS},
    "node": {
        "Drives": SMART,
        "Drives with warnings": SMART,
        "Devices": f"a node with --collector.faults.expected; {PROCESSES}",
        "Services of the driver": f"NVIDIA's driver; {PROCESSES}",
        "GPU processes stuck in the kernel": f"NVIDIA's driver; {PROCESSES}",
        "Greatest error of the clock": f"a clock that is synchronized; {PROCESSES}",
    },
    "rdma": {
        "GID owners": REAL_RDMA,
        "Memory registered": REAL_RDMA,
        "Registrations": REAL_RDMA,
        "Failed completions by process": REAL_RDMA,
        "Devices": "a counter that the driver refuses; tests/program/infiniband/test_collector.py has one",
        "Paused (PFC)": ETHTOOL,
        "Pause frames": ETHTOOL,
        "PCIe stalled": ETHTOOL,
    },
}
"""Panels of which a query may have no data here, by dashboard: what it takes, and where that is."""
UNRECORDED = {
    *("namespace_pod:gpu_cuda_memory_usage_bytes:sum", "namespace_pod:nccl_collective_bus_bytes:rate5m"),
    *(f"workload_pid:nccl_calls_in_flight:{it}" for it in ("first", "held")),
    *("instance_switch:rdma_link_state:suspected", "switch:rdma_link_state:serving"),
    "workload_switch:nccl_calls_in_flight:suspected",
    *(f"{it}:nccl_ras_rank_lag:behind" for it in ("instance_comm_hash", "instance_workload")),
    *("name_setting:hw_gpu_info:on_ratio", "workload_gpu_uuid:gpu_clock_hertz:busy10m"),
    "service:accel_node_service_running:best",
    *("instance:accel_exporter_collector_success:failing", "instance:accel_exporter_probe_attached:missing"),
    *("instance:accel_exporter_events_lost:rate5m", "xid:gpu_xid_bursts:increase10m"),
    *(f"gpu:gpu_bus_loss_last_timestamp_seconds:{it}" for it in ("known", "since_boot")),
    "instance_job:nccl_last_call_timestamp_seconds:waiting",
    *(f"instance_workload:nccl_last_call_timestamp_seconds:{it}" for it in ("standing", "stalled")),
}
"""Recorded of processes in pods, of a first call that hangs or one that waits for a minute, of three nodes, of ranks
with a GPU, of ranks behind in NCCL's RAS, of a suspected switch, of services of NVIDIA, of exporters that fail, of GPUs
that left the bus, and of Xids 92 and 94: the tests of the rules have them.
"""


@pytest.fixture(scope="module")
def seen(bpf_refusal: str) -> Iterator[Scene]:
    if bpf_refusal:
        pytest.skip(bpf_refusal)
    with scene() as made:
        yield made


def test_every_query_has_data(seen: Scene) -> None:
    """Each query of each panel returns series in profile node, of the detail row in debug, but for what is listed."""
    empty = []
    for panel in queries.panels():
        if panel.title in WITHOUT.get(panel.board, {}) or (
            panel.board == "exporter" and _custom(panel) and bcc_missing()
        ):
            continue
        for letter, (expr, _) in panel.queries(RESOLUTION).items():
            try:
                prometheus = seen.detail if panel.row == DETAIL else seen.prometheus
                if not prometheus.ranges(expr, seen.since, seen.until, 1.0):
                    empty.append(f"{panel.board}: {panel.title} {letter}")
            except QueryError as error:
                empty.append(f"{panel.board}: {panel.title} {letter}: {error}")
    assert [] == empty


def _custom(panel: queries.Panel) -> bool:
    return "custom" in str(panel.json["targets"])


def test_every_recording_rule_has_data(seen: Scene) -> None:
    """Each recorded series is there, but for those of what this node does not have."""
    recorded = {rule["name"] for rule in seen.prometheus.rules() if rule["type"] == "recording"}
    assert UNRECORDED == {name for name in recorded if not seen.prometheus.ranges(name, seen.since, seen.until, 1.0)}


def test_what_is_listed_exists() -> None:
    """Every panel that is listed as without data is on its dashboard."""
    there = {(panel.board, panel.title) for panel in queries.panels()}
    assert {(board, title) for board, titles in WITHOUT.items() for title in titles} <= there


def test_every_dashboard_can_be_drawn(seen: Scene, tmp_path: Path) -> None:
    """The pictures of docs/images are drawn from what Prometheus answers."""
    for stem in queries.boards():
        path = tmp_path / f"{stem}.png"
        draw.board(stem, seen.prometheus, seen.until, path)
        assert path.read_bytes().startswith(b"\x89PNG")
