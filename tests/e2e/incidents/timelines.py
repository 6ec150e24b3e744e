"""Incidents of clusters, minute by minute: the series of each, and the notifications that a person should get."""

from __future__ import annotations

from collections.abc import Iterator

from tests.e2e.incidents.cordons import CORDONED, cordoned_node
from tests.e2e.incidents.everyday import no_incidents
from tests.e2e.incidents.incident import RUNS, STANDS, Incident, Notice, link_series, node_series, rank_series
from tests.e2e.incidents.jobs import jobs
from tests.e2e.incidents.topology import topology

NODES = 250
"""Nodes of a job of 2,000 ranks."""


def _incidents() -> Iterator[Incident]:
    gpu = 'instance="n1",gpu="1",gpu_uuid="n1-1"'
    pci = f'{gpu},pci_bus_id="0000:3B:00.0"'
    lost: dict[str, str] = {}
    for number in range(8):
        lost |= node_series(f"n{number}", gpus=8) | rank_series(f"n{number}", f"train-{number}", STANDS, gpus=8)
    lost |= {
        f'gpu_xid_last_timestamp_seconds{{{pci},xid="79",action="RESTART_BM"}}': "_x10 600x50",
        f'hw_status{{{gpu},hw_type="gpu",state="ok"}}': "1x10 0x50",
        f'hw_status{{{gpu},hw_type="gpu",state="lost"}}': "0x10 1x50",
        f'hw_gpu_info{{{gpu},name="H100"}}': "1x10 stale",
        'accel_exporter_source_stalled{instance="n1",source="nvml"}': "0x10 1x20 0x30",
        'accel_node_fault_last_timestamp_seconds{instance="n1",category="io_expansion_board",component="0000:3b:00.0",'
        'signal="pcie_fatal"}': "_x10 600x50",
    }
    lost |= {
        'nccl_communicator_info{instance="n0",pid="1000",namespace="ml",pod="train-0",comm_hash="c",rank="0"}': "1x60",
        'nccl_ras_communicator_ranks{instance="n0",comm_hash="c"}': "64x60",
        'nccl_ras_rank_lag{instance="n0",comm_hash="c",rank="9",host="10.0.0.1"}': "0x10 1x50",
        'nccl_ras_rank_collectives_total{instance="n0",comm_hash="c",rank="0",collective="AllReduce"}': STANDS,
        'nccl_ras_ranks_missing{instance="n0",comm_hash="c",state="dead"}': "0x12 1x48",
    }
    for number in range(2, 8):
        counter = 'device="mlx5_0",port="1",kind="transport"'
        lost |= {f'rdma_retries_exceeded_total{{instance="n{number}",{counter}}}': "0x12 8x48"}
    yield Incident(
        "gpu-off-the-bus",
        lost,
        (Notice("GpuLost", "on n1.", 19), Notice("NcclRankMissing", "1 ranks missing", 35)),
        (Notice("RdmaRetriesExceeded", "(mlx5_0)", 23),),
    )

    yield from _large()

    first: dict[str, str] = {}
    for number in range(4):
        process = f'instance="n{number}",pid="7",comm="python3",namespace="ml",pod="train-{number}"'
        first |= {f"nccl_calls_in_flight{{{process}}}": "_x5 1x55"}
    yield Incident("hang-in-init", first, (Notice("NcclInitHang", "Workload train ", 34),))

    switch: dict[str, str] = {}
    for number in range(NODES):
        leaf = number // 32
        switch |= link_series(f"n{number}", "4x20 1x15 4x25" if leaf == 1 else "4x60", switch=f"leaf{leaf}")
    yield Incident("leaf-switch-reboots", switch, (Notice("SwitchSuspected", "leaf1", 32),))

    yield from topology()

    flaps = link_series("n1", "4x10 " + "1 1 4 4 " * 8 + "4x18")
    yield Incident("link-flaps", flaps, (Notice("RdmaLinkDown", "on n1.", 26),))

    thermal: dict[str, str] = {}
    for number in range(4):
        for one in range(2):
            which = f'instance="n{number}",gpu="{one}",gpu_uuid="n{number}-{one}",reason="hw_thermal"'
            thermal |= {f"gpu_clock_slowed_seconds_total{{{which}}}": "0x10 0+30x50"}
    yield Incident("rack-is-hot", thermal, (), (Notice("GpuThermalSlowdown", "slowed down by heat on n", 28),))

    process = 'instance="n1",pid="7",namespace="ml",pod="train-0",api_layer="driver",api="cuCtxSynchronize"'
    contained = node_series("n1") | {
        f'gpu_cuda_api_last_error_timestamp_seconds{{{process},code="214"}}': "_x10 600x50",
        f'gpu_xid_last_timestamp_seconds{{{pci},xid="94",action="RESTART_APP"}}': "_x10 600x50",
        f'gpu_xid_bursts_total{{{pci},xid="94",action="RESTART_APP"}}': "_x10 1x50",
        f'hw_errors_total{{{gpu},hw_type="gpu",error_type="uncorrected",lifetime="volatile"}}': "0x10 1x50",
    }
    yield Incident("ecc-contained", contained, (), (Notice("GpuEccUncorrectable", "GPU 1 on n1.", 22),))

    yield from _degraded()

    nfs = 'category="dependency",component="nfs1",signal="nfs_not_responding"'
    stall = {f'accel_node_fault_last_timestamp_seconds{{instance="n{it}",{nfs}}}': "_x10 600x50" for it in range(4)}
    yield Incident("nfs-stalls", stall, (), (Notice("StorageNotResponding", "not answering on n", 22),))

    yield from _hardware()
    yield from _blind()


