"""Reader of the sysfs files of the kernel driver amdkfd: links between AMD GPUs, and GPU memory of each process.

Kernel sources in drivers/gpu/drm/amd/amdkfd: kfd_topology.c, kfd_process.c, and kfd_crat.h for the types of links.
Files that the device cgroup of the exporter hides yield no samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.amdgpu import metrics
from exporter.amdgpu.sysfs import BUS_ID, number
from exporter.amdgpu.sysfs import cards as names
from exporter.model import Labels, Sample
from exporter.small_files import content, entries

MOST_NODES, MOST_LINKS, MOST_PROCESSES = 256, 256, 4096
LINKS = {11: "xgmi", 2: "pcie"}
"""CRAT_IOLINK_TYPE_…; others lead to no GPU."""
_FOLDER = "class/kfd/kfd"
_PROPERTY = re.compile(r"^([a-z0-9_]{1,32}) ([0-9]{1,20})$", re.ASCII | re.MULTILINE)
_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)
_VRAM = re.compile(r"vram_([0-9]{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class KfdGpu:
    """A node with a GPU or a partition of one: the id that names of files have, the driver's unique id (0: none), and
    the labels of the GPU, which are empty where its card is not known.
    """

    id: int
    unique_id: int
    labels: Labels


@dataclass(frozen=True, slots=True)
class KfdTopology:
    """GPUs by node, by id, and in the order of the nodes; a GPU that is partitioned has several of each."""

    by_node: Mapping[int, Labels]
    by_id: Mapping[int, Labels]
    gpus: tuple[KfdGpu, ...] = ()


def present(sys: Path) -> bool:
    """Return whether the kernel has the driver."""
    return (sys / _FOLDER / "topology/nodes").is_dir()


def read(sys: Path) -> list[Sample]:
    """Read links, and the memory of processes, of which samples have the pid alone. Raises OSError without DRM."""
    known = topology(sys)
    return [*links(sys, known), *processes(sys, known)]


def topology(sys: Path) -> KfdTopology:
    """Read which GPUs there are. Raises OSError where the kernel has no DRM."""
    cards = {(sys / "class/drm" / card / "device").resolve().name: card for card in names(sys)}
    by_node: dict[int, Labels] = {}
    by_id: dict[int, Labels] = {}
    gpus: list[KfdGpu] = []
    for folder in _numbered(sys / _FOLDER / "topology/nodes", MOST_NODES):
        if gpu_id := number(folder / "gpu_id"):  # 0 is a CPU
            found = _properties(folder / "properties")
            bus_id = _bus_id(sys, found)
            labels = {"card": cards[bus_id], "pci_bus_id": bus_id} if bus_id in cards else {}
            if labels:
                by_node[int(folder.name)] = by_id[gpu_id] = labels
            gpus.append(KfdGpu(gpu_id, found.get("unique_id", 0), labels))
    return KfdTopology(by_node, by_id, tuple(gpus))


def links(sys: Path, known: KfdTopology) -> Iterator[Sample]:
    """Yield the links between two GPUs, each way once: those of partitions of the same two GPUs are one."""
    seen = set[tuple[str, str, str]]()
    for node, gpu in known.by_node.items():
        folder = sys / _FOLDER / "topology/nodes" / str(node)
        for link in [it for kind in ("io_links", "p2p_links") for it in _numbered(folder / kind, MOST_LINKS)]:
            found = _properties(link / "properties")
            peer, kind = known.by_node.get(found.get("node_to", -1)), LINKS.get(found.get("type", 0))
            if peer is None or kind is None or peer == gpu:
                continue
            key = gpu["pci_bus_id"], peer["pci_bus_id"], kind
            if key in seen:
                continue
            seen.add(key)
            labels = {**gpu, "peer_pci_bus_id": peer["pci_bus_id"], "link": kind}
            yield metrics.LINK.sample(1, labels)
            if bandwidth := found.get("max_bandwidth"):  # 0 is unknown
                yield metrics.LINK_BANDWIDTH.sample(bandwidth * 1_000_000, labels)


def processes(sys: Path, known: KfdTopology) -> Iterator[Sample]:
    """Yield what each process has of each GPU, of all its partitions together."""
    for folder in _numbered(sys / _FOLDER / "proc", MOST_PROCESSES):
        sizes: dict[str, tuple[Labels, int]] = {}
        for gpu_id, size in memory(folder).items():
            gpu = known.by_id.get(gpu_id)
            if gpu is not None and size is not None:
                sizes[gpu["pci_bus_id"]] = gpu, size + sizes.get(gpu["pci_bus_id"], (gpu, 0))[1]
        for gpu, size in sizes.values():
            yield metrics.PROCESS_MEMORY.sample(size, {**gpu, "pid": folder.name})


def used(sys: Path) -> Mapping[int, Mapping[int, int | None]]:
    """Return the memory of each process by pid, as `memory` does."""
    folders = _numbered(sys / _FOLDER / "proc", MOST_PROCESSES)
    return {int(folder.name): memory(folder) for folder in folders}


def memory(folder: Path) -> Mapping[int, int | None]:
    """Return the bytes that a process has of each GPU that it may open, by the GPU's id; None where unreadable."""
    return {int(named[1]): number(file) for file in entries(folder) if (named := _VRAM.fullmatch(file.name))}


def _numbered(folder: Path, most: int) -> list[Path]:
    """Return what has a number for its name, by number."""
    found = [it for it in entries(folder) if _DIGITS.fullmatch(it.name)]
    return sorted(found, key=lambda path: int(path.name))[:most]


def _properties(path: Path) -> Mapping[str, int]:
    try:
        return {name: int(value) for name, value in _PROPERTY.findall(content(path))}
    except OSError:
        return {}


def _bus_id(sys: Path, found: Mapping[str, int]) -> str:
    """Return a node's PCI address: that of its render node. A partition has none there, and its GPU is function 0."""
    device = (sys / f"class/drm/renderD{found.get('drm_render_minor', 0)}/device").resolve().name
    if BUS_ID.fullmatch(device) or "location_id" not in found:
        return device
    location = found["location_id"]
    return f"{found.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.0"
