"""Days on which there is no incident, minute by minute: nobody gets a notification."""

from __future__ import annotations

from collections.abc import Iterator

from tests.e2e.incidents.cordons import CORDONED, broken_node, cordoned_node
from tests.e2e.incidents.incident import Incident, link_series, node_series, rank_series

NODES = 250
"""Nodes of a job of 2,000 ranks."""


def no_incidents() -> Iterator[Incident]:
    """Yield everyday events, which page nobody."""
    report = 'accel_node_report_timestamp_seconds{instance="n1",category="host_maintenance",component="provider"}'
    yield Incident("node-in-maintenance-is-taken-apart", broken_node("n1") | node_series("n0") | {report: "_x5 600x55"})

    off = {
        'up{instance="n1"}': "1x20 0x40",
        'accel_node_boot_timestamp_seconds{instance="n1",boot_id="b"}': "-90000x20 stale",
        report: "_x5 600x15 stale",
        **{
            name: "_x10 600x10 stale"
            for name in broken_node("n1")
            if name.startswith(("gpu_xid_last_timestamp", "accel_node_fault_last_timestamp"))
        },
    }
    yield Incident("node-is-off-during-its-maintenance", off | node_series("n0"))

    slow = {
        'up{instance="n1"}': "1x20 0x20 1x20",
        'accel_node_boot_timestamp_seconds{instance="n1",boot_id="b"}': "-90000x20 _x20 2340x20",
        'accel_node_shutdown_timestamp_seconds{instance="n1",mode="reboot"}': "_x10 1200x10 _x40",
    }
    yield Incident("node-reboots-in-twenty-minutes", slow | node_series("n0"))

    shutdown = 'accel_node_shutdown_timestamp_seconds{instance="n1",mode="poweroff"}'
    yield Incident("node-breaks-before-its-shutdown", broken_node("n1") | node_series("n0") | {shutdown: "_x5 7200x55"})

    # Names of their own: a node in maintenance is that of each incident with one of its name.
    switch: dict[str, str] = {}
    for number in range(4):
        of = f'instance="s{number}",category="host_maintenance",component="switch"'
        switch |= node_series(f"s{number}") | link_series(f"s{number}", "4x20 1x15 4x25", switch="leaf0")
        switch |= {f"accel_node_report_timestamp_seconds{{{of}}}": "_x5 600x55"}
    yield Incident("switch-is-upgraded-without-its-nodes", switch)

    yield Incident("cordoned-node-is-taken-apart", cordoned_node("1x60") | broken_node(CORDONED), alone=True)

    ranks: dict[str, str] = {}
    for number in range(NODES):
        ranks |= rank_series(f"n{number}", f"train-worker-{number}", "0+60x10 600x10 1260+60x40", gpus=8)
    yield Incident("checkpoint-of-2000-ranks", ranks, alone=True, large=True)

    abort: dict[str, str] = {}
    for number in range(NODES):
        process = f'instance="n{number}",pid="7",comm="python3",namespace="ml",pod="train-{number}"'
        crash = f'instance="n{number}",category="software_bug",component="python3",signal="process_sigabrt"'
        abort |= node_series(f"n{number}", gpus=0) | {
            f'nccl_last_error_timestamp_seconds{{{process},api="ncclAllReduce",code="6"}}': "_x10 600x5",
            f'gpu_cuda_api_last_error_timestamp_seconds{{{process},api_layer="driver",code="710"}}': "_x10 600x5",
            f"accel_node_fault_last_timestamp_seconds{{{crash}}}": "_x10 600x50",
        }
    yield Incident("nan-abort", abort)

    process = 'instance="n1",pid="7",comm="python3",namespace="ml",pod="jax-0"'
    retry = f'gpu_cuda_api_last_error_timestamp_seconds{{{process},api_layer="driver",api="cuMemAlloc_v2",code="2"}}'
    yield Incident("jax-tries-memory", {retry: "_x10 600x50"})

    boot = {
        'up{instance="n1"}': "1x20 0x4 1x36",
        'accel_node_boot_timestamp_seconds{instance="n1",boot_id="b"}': "-90000x20 _x4 1400x36",
        'accel_node_shutdown_timestamp_seconds{instance="n1",mode="reboot"}': "_x10 1260x10 _x40",
        'accel_node_cpus_online{instance="n1"}': "128x20 _x4 128x36",
        'rdma_link_state{instance="n1",device="mlx5_0",port="1"}': "4x20 _x4 1 4x35",
        'rdma_port_io_bytes_total{instance="n1",device="mlx5_0",port="1",direction="transmit"}': "0+1e9x20 _x40",
        'hw_status{instance="n1",gpu="0",gpu_uuid="u",hw_type="gpu",state="ok"}': "1x20 _x4 1x36",
    }
    yield Incident("node-is-drained-and-reboots", boot)

    save = "0+60x10 600x10 1260+60x40"
    others = node_series("n1") | rank_series("n1", "train-0", save)
    yield Incident("checkpoint-of-ten-minutes", others)

    # Rank 0 evaluates for twelve minutes; the others wait for it in a collective, their GPUs busy in its kernel.
    evaluation = (
        node_series("n1")
        | node_series("n2")
        | rank_series("n2", "train-1", "0+60x20 1200x12 1980+60x27", in_flight="0x20 1x12 0x28")
    )
    evaluation |= rank_series("n1", "train-0", "0+60x20 1200x12 1980+60x27")
    for name in evaluation:
        if 'pod="train-0"' in name and 'pid="1000"' in name and name.startswith("gpu_cuda_last_launch"):
            evaluation[name] = "0+60x60"
    yield Incident("rank-0-evaluates", evaluation)

    idle = {name: "0x60" if "utilization" in name else values for name, values in node_series("n1").items()}
    yield Incident("server-without-requests", idle | rank_series("n1", "vllm-0", "0x60"))

    cables = link_series("n1", "4x60") | link_series("n1", "1x60", used=False, device="mlx5_7")
    yield Incident("ports-without-cable", cables)

    upgrade: dict[str, str] = {}
    for number in range(3):
        before = 5 + 10 * number
        upgrade |= {
            f'up{{instance="n{number}"}}': f"1x{before} 0 1x{59 - before}",
            f'process_start_time_seconds{{instance="n{number}"}}': f"-9000x{before} _ {60 * before}x{59 - before}",
            f'hw_status{{instance="n{number}",gpu="0",gpu_uuid="u{number}",hw_type="gpu",state="ok"}}': (
                f"1x{before} stale 1x{59 - before}"
            ),
        }
    yield Incident("exporters-are-upgraded", upgrade)

    driver = {
        'accel_exporter_nvml_released{instance="n1"}': "0x10 1x10 0x40",
        'hw_status{instance="n1",gpu="0",gpu_uuid="u",hw_type="gpu",state="ok"}': "1x10 stale _x9 1x40",
        'accel_exporter_collector_available{instance="n1",collector="nvml"}': "1x12 0x6 1x42",
    }
    yield Incident("driver-is-upgraded", driver)

    yield Incident("mig-is-reconfigured", _reconfigured())

    yield Incident("job-is-preempted", node_series("n1") | rank_series("n1", "train-0", "0+60x20 stale"))


