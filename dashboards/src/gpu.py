"""GPUs: how busy and hot they are, their state, and the processes on them."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.labels import columns, legend
from dashboards.parts import (
    DETAIL,
    FULL,
    HALF,
    THIRD,
    Query,
    board,
    choice,
    lines,
    number,
    rate,
    rows,
    select,
    share,
    total,
)
from dashboards.workloads import allocated_to, now_of, workloads

GPU = ('gpu=~"$gpu"',)
WHICH = ("instance", "gpu")
NAME = "GPU {{gpu}} {{instance}}"
COLUMNS = columns("instance", "gpu")
PROCESS = ("instance", "gpu", "workload", "namespace", "pod", "slurm_job_id", "comm", "pid")
PROCESS_NAME = "GPU {{gpu}} {{workload}} {{namespace}} {{pod}} {{slurm_job_id}} {{comm}} {{pid}} {{instance}}"
PROCESS_COLUMNS = {
    **COLUMNS,
    "workload": "Workload",
    "namespace": "Namespace",
    "pod": "Pod",
    "slurm_job_id": "Slurm job",
    "comm": "Command",
    "pid": "PID",
}


def gauge(metric: str, *matchers: str) -> str:
    return select(metric, *GPU, *matchers)


def of_processes(metric: str, *matchers: str) -> str:
    """A gauge of processes of the chosen workloads."""
    return now_of(metric, *GPU, *matchers)


def per_gpu(metric: str, *matchers: str) -> str:
    """A gauge's one value of each GPU."""
    return f"max by ({', '.join(WHICH)}) ({gauge(metric, *matchers)})"


def rising(metric: str, *labels: str) -> str:
    """A counter's rate of each GPU, by labels too."""
    return total(rate(metric, *GPU), *WHICH, *labels)


BUSY = gauge("hw_gpu_utilization_ratio", 'task="general"')
OK, NOT_OK = gauge("hw_status", 'state="ok"'), gauge("hw_status", 'state!="ok"')
GIVEN = allocated_to('gpu=~"$gpu|"')
AMD = legend("pci_bus_id", "instance")
XID_AGO = f"time() - max by (instance, gpu, xid, action, category) ({gauge('gpu_xid_last_timestamp_seconds')})"

OVERVIEW = [
    number("GPUs", "GPUs known to NVML, including lost GPUs.", "short", Query(f"count({OK})")),
    number(
        "Unhealthy",
        "GPUs that are lost, failed, stalled, or need a recovery.",
        "short",
        Query(total(NOT_OK)),
        alarm=1,
    ),
    number(
        "In use",
        "Share of time in which any kernel ran, mean over all GPUs.",
        "percentunit",
        Query(f"avg({BUSY})"),
    ),
    number(
        "Memory",
        "Allocated share of the device memory of all GPUs.",
        "percentunit",
        Query(share(f"{total(gauge('hw_gpu_memory_usage_bytes'))} / {total(gauge('hw_gpu_memory_limit_bytes'))}")),
    ),
    number("Power", "Power draw of all boards.", "watt", Query(total(gauge("hw_power_watts")))),
    number(
        "Minimum thermal margin",
        "Distance to the thermal limit of the GPU that is closest to it; only newer GPUs report it.",
        "celsius",
        Query(f"min({gauge('gpu_temperature_margin_celsius')})"),
        alarm=3,
        below=True,
    ),
    rows(
        "GPUs",
        "Current state of each GPU. Use counts any kernel, however small; SMs and DRAM show how much of the GPU was "
        "in use, where the GPU reports it.",
        "short",
        COLUMNS,
        Query(per_gpu("hw_gpu_utilization_ratio", 'task="general"'), "Use", "percentunit"),
        Query(per_gpu("gpu_sm_active_ratio"), "SMs", "percentunit"),
        Query(per_gpu("gpu_dram_active_ratio"), "DRAM", "percentunit"),
        Query(per_gpu("hw_gpu_memory_usage_bytes"), "Memory", "bytes"),
        Query(per_gpu("hw_power_watts"), "Power", "watt"),
        Query(per_gpu("hw_temperature_celsius", 'sensor="gpu"'), "Temperature", "celsius"),
        Query(per_gpu("gpu_recovery_action"), "Recovery action", "short"),
    ),
]

