"""Which GPU is meant: by UUID, by number, or by the process that is on it. From a snapshot of NVML's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exporter.model import Labels
from exporter.nvml.snapshot import Gpu, Mig, Snapshot


@dataclass(frozen=True, slots=True)
class Place:
    """A GPU, or a MIG device of it: index and UUIDs as NVML has them."""

    gpu: int
    gpu_uuid: str
    mig_uuid: str = ""

    @property
    def labels(self) -> Labels:
        """Those of the GPU: a MIG device has them too."""
        return {"gpu": str(self.gpu), "gpu_uuid": self.gpu_uuid}

    @property
    def uuid(self) -> str:
        return self.mig_uuid or self.gpu_uuid


class Inventory:
    """The GPUs and MIG devices of a snapshot, and the processes that NVML lists on them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.gpus = tuple(gpu for gpu in snapshot.gpus if gpu.uuid)
        self._places = {place.uuid: place for gpu in self.gpus for place in _places(gpu)}
        self._on: dict[int, dict[Place, int | None]] = {}
        for gpu in self.gpus:
            for process in gpu.processes:
                on = self._on.setdefault(process.pid, {})
                place = Place(gpu.index, gpu.uuid)
                on[place] = _plus(on.get(place, 0), process.memory)

    def of(self, uuid: str) -> Place | None:
        """The GPU or MIG device with this UUID, as NVML prints it."""
        return self._places.get(uuid)

    def starting_with(self, prefix: str) -> list[Place]:
        """Those whose UUID begins so."""
        return [place for uuid, place in self._places.items() if uuid.startswith(prefix)]

    def at(self, index: int, instance: int | None = None) -> tuple[Place, ...]:
        """The GPU with this index; of a GPU instance all its MIG devices. Empty when there is none."""
        return next((_within(gpu, instance) for gpu in self.gpus if gpu.index == index), ())

    def minor(self, minor: int, instance: int | None = None) -> tuple[Place, ...]:
        """The same by the N of /dev/nvidiaN."""
        return next((_within(gpu, instance) for gpu in self.gpus if gpu.identity.minor == minor), ())

    def used_by(self, pid: int) -> dict[Place, int | None]:
        """The GPUs on which NVML lists the process, with the bytes it holds there, None where that is not told."""
        return self._on.get(pid, {})


def _places(gpu: Gpu) -> Iterator[Place]:
    yield Place(gpu.index, gpu.uuid)
    yield from (_of_mig(gpu, mig) for mig in gpu.identity.migs)


def _of_mig(gpu: Gpu, mig: Mig) -> Place:
    return Place(gpu.index, gpu.uuid, mig.uuid)


def _within(gpu: Gpu, instance: int | None) -> tuple[Place, ...]:
    if instance is None:
        return (Place(gpu.index, gpu.uuid),)
    return tuple(_of_mig(gpu, mig) for mig in gpu.identity.migs if mig.gpu_instance == instance)


def _plus(known: int | None, more: int | None) -> int | None:
    return None if known is None or more is None else known + more
