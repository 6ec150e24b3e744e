"""PCIe errors that devices reported (AER) and link widths of GPUs, NICs, drives and all ports above these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.faults import metrics
from exporter.model import Sample
from exporter.small_files import content

MOST_FUNCTIONS, MOST_DEVICES = 16_384, 1024
"""Functions of the bus that are looked at, and GPUs, NICs and drives among them; virtual functions come last."""
TYPES = ("correctable", "nonfatal", "fatal")
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_TOTAL = re.compile(r"^TOTAL_ERR_\w+ ([0-9]{1,20})$", re.MULTILINE | re.ASCII)
_KINDS = {"0x0300": "gpu", "0x0302": "gpu", "0x0200": "nic", "0x0207": "nic", "0x0108": "nvme"}
"""Kinds of devices by PCI class and subclass: VGA and 3D controllers, Ethernet and InfiniBand, NVMe."""
_NVIDIA = "0x10de"
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?) GT/s", re.ASCII)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCIe function; `kind` is gpu, nic, nvme or port, `root_port` the bus id of the root port above the function."""

    path: Path
    bus_id: str
    kind: str
    root_port: str

    @property
    def labels(self) -> dict[str, str]:
        return {"pci_bus_id": self.bus_id, "kind": self.kind, "root_port": self.root_port}


def devices(sys: Path) -> list[PciDevice]:
    """Return the GPUs, NICs and drives of this machine, and the ports above them. Raises OSError without a PCI bus.

    Display controllers count as GPUs only when they are NVIDIA's: a server's console chip is none.
    """
    found: dict[str, PciDevice] = {}
    for entry, kind in _functions(sys)[:MOST_DEVICES]:
        real = entry.resolve()
        chain = [part for part in real.parts if _BUS_ID.fullmatch(part)]
        root = chain[0] if len(chain) > 1 else ""
        for depth, bus_id in enumerate(chain[:-1]):
            above = real.parents[len(chain) - 2 - depth]
            found.setdefault(bus_id, PciDevice(above, bus_id, "port", root))
        found[entry.name] = PciDevice(real, entry.name, kind, root)
    return list(found.values())


def _functions(sys: Path) -> list[tuple[Path, str]]:
    """Return the folders of functions that have a kind, with the kind, virtual functions (SR-IOV) after all others."""
    entries = sorted((sys / "bus/pci/devices").iterdir())[:MOST_FUNCTIONS]
    kinds = [(entry, _kind(entry)) for entry in entries if _BUS_ID.fullmatch(entry.name)]
    return sorted((it for it in kinds if it[1]), key=lambda function: (function[0] / "physfn").is_symlink())


def _kind(path: Path) -> str:
    kind = _KINDS.get(_read(path / "class")[:6], "")
    return "" if kind == "gpu" and _read(path / "vendor") != _NVIDIA else kind


def errors(device: PciDevice) -> dict[str, int]:
    """Return the device's errors since the machine started by type, without types that the kernel does not count."""
    totals = {kind: _TOTAL.search(_read(device.path / f"aer_dev_{kind}")) for kind in TYPES}
    return {kind: int(found[1]) for kind, found in totals.items() if found}


def link(device: PciDevice) -> Iterator[Sample]:
    """Yield the readable properties of the device's link. A removed device reports 63 lanes.

    A virtual function, on the host or in the virtual machine that has it, knows nothing of the link: it reports 0 lanes
    of no speed, as a port without a card does.
    """
    width, most = _lanes(device, "current_link_width"), _lanes(device, "max_link_width")
    speed = _SPEED.match(_read(device.path / "current_link_speed"))
    if width is not None and most is not None and (width or speed or device.kind == "port"):
        yield metrics.LINK_WIDTH.sample(width, device.labels)
        yield metrics.LINK_WIDTH_MOST.sample(most, device.labels)
    if speed:
        yield metrics.LINK_SPEED.sample(float(speed[1]), device.labels)


def _lanes(device: PciDevice, name: str) -> int | None:
    text = _read(device.path / name)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 4 and int(text) <= 32 else None


def _read(path: Path) -> str:
    """Return the text of a small file of sysfs, or an empty string when the file cannot be read."""
    try:
        return content(path).strip()
    except OSError:
        return ""