def _large() -> Iterator[Incident]:
    """One job on all GPUs of 250 nodes."""
    hang: dict[str, str] = {}
    lost: dict[str, str] = {}
    first: dict[str, str] = {}
    for number in range(NODES):
        node, pod = f"n{number}", f"train-worker-{number}"
        hang |= rank_series(node, pod, STANDS, gpus=8, in_flight="0x10 1x50")
        for rank in range(8):
            process = f'instance="{node}",pid="{1000 + rank}",comm="python3",namespace="ml",pod="{pod}"'
            first |= {f"nccl_calls_in_flight{{{process}}}": "_x5 1x55"}
        if number != 1:
            counter = 'device="mlx5_0",port="1",kind="transport"'
            lost |= {f'rdma_retries_exceeded_total{{instance="{node}",{counter}}}': "0x12 8x48"}
    yield Incident(
        "job-of-2000-ranks-hangs",
        hang,
        (Notice("NcclHang", "Workload train ", 55),),
        alone=True,
        large=True,
    )

    gpu = 'instance="n1",gpu="1",gpu_uuid="n1-1"'
    xid = f'{gpu},pci_bus_id="0000:3B:00.0",xid="79",action="RESTART_BM"'
    lost |= hang | node_series("n1", gpus=8) | {f"gpu_xid_last_timestamp_seconds{{{xid}}}": "_x10 600x50"}
    lost |= {f'hw_status{{{gpu},hw_type="gpu",state="ok"}}': "1x10 0x50"}
    lost |= {f'hw_status{{{gpu},hw_type="gpu",state="lost"}}': "0x10 1x50"}
    yield Incident(
        "gpu-of-2000-off-the-bus",
        lost,
        (Notice("GpuLost", "on n1.", 30), Notice("NcclHang", "Workload train ", 55)),
        (Notice("RdmaRetriesExceeded", "(mlx5_0)", 38),),
        alone=True,
        large=True,
    )

    yield Incident(
        "hang-in-init-of-2000-ranks",
        first,
        (Notice("NcclInitHang", "Workload train ", 52),),
        alone=True,
        large=True,
    )


