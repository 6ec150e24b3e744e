"""The GPUs of a process: what amdkfd lists, where the environment agrees with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from exporter.hip.gpus import HipGpus, read
from tests.unit.amdgpu.trees import Tree

PID, GIB = 77, 1 << 30
FIRST, SECOND = "0000:c1:00.0", "0000:c2:00.0"


class Node:
    """A node with two GPUs, and a process with an environment."""

    def __init__(self, folder: Path) -> None:
        self.tree = Tree(folder / "sys")
        self.tree.node(0, 0)
        for at, (bus, gpu) in enumerate(((FIRST, 10), (SECOND, 11)), 1):
            self.tree.card(f"card{at}", bus)
            self.tree.node(at, gpu, bus, 127 + at)
        self.environ = folder / "proc" / str(PID) / "environ"
        self.environ.parent.mkdir(parents=True)
        self.environ.write_bytes(b"HOME=/\0")
        self.gpus = HipGpus(folder / "proc", lambda: read(self.tree.sys))

    def lists(self, **vram: int) -> None:
        """Has amdkfd list this memory of the process, by gpu_id."""
        for gpu, size in vram.items():
            path = self.tree.sys / f"class/kfd/kfd/proc/{PID}" / gpu.replace("gpu_", "vram_")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{size}\n")

    def buses(self, held: Mapping[int, int], first: bool = True) -> dict[int, str]:
        found = self.gpus.labels(PID, held, first)
        return {device: labels["pci_bus_id"] for device, labels in found.items() if labels}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_agreement(node: Node) -> None:
    """Ordinals are known once amdkfd lists their memory, and stay known when it is freed."""
    assert {} == node.buses({1: GIB, 2: 3 * GIB})
    node.lists(gpu_10=GIB, gpu_11=2 * GIB)
    assert {} == node.buses({1: GIB, 2: 3 * GIB})  # it was read before the last one was allocated
    node.lists(gpu_10=GIB, gpu_11=3 * GIB)
    assert {1: FIRST, 2: SECOND} == node.buses({1: GIB, 2: 3 * GIB})
    assert {0: FIRST, 1: FIRST, 2: SECOND} == node.buses({0: 0, 1: 0, 2: 9 * GIB, 255: 5})
    assert {1: FIRST, 2: SECOND} == node.buses({0: 0, 1: 0, 2: 0}, first=False)
    node.gpus.forget(PID)
    node.lists(gpu_10=0, gpu_11=0)
    assert {} == node.buses({1: 0, 2: 0})


def test_devices_without_memory(node: Node) -> None:
    """A device where nothing is allocated is not known: nothing shows that the environment is right about it."""
    node.lists(gpu_10=GIB // 2, gpu_11=2 * GIB)
    assert {2: SECOND} == node.buses({0: 0, 2: GIB, 255: 0})


def test_another_gpu_with_as_much(node: Node) -> None:
    """An unused GPU with as much memory as the probes saw may be the one."""
    node.lists(gpu_10=GIB, gpu_11=2 * GIB)
    assert {} == node.buses({2: GIB})
    assert {2: SECOND} == node.buses({2: GIB + 1})


def test_an_environment_that_cannot_be_read(node: Node) -> None:
    """An environment that cannot be read is unknown, not empty, and read again later."""
    environ = node.environ.read_bytes()
    node.environ.unlink()
    node.lists(gpu_10=GIB, gpu_11=3 * GIB)
    assert {} == node.buses({1: GIB, 2: 3 * GIB})
    node.environ.write_bytes(environ)
    assert {1: FIRST, 2: SECOND} == node.buses({1: GIB, 2: 3 * GIB})


def test_the_only_gpu_with_memory(node: Node) -> None:
    """The only device of a process is the only GPU with memory, by a reading after it was allocated.

    It stays so when the process uses another device, and memory of an unknown one. The environment, which is not as HIP
    has read it, then gives no GPU.
    """
    node.lists(gpu_10=0, gpu_11=GIB)
    assert {} == node.buses({0: GIB})
    assert {0: SECOND} == node.buses({0: GIB})
    assert {0: SECOND, 1: SECOND} == node.buses({0: GIB, 1: 0, 2: GIB, 255: 5})
    node.lists(gpu_10=GIB, gpu_11=GIB)
    assert {0: SECOND} == node.buses({0: GIB, 2: GIB, 255: GIB})


@pytest.mark.parametrize(
    ("held", "first"),
    [
        ({0: GIB, 255: 0}, True),
        ({0: GIB, 255: GIB}, True),
        ({0: GIB, 2: 0}, True),
        ({0: 0}, True),
        ({0: GIB + 1}, True),
        ({0: GIB}, False),
        ({2: 0}, False),
        ({0: 0, 1: GIB}, False),
    ],
    ids=str,
)
def test_memory_that_may_be_of_another_device(node: Node, held: Mapping[int, int], first: bool) -> None:
    """The only GPU with memory may be that of calls of an unknown device, or that of threads from before the probes."""
    node.environ.write_bytes(b"GPU_DEVICE_ORDINAL=1\0")
    node.lists(gpu_10=0, gpu_11=GIB)
    assert [{}, {}, {}] == [node.buses(held, first) for _ in range(3)]


def test_memory_between_two_readings(node: Node) -> None:
    """Memory that was freed before the second reading shows nothing about what is allocated after it."""
    node.environ.write_bytes(b"GPU_DEVICE_ORDINAL=1\0")
    node.lists(gpu_10=0, gpu_11=GIB)
    assert [{}, {}, {}] == [node.buses({0: size}) for size in (5, 0, 5)]
    assert {0: SECOND} == node.buses({0: 5})


def test_a_device_with_unseen_memory(node: Node) -> None:
    """Memory that the probes do not see is of the only device where the environment has the same GPU."""
    node.lists(gpu_10=GIB, gpu_11=0)
    assert {0: FIRST} == node.buses({0: 0})


def test_the_only_gpu_that_a_process_may_open(node: Node) -> None:
    """The GPU is that of all calls, also while its memory cannot be read; until the process may open another one."""
    node.lists(gpu_11=0)
    assert {0: SECOND, 2: SECOND, 255: SECOND} == node.buses({0: 0, 2: 5, 255: 5}, first=False)
    (node.tree.sys / f"class/kfd/kfd/proc/{PID}/vram_11").write_text("much\n")
    assert {0: SECOND, 2: SECOND, 255: SECOND} == node.buses({0: 0, 2: 5, 255: 5}, first=False)
    node.lists(gpu_10=0)
    assert {} == node.buses({0: 0, 2: 5, 255: 5}, first=False)


def test_what_cannot_be_read(node: Node) -> None:
    """A GPU that the exporter does not know, or memory that it cannot read, leaves the order unknown."""
    node.lists(gpu_10=0, gpu_11=GIB, gpu_12=0)
    assert {} == node.buses({0: GIB})
    path = node.tree.sys / f"class/kfd/kfd/proc/{PID}"
    (path / "vram_12").unlink()
    (path / "vram_10").write_text("much\n")
    assert {} == node.buses({0: GIB})


def test_a_partitioned_gpu(node: Node) -> None:
    """All partitions of a GPU have its labels."""
    for at in (3, 4):
        node.tree.node(at, 20 + at, "", 128 + at, location_id=0xC100)
    node.lists(gpu_23=GIB, gpu_24=GIB)
    assert {1: FIRST, 2: FIRST} == node.buses({1: GIB, 2: GIB})
