"""Links between AMD GPUs and the memory of processes are read from trees of files as the kernel's amdkfd makes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.amdgpu import kfd, sysfs
from exporter.collectors import amdgpu as module
from exporter.resolve.process import ProcessTable
from tests.nodes import make_node
from tests.unit.amdgpu.trees import HYPERTRANSPORT, PCIE, XGMI, Tree

pytestmark = pytest.mark.evidence(feature="AMD GPUs", on="stand-in")

FIRST, SECOND = "0000:c1:00.0", "0000:c2:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A CPU and two GPUs with a link of XGMI between them, and links of PCIe to the CPU."""
    made = Tree(tmp_path / "sys")
    made.card("card1", FIRST)
    made.card("card2", SECOND)
    made.node(0, 0)
    made.node(1, 51110, FIRST, 128, location_id=0xC100, domain=0)
    made.node(2, 8095, SECOND, 129, location_id=0xC200, domain=0)
    for source, target in ((0, 1), (0, 2), (1, 0), (2, 0)):
        made.link(source, target, PCIE, 64_000)
    made.link(1, 2, XGMI, 128_000)
    made.link(2, 1, XGMI)
    return made


def found(tree: Tree, name: str) -> dict[tuple[str, ...], object]:
    """Values of a metric by its labels, in order of their names."""
    samples = [it for it in kfd.read(tree.sys) if it.metric.name == f"gpu.amd.{name}"]
    values = {tuple(it.labels[label] for label in sorted(it.labels)): it.value for it in samples}
    assert len(values) == len(samples)
    return values


def test_links(tree: Tree) -> None:
    """Links between GPUs, each way, by their PCI addresses; a bandwidth of 0 is none."""
    links = {("card1", "xgmi", FIRST, SECOND): 1, ("card2", "xgmi", SECOND, FIRST): 1}
    assert links == found(tree, "link.info")
    assert {("card1", "xgmi", FIRST, SECOND): 128_000_000_000} == found(tree, "link.bandwidth.max")


def test_links_of_another_kind(tree: Tree) -> None:
    """PCIe between two GPUs is in a folder of its own; other kinds, and nodes that are not there, lead nowhere."""
    tree.link(1, 2, PCIE, 32_000, "p2p_links")
    tree.link(1, 2, HYPERTRANSPORT)
    tree.link(1, 7, XGMI)
    kinds = [labels[1] for labels in found(tree, "link.info")]
    assert ["pcie", "xgmi", "xgmi"] == sorted(map(str, kinds))


def test_memory_of_processes(tree: Tree) -> None:
    """By process and GPU, 0 too; ids that no GPU has are left out."""
    tree.process(4711, gpu_51110=23 << 20, gpu_8095=0, gpu_99=5)
    tree.process(4712, gpu_8095=4096)
    (tree.sys / "class/kfd/kfd/proc/self").mkdir()
    assert {
        ("card1", FIRST, "4711"): 23 << 20,
        ("card2", SECOND, "4711"): 0,
        ("card2", SECOND, "4712"): 4096,
    } == found(tree, "process.memory.usage")


def test_a_gpu_in_partitions(tree: Tree) -> None:
    """A second node without a PCI device at its render node: memory is that of the GPU, and links are listed once."""
    partition = tree.sys / "devices/platform/amdgpu_xcp_0"
    partition.mkdir(parents=True)
    tree.node(3, 600, minor=130, location_id=0xC201, domain=0)
    (tree.sys / "class/drm/renderD130").mkdir()
    (tree.sys / "class/drm/renderD130/device").symlink_to(partition)
    tree.link(2, 3, XGMI)
    tree.link(3, 1, XGMI)
    tree.process(4711, gpu_8095=100, gpu_600=11)
    assert {("card2", SECOND, "4711"): 111} == found(tree, "process.memory.usage")
    assert {("card1", "xgmi", FIRST, SECOND), ("card2", "xgmi", SECOND, FIRST)} == found(tree, "link.info").keys()


@pytest.mark.parametrize("content", ["", "-5\n", "x\n", "9" * 30, "\0", "0x10\n"])
def test_what_is_no_number(tree: Tree, content: str) -> None:
    tree.process(4711, gpu_51110=5)
    (tree.sys / "class/kfd/kfd/proc/4711/vram_51110").write_text(content)
    assert {} == found(tree, "process.memory.usage")
    (tree.sys / "class/kfd/kfd/topology/nodes/1/gpu_id").write_text(content)
    assert {} == found(tree, "link.info")


def test_files_that_are_hidden(tree: Tree) -> None:
    """The node of a GPU hidden by the device cgroup has no readable files."""
    for file in (tree.sys / "class/kfd/kfd/topology/nodes/2").glob("*"):
        if file.is_file():
            file.unlink()
            file.mkdir()
    assert {} == found(tree, "link.info")


def test_only_so_many(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of files and rows that others control are bounded."""
    monkeypatch.setattr(kfd, "MOST_PROCESSES", 23)
    for pid in range(1000, 1100):
        tree.process(pid, gpu_51110=pid)
    assert [str(pid) for pid in range(1000, 1023)] == [labels[2] for labels in found(tree, "process.memory.usage")]


@pytest.fixture
def collector(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Iterator[module.Amdgpu]:
    monkeypatch.setattr(module, "labels_of", lambda processes, proc: processes.labels)
    values = {flag.name: flag.default for flag in module.FLAGS}
    made = module.create(make_node(values, ProcessTable(), sys=tree.sys))
    made.start()
    yield made
    made.close()


def test_labels_of_the_process(tree: Tree, collector: module.Amdgpu) -> None:
    """A process has its labels, and the GPU's; the series go with the GPUs."""
    tree.process(os.getpid(), gpu_51110=4096)
    collector.close()
    collector.kfd.follow([])
    [held] = [it for it in collector.collect() if it.metric.name == "gpu.amd.process.memory.usage"]
    comm = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    expected = {"pid": str(os.getpid()), "comm": comm, "card": "card1", "pci_bus_id": FIRST}
    assert (4096, expected.items()) == (held.value, expected.items() & held.labels.items())


def test_without_amdkfd(tree: Tree) -> None:
    """The driver may be built without it: the GPUs have their other series."""
    (tree.sys / "class/kfd").rename(tree.sys / "class/other")
    assert not kfd.present(tree.sys)
    assert sysfs.cards(tree.sys)
