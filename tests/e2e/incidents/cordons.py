"""Nodes on which devices fail while they are in maintenance or cordoned."""

from __future__ import annotations

from tests.e2e.incidents.incident import node_series

CORDONED = "gpu-1"
"""The exporter's instance on a node of Kubernetes: the node's name, as the chart's monitors set it."""


def broken_node(instance: str) -> dict[str, str]:
    """A node on which a GPU, a NIC and the fabric manager fail in minute 10."""
    gpu = f'instance="{instance}",gpu="1",gpu_uuid="{instance}-1"'
    xid = f'{gpu},pci_bus_id="0000:3B:00.0",xid="79",action="RESTART_BM"'
    nic = f'instance="{instance}",category="nic",component="0000:18:00.0",signal="nic_health_compromised"'
    return node_series(instance) | {
        f"gpu_xid_last_timestamp_seconds{{{xid}}}": "_x10 600x50",
        f'hw_status{{{gpu},hw_type="gpu",state="ok"}}': "1x10 0x50",
        f"accel_node_fault_last_timestamp_seconds{{{nic}}}": "_x10 600x50",
        f'accel_node_service_running{{instance="{instance}",service="fabricmanager"}}': "1x10 0x50",
    }


def cordoned_node(unschedulable: str) -> dict[str, str]:
    """A node of Kubernetes with a lost GPU, as it and kube-state-metrics show it."""
    gpu = f'instance="{CORDONED}",gpu="1",gpu_uuid="{CORDONED}-1"'
    xid = f'{gpu},pci_bus_id="0000:3B:00.0",xid="79",action="RESTART_BM"'
    return node_series(CORDONED) | {
        f'kube_node_spec_unschedulable{{instance="10.0.0.9:8080",node="{CORDONED}"}}': unschedulable,
        f"gpu_xid_last_timestamp_seconds{{{xid}}}": "_x10 600x50",
        f'hw_status{{{gpu},hw_type="gpu",state="ok"}}': "1x10 0x50",
    }
