"""The GPUs and MIG devices of an NVML snapshot, by UUID, by number, and by the processes on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exporter.model import Labels
from exporter.nvml.snapshot import PROCESSES, Gpu, GpuSnapshot, Mig


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU, or a MIG device of a GPU: the GPU's index and the UUIDs as NVML reports them."""

    gpu: int
    gpu_uuid: str
    mig_uuid: str = ""

    @property
    def labels(self) -> Labels:
        """The labels of the GPU, also for a MIG device."""
        return {"gpu": str(self.gpu), "gpu_uuid": self.gpu_uuid}

    @property
    def uuid(self) -> str:
        return self.mig_uuid or self.gpu_uuid


class Inventory:
    """The GPUs and MIG devices of a snapshot, and the processes that NVML lists on them."""

    def __init__(self, snapshot: GpuSnapshot) -> None:
        self.gpus = tuple(gpu for gpu in snapshot.gpus if gpu.uuid)
        self._by_uuid = {device.uuid: device for gpu in self.gpus for device in _devices(gpu)}
        self.listed_at = min((gpu.sets[PROCESSES].at for gpu in self.gpus if PROCESSES in gpu.sets), default=0.0)
        """The time since which the processes of all GPUs were listed, in seconds of CLOCK_MONOTONIC."""
        self._used: dict[int, dict[GpuDevice, int | None]] = {}
        for gpu in self.gpus:
            for process in gpu.processes:
                used = self._used.setdefault(process.pid, {})
                device = GpuDevice(gpu.index, gpu.uuid)
                used[device] = _plus(used.get(device, 0), process.memory)

    def of(self, uuid: str) -> GpuDevice | None:
        """Return the GPU or MIG device with this UUID in NVML's format, or None."""
        return self._by_uuid.get(uuid)

    def starting_with(self, prefix: str) -> list[GpuDevice]:
        """Return the GPUs and MIG devices with a UUID that begins with `prefix`."""
        return [device for uuid, device in self._by_uuid.items() if uuid.startswith(prefix)]

    def at(self, index: int, instance: int | None = None) -> tuple[GpuDevice, ...]:
        """Return the GPU with this NVML index, or all MIG devices of its GPU instance; empty when there is none."""
        return next((_within(gpu, instance) for gpu in self.gpus if gpu.index == index), ())

    def minor(self, minor: int, instance: int | None = None) -> tuple[GpuDevice, ...]:
        """Return the GPU or the MIG devices as `at` does, by the N of /dev/nvidiaN."""
        return next((_within(gpu, instance) for gpu in self.gpus if gpu.identity.minor == minor), ())

    def used_by(self, pid: int) -> dict[GpuDevice, int | None]:
        """Return the GPUs on which NVML lists the process, with the process's bytes there, None where unknown."""
        return self._used.get(pid, {})


def _devices(gpu: Gpu) -> Iterator[GpuDevice]:
    yield GpuDevice(gpu.index, gpu.uuid)
    yield from (_of_mig(gpu, mig) for mig in gpu.identity.migs)


def _of_mig(gpu: Gpu, mig: Mig) -> GpuDevice:
    return GpuDevice(gpu.index, gpu.uuid, mig.uuid)


def _within(gpu: Gpu, instance: int | None) -> tuple[GpuDevice, ...]:
    if instance is None:
        return (GpuDevice(gpu.index, gpu.uuid),)
    return tuple(_of_mig(gpu, mig) for mig in gpu.identity.migs if mig.gpu_instance == instance)


def _plus(known: int | None, more: int | None) -> int | None:
    return None if known is None or more is None else known + more