USE = [
    lines("Utilisation", "Share of time in which a kernel ran, however small.", "percentunit", Query(BUSY, NAME)),
    lines(
        "Memory in use",
        "Device memory allocated, without what the driver keeps for itself.",
        "bytes",
        Query(gauge("hw_gpu_memory_usage_bytes"), NAME),
    ),
    lines(
        "SMs active and occupied",
        "Share of time in which an SM had a warp, and how full it was. Hopper and newer.",
        "percentunit",
        Query(gauge("gpu_sm_active_ratio"), f"{NAME} active"),
        Query(gauge("gpu_sm_occupancy_ratio"), f"{NAME} occupied"),
        width=THIRD,
    ),
    lines(
        "Pipes active",
        "Share of time in which tensor, FP64, FP32 and FP16 pipes worked: activity, not model FLOPs utilisation.",
        "percentunit",
        Query(gauge("gpu_tensor_active_ratio"), f"{NAME} tensor"),
        Query(gauge("gpu_fp64_active_ratio"), f"{NAME} FP64"),
        Query(gauge("gpu_fp32_active_ratio"), f"{NAME} FP32"),
        Query(gauge("gpu_fp16_active_ratio"), f"{NAME} FP16"),
        width=THIRD,
    ),
    lines(
        "Memory bandwidth in use",
        "Device memory traffic as a share of its peak. Hopper and newer.",
        "percentunit",
        Query(gauge("gpu_dram_active_ratio"), NAME),
        width=THIRD,
    ),
]

POWER = [
    lines(
        "Power",
        "Power draw of each board, and the enforced limit.",
        "watt",
        Query(gauge("hw_power_watts"), NAME),
        Query(gauge("gpu_power_limit_watts", 'limit="enforced"'), f"{NAME} limit"),
        width=THIRD,
    ),
    lines(
        "Mean power by energy",
        "Mean power calculated from the energy counter, which includes peaks between two samples.",
        "watt",
        Query(rising("hw_energy_joules_total"), NAME),
        width=THIRD,
    ),
    lines(
        "Clocks",
        "Frequency of the SMs.",
        "hertz",
        Query(gauge("gpu_clock_hertz", 'clock="sm"'), NAME),
        width=THIRD,
    ),
    lines(
        "Temperature",
        "Temperature of the GPU and of its memory.",
        "celsius",
        Query(gauge("hw_temperature_celsius"), f"{NAME} {{{{sensor}}}}"),
        width=THIRD,
    ),
    lines(
        "Margin",
        "Distance to the thermal limit; below zero above the limit.",
        "celsius",
        Query(gauge("gpu_temperature_margin_celsius"), NAME),
        width=THIRD,
        alarm=3,
        below=True,
    ).min(-20),
    lines(
        "Slowed down",
        "Share of time in which clocks were held down, by reason. Reasons overlap: do not add them up.",
        "percentunit",
        Query(f"clamp_max({rising('gpu_clock_slowed_seconds_total', 'reason')}, 1) > 0", f"{NAME} {{{{reason}}}}"),
        width=THIRD,
    ),
]

LINKS = [
    lines(
        "PCIe traffic",
        "Bytes per second, seen from the GPU.",
        "Bps",
        Query(gauge("gpu_pcie_throughput_bytes_per_second"), f"{NAME} {{{{direction}}}}"),
        width=THIRD,
    ),
    lines(
        "PCIe lanes missing",
        "PCIe lanes that the GPU and the slot support and that are not in use. The PCIe generation is no indication: "
        "it drops when the GPU is idle.",
        "short",
        Query(f"{per_gpu('gpu_pcie_width_max')} - {per_gpu('gpu_pcie_width')}", NAME),
        width=THIRD,
        alarm=1,
    ),
    lines(
        "PCIe replays and errors",
        "Packets sent again, and errors of all kinds.",
        "eps",
        Query(rising("gpu_pcie_replays_total"), f"{NAME} replays"),
        Query(f"{rising('gpu_pcie_errors_total')} > 0", f"{NAME} errors"),
        width=THIRD,
    ),
    lines(
        "NVLink traffic",
        "Bytes of data per second over all links, seen from the GPU.",
        "Bps",
        Query(rising("gpu_nvlink_io_bytes_total", "direction"), f"{NAME} {{{{direction}}}}"),
        width=THIRD,
    ),
    lines(
        "NVLinks down",
        "Links that are not active.",
        "short",
        Query(f"count by ({', '.join(WHICH)}) ({gauge('gpu_nvlink_link_up')} == 0)", NAME),
        width=THIRD,
        alarm=1,
    ),
    lines(
        "NVLink errors",
        "Errors and recoveries by kind.",
        "eps",
        Query(f"{rising('gpu_nvlink_link_errors_total', 'error')} > 0", f"{NAME} {{{{error}}}}"),
        width=THIRD,
    ),
]