def _degraded() -> Iterator[Incident]:
    """Yield incidents that cost speed or redundancy, and can wait until the morning."""
    slow: dict[str, str] = {}
    for number in range(4):
        slow |= node_series(f"n{number}") | rank_series(f"n{number}", f"train-{number}", RUNS)
        for rank in range(2):
            late = (number, rank) == (2, 1)
            gpu = f'instance="n{number}",gpu="{rank}",gpu_uuid="n{number}-{rank}"'
            process = f'{gpu},pid="{1000 + rank}",comm_hash="c",rank="{2 * number + rank}"'
            slow |= {
                f'gpu_clock_hertz{{{gpu},clock="sm"}}': "1.7e9x10 1.2e9x50" if late else "1.7e9x60",
                f"nccl_rank_arrival_lag_seconds_sum{{{process}}}": "0x10 0+12x50" if late else "0x60",
                f"nccl_rank_arrival_lag_seconds_count{{{process}}}": "0+600x60",
            }
    yield Incident(
        "one-rank-is-slow", slow, (), (Notice("GpuSlow", "GPU 1 slower", 49), Notice("NcclStraggler", "on n2.", 49))
    )

    supply = 'category="power_supply",component="PSU2",signal="ipmi_power_supply"'
    absent = {f'accel_node_fault_last_timestamp_seconds{{instance="n{it}",{supply}}}': "0+60x60" for it in range(3)}
    yield Incident("second-power-supply-is-absent", absent, (), (Notice("ChassisFault", "out of its limits on n", 12),))


def _hardware() -> Iterator[Incident]:
    """Devices that fail, one kind each."""
    switch = 'instance="n1",pci_bus_id="0000:C1:00.0",sxid="24007",severity="fatal",category="nvswitch"'
    series = node_series("n1", gpus=8) | {f"gpu_sxid_last_timestamp_seconds{{{switch}}}": "_x10 600x50"}
    yield Incident("nvswitch-fails", series, (Notice("NvswitchFatalError", "on n1.", 19),))

    job = {name: values for name, values in series.items()}
    for number in range(3):
        if number != 1:
            job |= node_series(f"n{number}", gpus=8)
        job |= rank_series(f"n{number}", f"train-worker-{number}", STANDS, gpus=8, in_flight="0x10 1x50")
    for gpu in range(8):
        which = f'instance="n1",gpu="{gpu}",gpu_uuid="n1-{gpu}"'
        xid = f'{which},pci_bus_id="0000:{gpu}B:00.0",xid="74",action="RESET_GPU"'
        job |= {
            f"gpu_xid_last_timestamp_seconds{{{xid}}}": "_x11 660x49",
            f'hw_status{{{which},hw_type="gpu",state="ok"}}': "1x12 0x48",
            f'hw_status{{{which},hw_type="gpu",state="failed"}}': "0x12 1x48",
            f"gpu_recovery_action{{{which}}}": "0x12 1x48",
        }
    yield Incident(
        "nvswitch-fails-during-a-job",
        job,
        (Notice("NvswitchFatalError", "on n1.", 19), Notice("NcclHang", "Workload train ", 34)),
    )

    nic = 'instance="n1",category="nic",component="0000:18:00.0"'
    series = node_series("n1") | link_series("n1", "4x10 1x50") | link_series("n1", "4x60", device="mlx5_1")
    series |= {f'accel_node_fault_last_timestamp_seconds{{{nic},signal="nic_health_compromised"}}': "_x10 600x50"}
    yield Incident("nic-fails", series, (Notice("NicFault", "on n1.", 19),))

    port = 'instance="n1",device="mlx5_0",port="1"'
    storm = node_series("n1") | {
        f'rdma_pfc_pause_storms_total{{{port},severity="error"}}': "0x10 3x20 6x30",
        f'rdma_pfc_pause_time_seconds_total{{{port},priority="3",direction="sent"}}': "0x10 0+30x50",
    }
    yield Incident("nic-stops-its-switch", storm, (Notice("RdmaPauseStorm", "mlx5_0 on n1.", 19),))

    # A node of 8 ranks: in the communicator of all, in that of each pipeline and replica, which then are behind.
    missing: dict[str, str] = {}
    for number, (size, dead) in enumerate([(2000, 8), *[(250, 1)] * 8, *[(10, 1)] * 8]):
        ras = f'instance="n0",comm_hash="0xc0ffee{number:02}"'
        missing |= {
            f"nccl_ras_communicator_ranks{{{ras}}}": f"{size}x60",
            f'nccl_ras_ranks_missing{{{ras},state="dead"}}': f"0x10 {dead}x50",
            f'nccl_ras_ranks_missing{{{ras},state="unresponsive"}}': "0x60",
            f'nccl_ras_rank_lag{{{ras},rank="1",host="10.0.0.1"}}': "0x10 1x50",
            f'nccl_ras_rank_collectives_total{{{ras},rank="0",collective="AllReduce"}}': "0+60x10 600x50",
        }
    yield Incident("ranks-die", missing, (Notice("NcclRankMissing", "8 ranks missing", 31),))

    seven: dict[str, str] = {}
    for number in range(3):
        seven |= node_series(f"n{number}", gpus=7 if number == 1 else 8)
        seven |= {f'accel_node_devices_expected{{instance="n{number}",kind="gpu"}}': "8x60"}
    yield Incident("node-boots-with-seven-gpus", seven, (), (Notice("DevicesMissing", "on n1: 1 of kind gpu", 43),))

    gpu = 'instance="n1",gpu="1",gpu_uuid="n1-1"'
    remap = node_series("n1") | {f"gpu_memory_row_remap_failure{{{gpu}}}": "0x10 1x50"}
    yield Incident("spare-rows-are-used-up", remap, (), (Notice("GpuRowRemapFailed", "GPU 1 out of", 28),))

    width = 'accel_node_pci_link_width{instance="n1",pci_bus_id="0000:3b:00.0",kind="gpu"}'
    yield Incident(
        "slot-loses-lanes", node_series("n1") | {width: "16x10 8x50"}, (), (Notice("PcieLinkDegraded", "on n1.", 32),)
    )


