"""One node: its GPUs and who is on them, its links, its sensors and everything that went wrong with it."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.labels import legend
from dashboards.parts import DETAIL, HALF, THIRD, Query, board, lines, number, rate, rows, select, total
from dashboards.workloads import allocated_to, now_of, rate_of, workloads

GPU = ("instance", "gpu")
NAME = "GPU {{gpu}} {{instance}}"
PORT = ("instance", "device", "port")
PORT_NAME = legend("device", "port", "instance")
PCI = ("instance", "pci_bus_id", "kind")
JOB = ("instance", "workload", "namespace", "pod", "container", "slurm_job_id", "comm", "pid")
OWNER = ("instance", "gpu", "workload", "namespace", "pod", "container", "slurm_job_id")
FAULT = select("accel_node_fault_last_timestamp_seconds")
OUT_OF_LIMITS = f"{select('accel_node_hwmon_alarm')} == 1 or {select('accel_node_ipmi_sensor_state')} == 2"
SLOWING = 'reason=~"(hw_|sw_)?thermal|hw_power_brake"'
NARROW = f"{select('accel_node_pci_link_width_max')} - {select('accel_node_pci_link_width')}"
FEWER = f"{select('link:accel_node_pci_link_width:best')} - {select('accel_node_pci_link_width')}"


def per(labels: tuple[str, ...], metric: str, *matchers: str) -> str:
    """A gauge's one value by labels."""
    return f"max by ({', '.join(labels)}) ({select(metric, *matchers)})"


def rising(labels: tuple[str, ...], metric: str, *matchers: str) -> str:
    return total(rate(metric, *matchers), *labels)


OVERVIEW = [
    number(
        "Uptime",
        "Time since the last boot; the shortest of the chosen nodes.",
        "s",
        Query(f"time() - max({select('accel_node_boot_timestamp_seconds')})"),
    ),
    number(
        "Healthy GPUs", "GPUs that answer and need no action.", "short", Query(total(select("hw_status", 'state="ok"')))
    ),
    number(
        "Unhealthy GPUs",
        "GPUs that are lost, failed, stalled, or need a recovery.",
        "short",
        Query(total(select("hw_status", 'state!="ok"'))),
        alarm=1,
    ),
    number(
        "RDMA links down",
        "Ports that were active before and are not now; one without a cable is none of them.",
        "short",
        Query(f"count({select('rdma_link_state')} < 4 and {select('port:rdma_link_state:best')} >= 4) or vector(0)"),
        alarm=1,
    ),
    number(
        "Distinct faults",
        "Kinds of faults seen within the last day.",
        "short",
        Query(f"count(time() - {FAULT} < 86400) or vector(0)"),
        alarm=1,
    ),
    number(
        "Sensor alarms",
        "Temperatures, fans, voltages and power supplies out of their limits, as the machine reports.",
        "short",
        Query(
            f"count({OUT_OF_LIMITS}) or 0 * count({select('accel_node_hwmon_alarm')} or "
            f"{select('accel_node_ipmi_sensor_state')})"
        ),
        alarm=1,
    ),
]

GPUS = [
    rows(
        "GPUs",
        "Current state of each GPU, and the action that the driver requests: 1 GPU reset, 2 node reboot, 4 drain and "
        "reset.",
        "short",
        {"instance": "Instance", "gpu": "GPU"},
        Query(per(GPU, "hw_gpu_utilization_ratio", 'task="general"'), "Use", "percentunit"),
        Query(per(GPU, "gpu_tensor_active_ratio"), "Tensor", "percentunit"),
        Query(per(GPU, "hw_gpu_memory_usage_bytes"), "Memory", "bytes"),
        Query(per(GPU, "hw_gpu_memory_limit_bytes"), "Of", "bytes"),
        Query(per(GPU, "hw_power_watts"), "Power", "watt"),
        Query(per(GPU, "hw_temperature_celsius", 'sensor="gpu"'), "Temperature", "celsius"),
        Query(per(GPU, "gpu_pcie_width"), "PCIe lanes"),
        Query(per(GPU, "gpu_recovery_action"), "Action", alarm=1),
    ),
    lines(
        "Use",
        "Share of time in which a kernel ran, however small.",
        "percentunit",
        Query(select("hw_gpu_utilization_ratio", 'task="general"'), NAME),
        width=THIRD,
    ),
    lines(
        "Power",
        "Power draw of each board.",
        "watt",
        Query(select("hw_power_watts"), NAME),
        width=THIRD,
        stacked=True,
    ),
    lines(
        "Temperature",
        "Temperature of each sensor of the GPUs.",
        "celsius",
        Query(select("hw_temperature_celsius"), f"{{{{sensor}}}} {NAME}"),
        width=THIRD,
    ),
    lines(
        "Memory in use",
        "Device memory allocated, without what the driver keeps for itself.",
        "bytes",
        Query(select("hw_gpu_memory_usage_bytes"), NAME),
        width=THIRD,
    ),
    lines(
        "Slowed down",
        "Share of time in which heat or the power brake held clocks down, by reason. Reasons overlap.",
        "percentunit",
        Query(
            f"clamp_max({rising((*GPU, 'reason'), 'gpu_clock_slowed_seconds_total', SLOWING)}, 1)",
            f"{{{{reason}}}} {NAME}",
        ),
        width=THIRD,
        alarm=0.05,
    ),
    lines(
        "NVLink traffic",
        "Bytes of data per second over all links, seen from the GPU.",
        "Bps",
        Query(rising((*GPU, "direction"), "gpu_nvlink_io_bytes_total"), f"{{{{direction}}}} {NAME}"),
        width=THIRD,
    ),
]

