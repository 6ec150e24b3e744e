"""One Xid, reported by the kernel log and by NVML."""

from __future__ import annotations

import pytest

from exporter.faults.xid import duplicates
from exporter.faults.xid.decode import xid
from exporter.faults.xid.directory import Directory
from exporter.faults.xid.duplicates import Duplicates
from exporter.nvml.snapshot import Gpu, GpuIdentity, GpuSnapshot

A, B = "00000000:3B:00.0", "00000000:5E:00.0"
UUID = "GPU-f1648d72-c7c8-9814-2832-7a062b009188"


@pytest.mark.parametrize("first", ["kmsg", "nvml"])
@pytest.mark.parametrize("apart", [0.0, 4.9])
def test_reported_twice(first: str, apart: float) -> None:
    """An event of NVML within five seconds of a line of the log is a duplicate, in either order."""
    both = Duplicates()
    logged, event = (100.0, 100.0 + apart) if first == "kmsg" else (100.0 + apart, 100.0)
    for time, add in sorted([(logged, both.logged), (event, both.event)], key=lambda pair: pair[0]):
        add(xid(A, 79), time)

    assert [] == both.due(1000.0)


@pytest.mark.parametrize(
    ("device", "code", "time"), [(A, 79, 94.0), (A, 79, 106.0), (B, 79, 100.0), (A, 48, 100.0), (UUID, 79, 100.0)]
)
def test_another_fault(device: str, code: int, time: float) -> None:
    """Another GPU, another code, or another time is another Xid."""
    both = Duplicates()
    both.event(xid(device, code), time)
    both.logged(xid(A, 79), 100.0)

    assert [(xid(device, code), time)] == both.due(1000.0)


def test_event_waits_for_the_log() -> None:
    """A fault that only NVML reports is returned once, as soon as the log has had time to report the same."""
    both = Duplicates()
    both.event(xid(A, 79), 100.0)

    assert [[], [(xid(A, 79), 100.0)], []] == [both.due(now) for now in (104.0, 106.0, 107.0)]


def test_several_lines_of_one_event() -> None:
    """Several lines of the log about one event of NVML all count."""
    both = Duplicates()
    both.logged(xid(A, 13), 100.0)
    both.logged(xid(A, 13), 100.1)
    both.event(xid(A, 13), 100.2)

    assert [] == both.due(1000.0)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting events and remembered lines are bounded; dropped events are counted."""
    monkeypatch.setattr(duplicates, "MOST", 10)
    both = Duplicates()
    for number in range(25):
        both.event(xid(A, number), 100.0)
    for number in range(100, 130):
        both.logged(xid(A, number), 100.0)
    both.event(xid(A, 100), 100.0)

    assert (10, 16) == (len(both.due(1000.0)), both.dropped)


def gpu(uuid: str, index: int, bus: str) -> Gpu:
    return Gpu(GpuIdentity(uuid, index, "NVIDIA H100", bus))


def test_directory() -> None:
    """A bus id has NVML's index and UUID, and keeps both when NVML no longer lists the GPU."""
    known = [gpu(UUID, 3, "00000000:3B:00.0"), gpu("", 4, "")]
    directory = Directory(lambda: GpuSnapshot("running", gpus=tuple(known)))
    directory.refresh()
    known.clear()
    directory.refresh()

    assert {"gpu": "3", "gpu_uuid": UUID, "pci_bus_id": A} == directory.labels(A)
    assert {"pci_bus_id": B} == directory.labels(B)
    assert [A, "GPU-x", ""] == [directory.bus(uuid) for uuid in (UUID, "GPU-x", "")]
    assert [{"gpu_uuid": "GPU-x"}, {}] == [directory.labels(device) for device in ("GPU-x", "")]


def test_directory_learns_from_the_driver() -> None:
    """Without NVML a GPU has the driver's UUID; NVML's entry stays until the driver names another GPU."""
    known: list[Gpu] = []
    directory = Directory(lambda: GpuSnapshot("running", gpus=tuple(known)))
    directory.learn(A, UUID)
    assert {"gpu_uuid": UUID, "pci_bus_id": A} == directory.labels(A)

    known.append(gpu(UUID, 3, A))
    directory.refresh()
    directory.learn(A, UUID)
    assert {"gpu": "3", "gpu_uuid": UUID, "pci_bus_id": A} == directory.labels(A)

    directory.learn(A, "GPU-other")
    assert {"gpu_uuid": "GPU-other", "pci_bus_id": A} == directory.labels(A)


def test_directory_is_bounded() -> None:
    """A log cannot fill the directory."""
    directory = Directory(lambda: GpuSnapshot("absent"))
    for number in range(1000):
        directory.learn(f"{number:08X}:00:00.0", f"GPU-{number}")

    named = [number for number in range(1000) if "gpu_uuid" in directory.labels(f"{number:08X}:00:00.0")]
    assert list(range(256)) == named