def _blind() -> Iterator[Incident]:
    """Yield incidents in which something stops without any other sign."""
    up = 'up{instance="n0"}'
    yield Incident(
        "nothing-is-scraped",
        {up: "1x10 stale"},
        (Notice("AccelExporterAbsent", "not scraped on most instances", 31),),
        alone=True,
    )

    down = {f'up{{instance="n{it}"}}': "1x10 0x50" if it == 1 else "1x60" for it in range(4)}
    yield Incident("exporter-stops-on-a-node", down, (), (Notice("AccelExporterDown", "on n1.", 27),))

    service = 'accel_node_service_running{instance="n1",service="fabricmanager"}'
    yield Incident(
        "fabric-manager-stops",
        node_series("n1", gpus=8) | {service: "1x10 0x50"},
        (),
        (Notice("GpuServiceDown", "fabricmanager not running on n1.", 37),),
    )

    clock = {f'accel_node_clock_synchronized{{instance="n{it}"}}': "1x5 0x55" if it == 1 else "1x60" for it in range(3)}
    yield Incident("clock-drifts", clock, (), (Notice("ClockUnsynchronized", "on n1.", 48),))

    released = {
        'accel_exporter_nvml_released{instance="n1"}': "0x10 1x50",
        'hw_status{instance="n1",gpu="0",gpu_uuid="u",hw_type="gpu",state="ok"}': "1x10 stale",
    }
    # Cordoned until minute 30: the page comes with the second group_interval after that at the latest.
    cordoned = cordoned_node("1x30 0x30")
    yield Incident("cordon-ends-before-the-repair", cordoned, (Notice("GpuLost", f"on {CORDONED}.", 55),), alone=True)

    yield Incident("gpus-stay-released", released, (), (Notice("AccelExporterGpusReleased", "on n1.", 37),))


INCIDENTS = (*_incidents(), *jobs())
HEALTHY = tuple(no_incidents())
