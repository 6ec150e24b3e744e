"""Dashboards on a node without the hardware: a text in an empty panel, and rows that are closed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from grafana_foundation_sdk.models import dashboard as models

WITHOUT = {
    "nccl_ras_": "No data. NCCL's RAS is read in the host's network namespace, from NCCL 2.24 on.",
    "gpu_nvlink_": "No data. GPUs without NVLinks have none.",
    "nixl_": "No data. Processes that transfer nothing with NIXL have none.",
    "ucx_": "No data. Only with --collector.ucx, from processes that use UCX.",
    "gpu_hip_": "No data. Only with --collector.hip, from processes that use AMD's HIP.",
    "gpu_amd_": "No data. Only with --collector.amdgpu, of GPUs of the kernel's driver amdgpu.",
    "gpu_fabric_": "No data. GPUs without an NVSwitch have none.",
    "gpu_sm_": "No data. NVML has it from Hopper on.",
    "gpu_tensor_": "No data. NVML has it from Hopper on.",
    "gpu_dram_": "No data. NVML has it from Hopper on.",
    "rdma_pfc_": "No data. Ethernet ports have it, in the host's network namespace.",
    "rdma_pci_": "No data. The driver mlx5 has it, in the host's network namespace.",
    "rdma_": "No data. Nodes without RDMA devices have none.",
    "accel_node_edac_": "No data. The kernel has no driver for this memory controller.",
    "accel_node_nvme_": "No data. Nodes without NVMe drives have none.",
}
"""Beginning of a metric's name to what an empty panel on it shows; the first that is in a query counts."""


def empty(expressions: Iterable[str]) -> str:
    """Return the text of an empty panel with these queries; empty for metrics that every node has."""
    text = " ".join(expressions)
    return next((shown for name, shown in WITHOUT.items() if name in text), "")


def into_closed(panels: Iterable[models.Panel | models.RowPanel]) -> Iterator[models.Panel | models.RowPanel]:
    """The rows and panels, those below a closed row inside it."""
    row = None
    for panel in panels:
        if isinstance(panel, models.RowPanel):
            row = panel if panel.collapsed else None
            yield panel
        elif row is None:
            yield panel
        else:
            row.panels.append(panel)
