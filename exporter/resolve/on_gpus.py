"""Which GPU a process means by its device 0, 1, …: NVML's list and CUDA_VISIBLE_DEVICES, where both agree.

NVML's list of processes is the truth, but has no ordinals; the variable has them, but a program may have changed it
since it started. docs/decisions/0005-attribution.md says why nothing less than both will do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from exporter.model import Labels
from exporter.node import Processes
from exporter.nvml.gpus import Gpus
from exporter.resolve import devices
from exporter.resolve.gpu import Inventory, Place

UNKNOWN_DEVICE = 0xFFFF
"""DEVICE_UNKNOWN of bpf/cuda.h."""
_ENVIRON_BYTES = 1 << 20
_MOST_ENTRIES = 64
_LONGEST_VARIABLE = 8192
_MOST_REMEMBERED = 16_384
_VARIABLE = r"(?:^|\0)%s=([^\0]*)"
_VISIBLE = re.compile((_VARIABLE % "CUDA_VISIBLE_DEVICES").encode())
_ORDER = re.compile((_VARIABLE % "CUDA_DEVICE_ORDER").encode())
_NODE = re.compile(r"nvidia([0-9]{1,4})", re.ASCII)


class OnGpus:
    """The GPUs of processes. One thread at a time; `refresh` before each round of questions."""

    def __init__(self, gpus: Gpus, proc: Path) -> None:
        self._gpus, self._proc = gpus, proc
        self._inventory = Inventory(gpus.snapshot())
        self._visible: dict[int, Mapping[int, Place]] = {}
        self._last: dict[int, Mapping[int, Place]] = {}

    def refresh(self) -> None:
        """Looks at what NVML says now."""
        self._inventory = Inventory(self._gpus.snapshot())

    def places(self, pid: int, used: Collection[int] = (), first: int | None = None) -> Mapping[int, Place]:
        """The GPUs of a process's devices, by ordinal + 1; by 0 the one that it had before it used a second.

        `used` are the ordinals that it was seen to use, `first` the first of them. What is known stays known while NVML
        does not list the process; what NVML contradicts is not known any more.
        """
        listed = self._inventory.used_by(pid)
        if listed:
            known = self._known(pid, tuple(listed), used, first)
            if len(self._last) >= _MOST_REMEMBERED and pid not in self._last:
                self._last.clear()
            self._last[pid] = known
        return self._last.get(pid, {})

    def labels(self, pid: int, used: Collection[int] = (), first: int | None = None) -> Mapping[int, Labels]:
        """gpu and gpu_uuid of each of `places`."""
        return {device: place.labels for device, place in self.places(pid, used, first).items()}

    def last(self, pid: int, device: int) -> Labels:
        """As last answered by `labels`, for a device of ordinal + 1; 0 stands for the only one. From any thread."""
        known = self._last.get(pid, {})
        gpus = set(known.values())
        place = known.get(device) if device else (gpus.pop() if len(gpus) == 1 else None)
        return place.labels if place else {}

    def memory(self, pid: int) -> Mapping[Place, int | None]:
        """Bytes that NVML says the process holds on each GPU; None where it does not tell."""
        return self._inventory.used_by(pid)

    def forget(self, pid: int) -> None:
        """The process ended, or runs another program."""
        self._visible.pop(pid, None)
        self._last.pop(pid, None)

    def _known(
        self, pid: int, listed: Sequence[Place], used: Collection[int], first: int | None
    ) -> Mapping[int, Place]:
        if len(listed) == 1 and len(used) <= 1:
            return {0: listed[0], **{ordinal + 1: listed[0] for ordinal in used}}
        visible = self._visible_to(pid)
        meant = {ordinal: visible[ordinal] for ordinal in used if ordinal in visible}
        if len(meant) < len(used) or {it.gpu_uuid for it in meant.values()} != {it.gpu_uuid for it in listed}:
            return {}
        found = {ordinal + 1: place for ordinal, place in meant.items()}
        return {0: meant[first], **found} if first in meant else found

    def _visible_to(self, pid: int) -> Mapping[int, Place]:
        if pid not in self._visible:
            if len(self._visible) >= _MOST_REMEMBERED:
                self._visible.clear()
            environ = _environ(self._proc, pid)
            if not environ:  # it ended: what its variables said is not known, which is not that they were unset
                return {}
            self._visible[pid] = visible(environ, self._inventory, nodes(self._proc, pid))
        return self._visible[pid]


class Placed:
    """Processes labelled with their GPU too, if they are on one only, as `on_gpus` last knew."""

    def __init__(self, processes: Processes, on_gpus: OnGpus) -> None:
        self._processes, self._on_gpus = processes, on_gpus

    def labels(self, pid: int) -> Labels:
        """As Processes.labels, and gpu and gpu_uuid where they are known."""
        return {**self._processes.labels(pid), **self._on_gpus.last(pid, 0)}

    def forget(self, pid: int) -> None:
        """As Processes.forget."""
        self._processes.forget(pid)


def visible(environ: bytes, inventory: Inventory, minors: Collection[int] | None) -> Mapping[int, Place]:
    """The devices by ordinal as CUDA numbers them, from a process's environment and the GPUs it can open.

    Empty when that cannot be known. https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables:
    the list ends at the first entry that is none, UUIDs may be cut short, a device named twice leaves none.
    """
    numbered = _numbered(environ, inventory, minors)
    found = _VISIBLE.search(environ)
    if not found:
        return dict(enumerate(numbered))
    if len(found[1]) > _LONGEST_VARIABLE:
        return {}
    entries = found[1].decode("ascii", "replace").split(",")[:_MOST_ENTRIES]
    places: list[Place] = []
    for entry in (entry.strip() for entry in entries):
        place = _entry(entry, numbered, inventory)
        if place is None:
            break
        places.append(place)
    return dict(enumerate(places)) if len({place.uuid for place in places}) == len(places) else {}


def nodes(proc: Path, pid: int) -> Collection[int] | None:
    """The N of each /dev/nvidiaN that the process sees; None when there is none, or its /dev cannot be looked at."""
    try:
        seen = devices.names(proc, pid)
    except OSError:
        return None
    return {int(found[1]) for name in seen if (found := _NODE.fullmatch(name))} or None


def _numbered(environ: bytes, inventory: Inventory, minors: Collection[int] | None) -> list[Place]:
    """The GPUs that numbers stand for, in order; none when the order is not known.

    CUDA's own order puts the fastest first, which only NVIDIA's driver knows; alike GPUs are in the order of their bus
    ids, which is NVML's. A number never stands for a part of a GPU: with MIG it is not known which one is first.
    """
    gpus = [gpu for gpu in inventory.gpus if minors is None or gpu.identity.minor in minors]
    order = _ORDER.search(environ)
    by_bus = order is not None and order[1] == b"PCI_BUS_ID"
    if any(gpu.identity.mig_enabled for gpu in gpus) or (not by_bus and len({gpu.identity.name for gpu in gpus}) > 1):
        return []
    return [Place(gpu.index, gpu.uuid) for gpu in gpus]


def _entry(entry: str, numbered: Sequence[Place], inventory: Inventory) -> Place | None:
    if entry.isdecimal() and entry.isascii():
        number = int(entry) if len(entry) < 10 else len(numbered)
        return numbered[number] if number < len(numbered) else None
    if not entry.startswith(("GPU-", "MIG-")) or len(entry) < 5:
        return None
    matching = inventory.starting_with(entry)
    return matching[0] if len(matching) == 1 else None


def _environ(proc: Path, pid: int) -> bytes:
    """Empty when it cannot be read, or not to its end."""
    try:
        with (proc / str(pid) / "environ").open("rb") as file:
            environ = file.read(_ENVIRON_BYTES)
            return environ if len(environ) < _ENVIRON_BYTES else b""
    except OSError:
        return b""