JOBS = [
    rows(
        "Processes",
        "Memory that the probes saw allocated, memory that NVML reports, launches, and waits for the GPU (several "
        "threads can exceed 100 %).",
        "short",
        {
            "instance": "Instance",
            "workload": "Workload",
            "namespace": "Namespace",
            "pod": "Pod",
            "container": "Container",
            "slurm_job_id": "Slurm job",
            "comm": "Command",
            "pid": "PID",
        },
        Query(
            total(now_of("gpu_cuda_memory_usage_bytes", 'api_layer="driver"', 'memory!="pinned_host"'), *JOB),
            "Allocated",
            "bytes",
        ),
        Query(total(now_of("gpu_process_memory_usage_bytes"), *JOB), "Held", "bytes"),
        Query(total(rate_of("gpu_cuda_kernel_launch_calls_total", 'api_layer="driver"'), *JOB), "Launches", "ops"),
        Query(total(rate_of("gpu_cuda_sync_wait_seconds_sum", 'api_layer="driver"'), *JOB), "Waiting", "percentunit"),
        Query(total(rate_of("nccl_collective_bus_bytes_total"), *JOB), "NCCL bus", "Bps"),
        Query(total(rate_of("rdma_send_bytes_total"), *JOB), "RDMA sent", "Bps"),
    ),
    rows(
        "Allocated GPUs",
        "Jobs to which the kubelet or Slurm has allocated each GPU, used or not.",
        "short",
        {
            "instance": "Instance",
            "gpu": "GPU",
            "workload": "Workload",
            "namespace": "Namespace",
            "pod": "Pod",
            "container": "Container",
            "slurm_job_id": "Slurm job",
        },
        Query(
            f"max by ({', '.join(OWNER)}) ({allocated_to()})",
            "Allocated",
            hidden=True,
        ),
    ),
]

LINKS = [
    lines(
        "RDMA sent and received",
        "Bytes of all traffic of each port, by the port's own counters.",
        "Bps",
        Query(rising(PORT, "rdma_port_io_bytes_total", 'direction="transmit"'), f"sent {PORT_NAME}"),
        Query(rising(PORT, "rdma_port_io_bytes_total", 'direction="receive"'), f"received {PORT_NAME}"),
        width=THIRD,
    ),
    lines(
        "RDMA loss",
        "Negative acknowledgements received over packets sent, by kind; rnr is a receiver without buffers, not loss.",
        "percentunit",
        Query(select("rdma_nack_ratio"), f"{{{{kind}}}} {PORT_NAME}"),
        width=THIRD,
    ),
    lines(
        "RDMA link state",
        "4 is active; 1 down, 2 init, 3 armed.",
        "short",
        Query(select("rdma_link_state"), PORT_NAME),
        width=THIRD,
    ),
    rows(
        "PCIe links",
        "GPUs, NICs and drives: lanes in use, and how many fewer than before, as the alert's recorded series has it.",
        "short",
        {"instance": "Instance", "kind": "Kind", "pci_bus_id": "Address"},
        Query(per(PCI, "accel_node_pci_link_width"), "Lanes"),
        Query(f"max by ({', '.join(PCI)}) ({FEWER})", "Fewer", alarm=1),
        width=HALF,
    ),
    lines(
        "PCIe errors",
        "Errors per second that PCIe devices report by AER (Advanced Error Reporting).",
        "eps",
        Query(
            rising((*PCI, "type"), "accel_node_pci_aer_errors_total"), "{{type}} {{kind}} {{pci_bus_id}} {{instance}}"
        ),
        width=HALF,
    ),
]