HEALTH = [
    lines(
        "State",
        "1 for a state the GPU is in that is not ok.",
        "short",
        Query(f"{NOT_OK} == 1", f"{NAME} {{{{state}}}}"),
        width=THIRD,
        alarm=1,
    ),
    lines(
        "ECC errors",
        "Corrected and uncorrected ECC errors per second. A single uncorrected error is a fault.",
        "eps",
        Query(
            total(rate("hw_errors_total", *GPU, 'lifetime="volatile"'), *WHICH, "error_type"),
            f"{NAME} {{{{error_type}}}}",
        ),
        width=THIRD,
    ),
    lines(
        "Fabric conditions",
        "1 while a condition of the NVLink fabric holds.",
        "short",
        Query(f"{gauge('gpu_fabric_condition')} == 1", f"{NAME} {{{{condition}}}}"),
        width=THIRD,
        alarm=1,
    ),
    rows(
        "NVLink fabric",
        "State of the registration: 1 not started, 2 in progress, 3 completed; its clique, and 1 where it is in a "
        "cluster of several nodes.",
        "short",
        COLUMNS,
        Query(per_gpu("gpu_fabric_state"), "State"),
        Query(per_gpu("gpu_fabric_clique"), "Clique"),
        Query(per_gpu("gpu_fabric_cluster_assigned"), "Cluster"),
        width=THIRD,
    ),
    rows(
        "Memory repairs",
        "Memory rows remapped or waiting to be remapped, and pages retired on GPUs before Ampere. A GPU with a "
        "failure must be replaced.",
        "short",
        COLUMNS,
        Query(f"max by ({', '.join(WHICH)}) ({gauge('gpu_memory_row_remap_pending')})", "Rows pending"),
        Query(per_gpu("gpu_memory_row_remap_failure"), "Remap failed"),
        Query(per_gpu("gpu_memory_row_remap_banks", 'spare_rows="none"'), "Banks without spares"),
        Query(per_gpu("gpu_memory_retired_pages_pending"), "Pages pending"),
        width=THIRD,
    ),
    rows(
        "Xids",
        "Xids that the driver reported, how long ago, and the action that NVIDIA's catalog recommends.",
        "s",
        {**COLUMNS, "xid": "Xid", "action": "Action", "category": "Kind"},
        Query(XID_AGO, "Ago"),
        width=THIRD,
    ),
    lines(
        "Xids over time",
        "Xids per second.",
        "eps",
        Query(rising("gpu_xid_errors_total", "xid"), f"{NAME} Xid {{{{xid}}}}"),
        width=FULL,
    ),
]

WHO = [
    lines(
        "Memory by process",
        "Device memory of each process as NVML reports it: allocations, context and modules.",
        "bytes",
        Query(total(of_processes("gpu_process_memory_usage_bytes"), *PROCESS), PROCESS_NAME),
        stacked=True,
    ),
    lines(
        "SMs by process",
        "Share of time in which SMs worked for the process. Not on MIG.",
        "percentunit",
        Query(share(total(of_processes("gpu_process_utilization_ratio", 'engine="sm"'), *PROCESS)), PROCESS_NAME),
    ),
    rows(
        "Processes",
        "Processes on each GPU.",
        "short",
        PROCESS_COLUMNS,
        Query(total(of_processes("gpu_process_memory_usage_bytes"), *PROCESS), "Memory", "bytes"),
        Query(
            share(total(of_processes("gpu_process_utilization_ratio", 'engine="sm"'), *PROCESS)), "SMs", "percentunit"
        ),
        width=HALF,
    ),
    rows(
        "Allocated to",
        "Jobs to which the kubelet or Slurm has allocated the GPU, used or not.",
        "short",
        {
            **COLUMNS,
            "workload": "Workload",
            "namespace": "Namespace",
            "pod": "Pod",
            "container": "Container",
            "resource": "Resource",
            "slurm_job_id": "Slurm job",
        },
        Query(
            f"max by (instance, gpu, workload, namespace, pod, container, resource, slurm_job_id) ({GIVEN})",
            "Allocated",
            hidden=True,
        ),
        width=HALF,
    ),
]


