"""Incidents of many nodes at once: of their switch, known or not, and of their power."""

from __future__ import annotations

from collections.abc import Iterator

from tests.e2e.incidents.incident import STANDS, Incident, Notice, link_series, node_series, rank_series


def topology() -> Iterator[Incident]:
    """Yield incidents of links with switches that only the exporter knows: no target has a label of them."""
    leaf: dict[str, str] = {}
    for number in range(8):
        leaf |= link_series(f"n{number}", "4x20 1x15 4x25" if number < 4 else "4x60")
        leaf |= {f'accel_node_topology_info{{instance="n{number}",leaf="leaf{number // 4}"}}': "1x60"}
    yield Incident("leaf-of-the-topology-reboots", leaf, (Notice("SwitchSuspected", "leaf0", 32),))

    # The switch is not known: all links are one page.
    unknown: dict[str, str] = {}
    for number in range(8):
        unknown |= link_series(f"n{number}", "4x20 1x15 4x25" if number < 4 else "4x60")
    yield Incident("leaf-of-no-topology-reboots", unknown, (Notice("RdmaLinkDown", "on n", 32),))

    # Each job has half of its nodes on the switch, which stands for both. After a reboot a job that hangs on is a page.
    again = Notice("NcclHang", "Workload train ", 44)
    for name, state, pods, pages in (
        ("switch-stops-two-jobs", "4x10 1x50", ("train", "tune"), ()),
        ("switch-reboots-and-a-job-hangs-on", "4x10 1x10 4x40", ("train",), (again,)),
    ):
        hurt: dict[str, str] = {}
        for number in range(4 * len(pods)):
            node, on = f"n{number}", number % 4 // 2
            hurt |= link_series(node, "4x60" if on else state)
            hurt |= {f'accel_node_topology_info{{instance="{node}",leaf="leaf{on}"}}': "1x60"}
            hurt |= rank_series(node, f"{pods[number // 4]}-worker-{number % 4}", STANDS, 2, "0x10 1x50")
        yield Incident(name, hurt, (Notice("SwitchSuspected", "leaf0", 22), *pages))

    rails = node_series("n1")
    for number in range(8):
        device = f"mlx5_{number}"
        rails |= link_series("n1", "4x10 1x50", device=device) | link_series("n2", "4x60", device=device)
        for node in ("n1", "n2"):
            rails |= {f'rdma_device_topology_info{{instance="{node}",device="{device}",leaf="leaf{number}"}}': "1x60"}
    yield Incident("node-loses-the-links-of-all-rails", rails, (Notice("RdmaLinkDown", "on n1.", 22),))

    power = {f'up{{instance="p{it}"}}': "1x10 0x50" if it else "1x60" for it in range(6)}
    yield Incident(
        "most-nodes-lose-power",
        power,
        (Notice("AccelExporterAbsent", "not scraped on most instances", 31),),
        (Notice("AccelExporterDown", "on p", 27),),
    )
