"""GPUs by PCI bus id: from NVML, else from the line that the driver prints just before an Xid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from exporter.faults.xid.decode import bus_id
from exporter.model import Labels
from exporter.nvml.snapshot import GpuSnapshot

_MOST = 256


class Directory:
    """Directory of GPUs. Entries stay when NVML no longer lists a GPU: a lost GPU is looked up here."""

    def __init__(self, snapshot: Callable[[], GpuSnapshot]) -> None:
        self._snapshot = snapshot
        self._gpus: dict[str, tuple[str, str]] = {}
        """Index (empty: not known) and UUID, by bus id."""

    def refresh(self) -> None:
        """Takes over what NVML lists now."""
        for gpu in self._snapshot().gpus:
            with suppress(ValueError):  # NVML knows nothing of this GPU but its index
                self._gpus[bus_id(gpu.identity.pci_bus_id)] = (str(gpu.index), gpu.uuid)

    def learn(self, bus: str, uuid: str) -> None:
        """Adds a GPU that the driver has named."""
        known = self._gpus.get(bus)
        if (not known or known[1] != uuid) and len(self._gpus) < _MOST:
            self._gpus[bus] = ("", uuid)

    def bus(self, uuid: str) -> str:
        """Returns the bus id of a GPU; the UUID itself when the bus id is not known."""
        gpus = list(self._gpus.items())  # another thread may add a GPU
        return next((bus for bus, (_, known) in gpus if known and known == uuid), uuid)

    def labels(self, device: str) -> Labels:
        """Returns the known ones of the labels gpu, gpu_uuid and pci_bus_id for DriverReport.device."""
        if device.startswith("GPU-"):
            return {"gpu_uuid": device}
        index, uuid = self._gpus.get(device, ("", ""))
        labels = {"gpu": index, "gpu_uuid": uuid, "pci_bus_id": device}
        return {name: value for name, value in labels.items() if value}
