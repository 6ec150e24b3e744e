"""GPUs of a process by its device numbers."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection
from pathlib import Path

import pytest

from exporter.nvml.gpus import Gpus
from exporter.nvml.snapshot import Gpu, GpuProcess, GpuSnapshot
from exporter.resolve.gpu import Inventory
from exporter.resolve.process_gpus import ProcessGpus, nodes, visible
from tests.unit.resolve.gpus import PART, WHOLE, gpu, mig, snapshot

ON = (GpuProcess(7, "compute", 100),)
ALL = {0, 1, 2, 3}


def four(*changes: Gpu) -> GpuSnapshot:
    """Four GPUs, some of them others."""
    return snapshot(*({it.index: it for it in map(gpu, range(4))} | {it.index: it for it in changes}).values())


def named(index: int, name: str) -> Gpu:
    made = gpu(index)
    return dataclasses.replace(made, identity=dataclasses.replace(made.identity, name=name))


def ordinals(environ: bytes, current: GpuSnapshot, minors: Collection[int] | None = ALL) -> list[str]:
    """The GPU, or MIG device, of each ordinal."""
    return [gpu.mig_uuid or str(gpu.gpu) for gpu in visible(environ, Inventory(current), minors).values()]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("", "0123"),
        ("CUDA_VISIBLE_DEVICES=2,0", "20"),
        ("A=1 CUDA_VISIBLE_DEVICES=3 B=2", "3"),
        ("CUDA_VISIBLE_DEVICES=1,-1,2", "1"),
        ("CUDA_VISIBLE_DEVICES=1,9,2", "1"),
        ("CUDA_VISIBLE_DEVICES=1,x,2", "1"),
        ("CUDA_VISIBLE_DEVICES=", ""),
        ("CUDA_VISIBLE_DEVICES=1,1", ""),
        ("CUDA_VISIBLE_DEVICES=99999999999999999999", ""),
        ("CUDA_VISIBLE_DEVICES=2,0000000001", "2"),
        ("XCUDA_VISIBLE_DEVICES=1", "0123"),
        (f"CUDA_VISIBLE_DEVICES=1,{'x' * 8190}", "1"),
        (f"CUDA_VISIBLE_DEVICES=1,{'x' * 8191}", ""),
        (f"CUDA_VISIBLE_DEVICES={WHOLE.format(3)},{WHOLE.format(1)}", "31"),
        (f"CUDA_VISIBLE_DEVICES={WHOLE.format(2)},0", "20"),
        ("CUDA_VISIBLE_DEVICES=GPU-8932f937", ""),
        ("CUDA_VISIBLE_DEVICES=GPU-", ""),
    ],
)
def test_variable(variables: str, expected: str) -> None:
    """Numbers, UUIDs and their order count; the list ends at what is none, and what is ambiguous is none."""
    environ = variables.replace(" ", "\0").encode() + b"\0"

    assert list(expected) == ordinals(environ, four())


def test_unlike_gpus() -> None:
    """Of different models CUDA puts the fastest first: numbers are ambiguous then, unless the order is by bus id."""
    mixed = four(named(3, "A100"))

    assert [] == ordinals(b"CUDA_VISIBLE_DEVICES=1\0", mixed)
    assert ["1"] == ordinals(b"CUDA_VISIBLE_DEVICES=1\0CUDA_DEVICE_ORDER=PCI_BUS_ID\0", mixed)
    assert ["3"] == ordinals(f"CUDA_VISIBLE_DEVICES={WHOLE.format(3)}".encode(), mixed)


def test_containers() -> None:
    """In a container that sees two of four GPUs, numbers count those."""
    assert ["1", "3"] == ordinals(b"", four(), {1, 3})
    assert ["3"] == ordinals(b"CUDA_VISIBLE_DEVICES=1\0", four(), {1, 3})
    assert ["0", "1", "2", "3"] == ordinals(b"", four(), None)


def test_mig() -> None:
    """A MIG device is named by its UUID; numbers are ambiguous beside one."""
    divided = four(gpu(1, migs=(mig(0, 3), mig(1, 4))))

    assert [PART.format(1)] == ordinals(f"CUDA_VISIBLE_DEVICES={PART.format(1)}".encode(), divided)
    assert [] == ordinals(b"CUDA_VISIBLE_DEVICES=0\0", divided)


def see(proc: Path, pid: int, names: Collection[str]) -> None:
    """Gives a process a /dev as its mounts describe one; tests/program/resolve/test_devices.py has real ones."""
    folder = proc / str(pid) / "root/dev"
    folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_PATH)
    [mount] = re.findall(r"^mnt_id:\s*(\d+)$", Path(f"/proc/self/fdinfo/{descriptor}").read_text(), re.MULTILINE)
    os.close(descriptor)
    (proc / str(pid) / "mountinfo").write_text(
        f"1{mount} 1 0:1 / / rw - ext4 x rw\n{mount} 1 0:5 / /dev rw - tmpfs x rw\n"
    )
    for name in names:
        (folder / name).touch()


def test_nodes(tmp_path: Path) -> None:
    """The GPUs that a process can open; not known when its /dev cannot be looked at."""
    assert nodes(tmp_path, 7) is None
    see(tmp_path, 7, ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "null"))
    assert {0, 3} == nodes(tmp_path, 7)
    see(tmp_path, 8, ())
    assert nodes(tmp_path, 8) is None


class World:
    """Four GPUs, of which NVML lists the process on some, and a process with these variables."""

    def __init__(self, proc: Path, environ: bytes = b"") -> None:
        see(proc, 7, [f"nvidia{number}" for number in range(4)])
        (proc / "7/environ").write_bytes(environ)
        gpus = Gpus()
        gpus.serve(lambda: self.current, lambda seconds: True)
        self.current = four()
        self.on = ProcessGpus(gpus, proc)

    def list(self, *indices: int) -> None:
        """From now on NVML lists the process on these."""
        self.current = four(*(gpu(index, processes=ON) for index in indices))
        self.on.refresh()

    def devices(self, used: Collection[int] = (), first: int | None = None) -> dict[int, int]:
        return {device: place.gpu for device, place in self.on.places(7, used, first).items()}


def test_one_gpu(tmp_path: Path) -> None:
    """A process on one GPU uses that one, whatever its variables hold; before NVML lists it nothing is known."""
    world = World(tmp_path, b"CUDA_VISIBLE_DEVICES=0\0")
    assert {} == world.devices({0}, 0)
    world.list(2)
    assert {0: 2, 1: 2} == world.devices({0}, 0)
    assert {0: 2} == world.devices()
    assert {"gpu": "2", "gpu_uuid": WHOLE.format(2)} == world.on.last(7, 0)


def test_a_list_of_before(tmp_path: Path) -> None:
    """A second device is not on the GPU that NVML listed before that device was used, unless the variable has it so."""
    world = World(tmp_path, b"A=1\0")
    world.list(0)
    assert {0: 0, 1: 0} == world.devices({0}, 0)
    assert {} == world.devices({1}, 1)
    world.list(0)
    assert {0: 0, 2: 0} == world.devices({1}, 1)  # a program that has set the variable itself
    assert {} == world.devices({2}, 2)
    world.list(0, 2)
    assert {0: 2, 1: 0, 3: 2} == world.devices({0, 2}, 2)


def test_variables_that_cannot_be_read(tmp_path: Path) -> None:
    """Variables of a process that is gone, or a zombie, are not unset but unknown: no GPU of several is named."""
    world = World(tmp_path, b"")
    world.list(0, 1)
    assert {} == world.devices({0, 1}, 0)
    (tmp_path / "7/environ").unlink()
    assert {} == world.devices({0, 1}, 0)
    (tmp_path / "7/environ").write_bytes(b"CUDA_VISIBLE_DEVICES=1,0\0")
    assert {0: 1, 1: 1, 2: 0} == world.devices({0, 1}, 0)


def test_several_gpus(tmp_path: Path) -> None:
    """With several, the variable identifies them, if NVML lists the same ones."""
    world = World(tmp_path, b"CUDA_VISIBLE_DEVICES=3,1,0\0")
    world.list(1, 3)
    assert {0: 3, 1: 3, 2: 1} == world.devices({0, 1}, 0)
    assert {1: 3, 2: 1} == world.devices({0, 1}, None)
    assert {} == world.devices({0, 2}, 0)
    assert {} == world.devices()
    assert {} == world.devices({0, 1, 5}, 0)


def test_a_variable_that_was_changed(tmp_path: Path) -> None:
    """A program that sets the variable itself contradicts its environment: nothing is guessed."""
    world = World(tmp_path, b"CUDA_VISIBLE_DEVICES=0,1\0")
    world.list(2, 3)

    assert {} == world.devices({0, 1}, 0)


def test_what_is_known_stays(tmp_path: Path) -> None:
    """While NVML is silent nothing changes; a second GPU that is not identified ends the knowledge of the first."""
    world = World(tmp_path)
    world.list(2)
    assert {0: 2} == world.devices()
    world.list()
    assert {0: 2} == world.devices()
    world.list(2, 3)
    assert {} == world.devices()
    world.list()
    world.on.forget(7)
    assert {} == world.devices()