FAULTS = [
    rows(
        "Faults",
        "The newest fault of each kind since the node started, with its row of the Llama 3 table.",
        "s",
        {"instance": "Instance", "category": "Category", "signal": "Signal", "component": "Component"},
        Query(f"time() - max by (instance, category, signal, component) ({FAULT})", "Ago"),
        Query(
            f"max by (instance, category, signal, component) ({select('accel_node_fault_replayed')})",
            "Before the exporter",
            "short",
        ),
        width=HALF,
    ),
    lines(
        "Faults per second",
        "Each line of the kernel log, each error of a counter, each crash counts.",
        "eps",
        Query(
            rising(("instance", "category", "signal"), "accel_node_fault_total"), "{{category}} {{signal}} {{instance}}"
        ),
        width=HALF,
    ),
    rows(
        "Xids",
        "Xids that NVIDIA's driver reported, how long ago, and the recommended action.",
        "s",
        {"instance": "Instance", "gpu": "GPU", "xid": "Xid", "category": "Category", "action": "Action"},
        Query(
            f"time() - max by (instance, gpu, xid, category, action) ({select('gpu_xid_last_timestamp_seconds')})",
            "Ago",
        ),
        width=HALF,
    ),
    rows(
        "Unavailable sources",
        "Sources of faults that this node lacks, or that the exporter may not read.",
        "short",
        {"instance": "Instance", "source": "Source"},
        Query(
            f"min by (instance, source) ({select('accel_node_fault_source_available')}) == 0", "Readable", hidden=True
        ),
        width=HALF,
    ),
]

MACHINE = [
    lines(
        "Memory errors",
        "Corrected and uncorrected errors per second of each module, as the memory controller counts them.",
        "eps",
        Query(
            rising(("instance", "controller", "dimm", "type"), "accel_node_edac_errors_total"),
            "{{type}} {{dimm}} {{controller}} {{instance}}",
        ),
        width=THIRD,
    ),
    lines(
        "Drives",
        "Share of the rated endurance that is used, and share of the spare blocks that is left.",
        "percentunit",
        Query(select("accel_node_nvme_used_ratio"), "used {{device}} {{instance}}"),
        Query(select("accel_node_nvme_spare_ratio"), "spare {{device}} {{instance}}"),
        width=THIRD,
    ),
    lines(
        "Sensor alarms",
        "1 while a sensor of the machine is out of its limits; the management controller's: 1 warning, 2 critical.",
        "short",
        Query(f"{select('accel_node_hwmon_alarm')} == 1", "{{chip}} {{sensor}} {{instance}}"),
        Query(f"{select('accel_node_ipmi_sensor_state')} > 0", "{{sensor}} {{instance}}"),
        width=THIRD,
    ),
    rows(
        "Devices",
        "Working GPUs, NVLinks and ports, and the numbers that --collector.faults.expected sets for the node.",
        "short",
        {"instance": "Instance", "kind": "Kind"},
        Query(f"max by (instance, kind) ({select('instance_kind:hw_status:active')})", "Working"),
        Query(per(("instance", "kind"), "accel_node_devices_expected"), "Expected"),
        width=THIRD,
    ),
    rows(
        "Services of the driver",
        "1 while a process of the service runs: fabricmanager, imex, persistenced. Not every node needs each of them.",
        "short",
        {"instance": "Instance", "service": "Service"},
        Query(per(("instance", "service"), "accel_node_service_running"), "Running"),
        width=THIRD,
    ),
    lines(
        "GPU processes stuck in the kernel",
        "Processes on GPUs with a thread that has not run for a minute, in state D.",
        "short",
        Query(select("gpu_processes_blocked"), "{{instance}}"),
        width=THIRD,
        alarm=1,
    ),
    lines(
        "Greatest error of the clock",
        "Maximum clock error that the kernel reports; no line while the clock is not synchronized.",
        "s",
        Query(select("accel_node_clock_max_error_seconds"), "{{instance}}"),
        width=HALF,
        alarm=0.5,
    ),
    rows(
        "Drives with warnings",
        "The critical warning of SMART: 1 spare low, 2 temperature, 4 reliability, 8 read only, 16 backup, added up; "
        "and media errors per second.",
        "short",
        {"instance": "Instance", "device": "Drive"},
        Query(f"{per(('instance', 'device'), 'accel_node_nvme_critical_warning')} > 0", "Warning", alarm=1),
        Query(
            f"{rising(('instance', 'device'), 'accel_node_nvme_media_errors_total')} > 0",
            "Media errors",
            "eps",
            alarm=0,
        ),
        width=HALF,
    ),
]


DETAILS = [
    rows(
        "PCIe links, current and maximum",
        "Lanes that the device supports and that are not in use, and the speed of a lane in GT/s, which GPUs lower "
        "when idle.",
        "short",
        {"instance": "Instance", "kind": "Kind", "pci_bus_id": "Address"},
        Query(f"max by ({', '.join(PCI)}) ({NARROW})", "Missing", alarm=1),
        Query(per(PCI, "accel_node_pci_link_speed"), "GT/s"),
    ),
]


def dashboard() -> Dashboard:
    return board(
        "accel-exporter-node",
        "Node",
        "What does this node do, and is it healthy? GPUs and their processes, links, sensors, faults.",
        [workloads()],
        {
            "Overview": OVERVIEW,
            "GPUs": GPUS,
            "Jobs": JOBS,
            "Links": LINKS,
            "Faults": FAULTS,
            "Machine": MACHINE,
            DETAIL: DETAILS,
        },
    )
