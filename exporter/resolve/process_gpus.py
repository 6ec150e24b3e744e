"""The GPU of each CUDA device ordinal of a process, where NVML's list and CUDA_VISIBLE_DEVICES agree.

NVML's list of processes is reliable, but has no ordinals; the variable has ordinals, but a program may have changed the
variable since it started. docs/decisions/0005-attribution.md has the reasons for requiring both.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from exporter import process_memory
from exporter.model import Labels
from exporter.node import Processes
from exporter.nvml.gpus import Gpus
from exporter.resolve import devices
from exporter.resolve.environment import variable
from exporter.resolve.gpu import GpuDevice, Inventory

UNKNOWN_DEVICE = 0xFFFF
"""DEVICE_UNKNOWN of bpf/cuda/cuda.h."""
_ENVIRON_BYTES = 1 << 20
_MOST_ENTRIES = 64
_LONGEST_VARIABLE = 8192
_MOST_REMEMBERED = 16_384
_VISIBLE = variable("CUDA_VISIBLE_DEVICES")
_ORDER = variable("CUDA_DEVICE_ORDER")
_NODE = re.compile(r"nvidia([0-9]{1,4})", re.ASCII)


class ProcessGpus:
    """The GPUs of processes. One thread at a time; call `refresh` before each round of queries."""

    def __init__(self, gpus: Gpus, proc: Path) -> None:
        self._gpus, self._proc = gpus, proc
        self._inventory = Inventory(gpus.snapshot())
        self._visible: dict[int, Mapping[int, GpuDevice]] = {}
        self._last: dict[int, Mapping[int, GpuDevice]] = {}
        self._given: dict[int, dict[int, float]] = {}
        """Times at which each ordinal of a process was given first, by CLOCK_MONOTONIC."""

    def refresh(self) -> None:
        """Take NVML's current snapshot."""
        self._inventory = Inventory(self._gpus.snapshot())

    def places(
        self, pid: int, used: Collection[int] = (), first: int | None = None, since: float | None = None
    ) -> Mapping[int, GpuDevice]:
        """Return the GPUs of a process's devices by ordinal + 1; key 0 has the GPU before a second device was used.

        `used` are the ordinals that the process was seen to use, `first` the first of them. A known GPU stays known
        while NVML does not list the process, and is dropped when NVML contradicts it. No GPU is known from a list of
        before `since` (CLOCK_MONOTONIC): the process may have come to use another one. Without `since` that is when
        the last of `used` was given first, or any time if the process's variables agree with the list.
        """
        listed = self._inventory.used_by(pid)
        seen = self._first_given(pid, used) if since is None else since
        if listed:
            current = self._inventory.listed_at >= seen or (since is None and self._agrees(pid, listed, used))
            known = self._known(pid, tuple(listed), used, first) if current else {}
            if len(self._last) >= _MOST_REMEMBERED and pid not in self._last:
                self._last.clear()
            self._last[pid] = known
        return self._last.get(pid, {})

    def labels(
        self, pid: int, used: Collection[int] = (), first: int | None = None, since: float | None = None
    ) -> Mapping[int, Labels]:
        """Return gpu and gpu_uuid of each device in `places`."""
        return {device: gpu.labels for device, gpu in self.places(pid, used, first, since).items()}

    def last(self, pid: int, device: int) -> Labels:
        """Return the labels of a device (ordinal + 1, or 0 for the only GPU) from the last call of `places`.

        Safe from any thread.
        """
        known = self._last.get(pid, {})
        gpus = set(known.values())
        gpu = known.get(device) if device else (gpus.pop() if len(gpus) == 1 else None)
        return gpu.labels if gpu else {}

    def memory(self, pid: int) -> Mapping[GpuDevice, int | None]:
        """Return the bytes that NVML reports for the process on each GPU, None where NVML reports no number."""
        return self._inventory.used_by(pid)

    def forget(self, pid: int) -> None:
        """Drop a process that has ended or runs another program."""
        self._visible.pop(pid, None)
        self._given.pop(pid, None)
        self._last.pop(pid, None)

    def _first_given(self, pid: int, used: Collection[int]) -> float:
        if len(self._given) >= _MOST_REMEMBERED and pid not in self._given:
            self._given.clear()
        times, now = self._given.setdefault(pid, {}), time.monotonic()
        return max((times.setdefault(it, now) for it in used), default=0.0)

    def _agrees(self, pid: int, listed: Collection[GpuDevice], used: Collection[int]) -> bool:
        visible = self._visible_to(pid)
        return all(visible.get(it) in listed for it in used)

    def _known(
        self, pid: int, listed: Sequence[GpuDevice], used: Collection[int], first: int | None
    ) -> Mapping[int, GpuDevice]:
        if len(listed) == 1 and len(used) <= 1:
            return {0: listed[0], **{ordinal + 1: listed[0] for ordinal in used}}
        visible = self._visible_to(pid)
        by_ordinal = {ordinal: visible[ordinal] for ordinal in used if ordinal in visible}
        uuids = {device.gpu_uuid for device in by_ordinal.values()}
        if len(by_ordinal) < len(used) or uuids != {device.gpu_uuid for device in listed}:
            return {}
        found = {ordinal + 1: gpu for ordinal, gpu in by_ordinal.items()}
        return {0: by_ordinal[first], **found} if first in by_ordinal else found

    def _visible_to(self, pid: int) -> Mapping[int, GpuDevice]:
        if pid not in self._visible:
            if len(self._visible) >= _MOST_REMEMBERED:
                self._visible.clear()
            environ = environment(self._proc, pid)
            if not environ:  # it has ended or keeps its memory map locked: its variables are unknown, not unset
                return {}
            self._visible[pid] = visible(environ, self._inventory, nodes(self._proc, pid))
        return self._visible[pid]