OF_AMD = [
    lines(
        "Use of AMD GPUs",
        "Share of time in which the engine (gpu) or the memory (vram) was in use, as the GPU's firmware estimates it.",
        "percentunit",
        Query(select("gpu_amd_busy_ratio"), f"{AMD} {{{{engine}}}}"),
        width=THIRD,
    ),
    lines(
        "Memory of AMD GPUs",
        "Bytes in use of the GPU's memory, and its size.",
        "bytes",
        Query(select("gpu_amd_memory_usage_bytes", 'memory="vram"'), AMD),
        Query(select("gpu_amd_memory_limit_bytes", 'memory="vram"'), f"{AMD} size"),
        width=THIRD,
    ),
    lines(
        "Power of AMD GPUs",
        "Power of each GPU, average or momentary, and its limit. On APUs it includes the CPU.",
        "watt",
        Query(select("gpu_amd_power_watts"), f"{AMD} {{{{kind}}}}"),
        Query(select("gpu_amd_power_limit_watts"), f"{AMD} limit"),
        width=THIRD,
    ),
    lines(
        "Temperature of AMD GPUs",
        "Temperature by sensor: edge, junction (the hottest place) or mem.",
        "celsius",
        Query(select("gpu_amd_temperature_celsius"), f"{AMD} {{{{sensor}}}}"),
        width=THIRD,
    ),
    lines(
        "Clocks of AMD GPUs",
        "Clock frequency: sclk of the engine, mclk of the memory.",
        "hertz",
        Query(select("gpu_amd_clock_hertz"), f"{AMD} {{{{clock}}}}"),
        width=THIRD,
    ),
    lines(
        "PCIe replays of AMD GPUs",
        "PCIe packets retransmitted.",
        "eps",
        Query(total(rate("gpu_amd_pcie_replays_total"), "instance", "pci_bus_id"), AMD),
        width=THIRD,
    ),
    lines(
        "Errors of AMD GPUs",
        "Errors found by block of the GPU: umc is memory. Deferred errors are in data that nothing has used yet.",
        "eps",
        Query(
            total(rate("gpu_amd_ras_errors_total"), "instance", "pci_bus_id", "block", "error_type") + " > 0",
            f"{AMD} {{{{block}}}} {{{{error_type}}}}",
        ),
        width=HALF,
    ),
    lines(
        "Memory by process of AMD GPUs",
        "Bytes of the GPU's memory that each process has by amdkfd: what HIP and others allocated, not graphics.",
        "bytes",
        Query(
            total(now_of("gpu_amd_process_memory_usage_bytes"), "pci_bus_id", *PROCESS[2:], "instance"),
            "{{pci_bus_id}} {{workload}} {{namespace}} {{pod}} {{slurm_job_id}} {{comm}} {{pid}} {{instance}}",
        ),
        stacked=True,
        width=HALF,
    ),
    rows(
        "Links between AMD GPUs",
        "Links that amdkfd lists, with the bandwidth one way that it has from the firmware. Nothing is measured.",
        "short",
        {"instance": "Instance", "pci_bus_id": "GPU", "peer_pci_bus_id": "Peer", "link": "Link"},
        Query(
            f"max by (instance, pci_bus_id, peer_pci_bus_id, link) ({select('gpu_amd_link_info')})", "Link", hidden=True
        ),
        Query(
            "max by (instance, pci_bus_id, peer_pci_bus_id, link) "
            f"({select('gpu_amd_link_bandwidth_max_bytes_per_second')})",
            "Bandwidth",
            "Bps",
        ),
        width=HALF,
    ),
    lines(
        "AMD GPUs suspended",
        "1 while the kernel has suspended the GPU: its sensors and errors are not read then.",
        "short",
        Query(select("gpu_amd_suspended"), AMD),
        width=HALF,
    ),
]

DETAILS = [
    lines(
        "NVLink errors by link",
        "Errors and recoveries by link and kind.",
        "eps",
        Query(f"{rising('gpu_nvlink_link_errors_total', 'link', 'error')} > 0", f"{NAME} {{{{link}}}} {{{{error}}}}"),
        width=FULL,
    ),
]


def dashboard() -> Dashboard:
    return board(
        "accel-exporter-gpu",
        "GPUs",
        "Are the GPUs busy, hot, throttled or broken? From NVML, the kernel and the schedulers.",
        [workloads(), choice("gpu", "GPU", f"label_values({select('hw_status')}, gpu)", every=".*")],
        {
            "Overview": OVERVIEW,
            "Use": USE,
            "Power and heat": POWER,
            "PCIe and NVLink": LINKS,
            "Health": HEALTH,
            "Processes and jobs": WHO,
            "AMD GPUs": OF_AMD,
            DETAIL: DETAILS,
        },
    )
