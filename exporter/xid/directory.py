"""Which GPU sits at a PCI bus id: as NVML says, else as the driver itself does just before an Xid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from exporter.model import Labels
from exporter.nvml.snapshot import Snapshot
from exporter.xid.decode import bus_id

_MOST = 256


class Directory:
    """What was known once stays known: NVML forgets a GPU that is lost, which is when it is asked for."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._gpus: dict[str, tuple[str, str]] = {}
        """Index (empty: not known) and UUID by bus id."""

    def refresh(self) -> None:
        """Looks at what NVML says now."""
        for gpu in self._snapshot().gpus:
            with suppress(ValueError):  # a GPU of which NVML tells nothing but its index
                self._gpus[bus_id(gpu.identity.pci_bus_id)] = (str(gpu.index), gpu.uuid)

    def learn(self, bus: str, uuid: str) -> None:
        """The driver says that this GPU is there."""
        known = self._gpus.get(bus)
        if (not known or known[1] != uuid) and len(self._gpus) < _MOST:
            self._gpus[bus] = ("", uuid)

    def bus(self, uuid: str) -> str:
        """Where a GPU is; its UUID itself when that is not known."""
        gpus = list(self._gpus.items())  # another thread may add one
        return next((bus for bus, (_, known) in gpus if known and known == uuid), uuid)

    def labels(self, device: str) -> Labels:
        """gpu, gpu_uuid and pci_bus_id of a device as Fault has it, those that are known."""
        if device.startswith("GPU-"):
            return {"gpu_uuid": device}
        index, uuid = self._gpus.get(device, ("", ""))
        labels = {"gpu": index, "gpu_uuid": uuid, "pci_bus_id": device}
        return {name: value for name, value in labels.items() if value}