class ProcessesWithGpu:
    """Labels of processes with the GPU of those that use a single one, from the last state of `process_gpus`."""

    def __init__(self, processes: Processes, process_gpus: ProcessGpus) -> None:
        self._processes, self._process_gpus = processes, process_gpus

    def labels(self, pid: int) -> Labels:
        """Return Processes.labels, with gpu and gpu_uuid where these are known."""
        return {**self._processes.labels(pid), **self._process_gpus.last(pid, 0)}

    def named(self, pid: int, of_pod: Callable[[str, str], Labels]) -> Labels:
        """Return the labels of Processes.named, with gpu and gpu_uuid where these are known."""
        return {**self._processes.named(pid, of_pod), **self._process_gpus.last(pid, 0)}

    def forget(self, pid: int) -> None:
        """Forget the process as Processes.forget does."""
        self._processes.forget(pid)


def visible(environ: bytes, inventory: Inventory, minors: Collection[int] | None) -> Mapping[int, GpuDevice]:
    """Return the devices by CUDA ordinal, from a process's environment and the minor numbers that it can open.

    Empty when the order is unknown. The list of CUDA_VISIBLE_DEVICES ends at the first invalid entry, UUIDs may be
    abbreviated, and a repeated device makes the whole list invalid:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
    """
    numbered = _numbered(environ, inventory, minors)
    found = _VISIBLE.search(environ)
    if not found:
        return dict(enumerate(numbered))
    if len(found[1]) > _LONGEST_VARIABLE:
        return {}
    entries = found[1].decode("ascii", "replace").split(",")[:_MOST_ENTRIES]
    gpus: list[GpuDevice] = []
    for entry in (entry.strip() for entry in entries):
        gpu = _entry(entry, numbered, inventory)
        if gpu is None:
            break
        gpus.append(gpu)
    return dict(enumerate(gpus)) if len({gpu.uuid for gpu in gpus}) == len(gpus) else {}


def nodes(proc: Path, pid: int) -> Collection[int] | None:
    """Return the N of each /dev/nvidiaN that the process sees, or None without any or when /dev cannot be read."""
    try:
        seen = devices.names(proc, pid)
    except OSError:
        return None
    return {int(found[1]) for name in seen if (found := _NODE.fullmatch(name))} or None


def _numbered(environ: bytes, inventory: Inventory, minors: Collection[int] | None) -> list[GpuDevice]:
    """Return the GPUs in the order of their numbers in CUDA_VISIBLE_DEVICES; empty when the order is unknown.

    CUDA's default order puts the fastest GPU first, as only NVIDIA's driver can judge; GPUs of one model are in the
    order of their bus ids, which is NVML's. With MIG the first MIG device is unknown, so numbers are not resolved.
    """
    gpus = [gpu for gpu in inventory.gpus if minors is None or gpu.identity.minor in minors]
    order = _ORDER.search(environ)
    by_bus = order is not None and order[1] == b"PCI_BUS_ID"
    if any(gpu.identity.mig_enabled for gpu in gpus) or (not by_bus and len({gpu.identity.name for gpu in gpus}) > 1):
        return []
    return [GpuDevice(gpu.index, gpu.uuid) for gpu in gpus]


def _entry(entry: str, numbered: Sequence[GpuDevice], inventory: Inventory) -> GpuDevice | None:
    if entry.isdecimal() and entry.isascii():
        number = int(entry) if len(entry) < 10 else len(numbered)
        return numbered[number] if number < len(numbered) else None
    if not entry.startswith(("GPU-", "MIG-")) or len(entry) < 5:
        return None
    matching = inventory.starting_with(entry)
    return matching[0] if len(matching) == 1 else None


def environment(proc: Path, pid: int) -> bytes:
    """Return the environment block of a process, or nothing when the block cannot be read or is too large."""
    try:
        environ = process_memory.read(proc, pid, "environ", _ENVIRON_BYTES)
    except OSError:
        return b""
    return environ if len(environ) < _ENVIRON_BYTES else b""