def _reconfigured() -> dict[str, str]:
    """One of three nodes is drained, its MIG mode enabled, and its GPUs reset and partitioned."""
    series: dict[str, str] = {}
    for number in range(3):
        what = f'instance="n{number}",gpu="0",gpu_uuid="n{number}-0"'
        info = f'hw_gpu_info{{{what},name="H100",driver_version="580",vbios="96",board_part_number="900",mig="'
        mine = number == 1
        series |= {
            f'{info}disabled"}}': "1x10 stale" if mine else "1x60",
            f'hw_status{{{what},hw_type="gpu",state="ok"}}': "1x10 stale _x4 1x45" if mine else "1x60",
            f'gpu_nvlink_link_up{{{what},link="0"}}': "1x10 0x49" if mine else "1x60",
            f'gpu_allocation_info{{{what},pod="train-{number}",namespace="ml"}}': "1x5 stale" if mine else "1x60",
            f'accel_exporter_nvml_released{{instance="n{number}"}}': "0x10 1x4 0x46" if mine else "0x60",
        }
    gpu = 'instance="n1",gpu="0",gpu_uuid="n1-0"'
    series[
        f'hw_gpu_info{{{gpu},name="H100",driver_version="580",vbios="96",board_part_number="900",mig="enabled"}}'
    ] = "_x15 1x45"
    for device in range(7):
        series[f'gpu_mig_info{{{gpu},mig_uuid="MIG-{device}",profile="1g.10gb"}}'] = "_x16 1x44"
    return series
