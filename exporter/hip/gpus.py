"""The GPU of each HIP device of a process, where what amdkfd lists and the process's environment agree.

amdkfd's list of processes is reliable, but has no ordinals. A program may have changed its environment since it
started, so an ordinal counts once its GPU has the memory that the probes saw allocated there:
docs/decisions/0017-hip.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exporter.amdgpu import kfd
from exporter.hip.visible import visible
from exporter.model import Labels
from exporter.resolve.process_gpus import environment

UNKNOWN, DEFAULT = 255, 0
"""DEVICE_UNKNOWN of bpf/hip/devices.h, and the key of threads that were not seen to set their device."""
_MOST_REMEMBERED = 16_384
_Listed = Mapping[int, int | None]


@dataclass(frozen=True, slots=True)
class KfdState:
    """One reading: GPUs in the order of their nodes, and what each process has of each, by pid and the GPU's id."""

    gpus: Sequence[kfd.KfdGpu]
    used: Mapping[int, _Listed]


@dataclass(slots=True)
class _Known:
    """The known GPUs of a process: `only` is that of all that it does, while it may open just the GPUs of `listed`.

    `by_ordinal` has those that were confirmed, which stay: counts with a GPU keep it. `held_at` is the reading before
    which the process had memory on its only device.
    """

    only: Labels = field(default_factory=dict)
    listed: Collection[int] = ()
    by_ordinal: dict[int, Labels] = field(default_factory=dict)
    held_at: KfdState | None = None

    def of(self, device: int, first: bool) -> Labels:
        ordinal = ordinal_of(device, first)
        return self.only or (self.by_ordinal.get(ordinal, {}) if ordinal is not None else {})


def ordinal_of(device: int, first: bool) -> int | None:
    """Return the ordinal of a key's device. `first`: all threads of the process were seen from their start on."""
    if device == DEFAULT:
        return 0 if first else None
    return None if device == UNKNOWN else device - 1


def read(sys: Path) -> KfdState:
    """Read what amdkfd lists; nothing without it. Raises OSError without DRM."""
    if not kfd.present(sys):
        return KfdState((), {})
    return KfdState(kfd.topology(sys).gpus, kfd.used(sys))


class HipGpus:
    """The GPUs of processes; `state` returns the last reading, None before the first one."""

    def __init__(self, proc: Path, state: Callable[[], KfdState | None]) -> None:
        self._proc, self._state = proc, state
        self._known: dict[int, _Known] = {}
        self._environ: dict[int, bytes] = {}

    def labels(self, pid: int, held: Mapping[int, int], first: bool) -> Mapping[int, Labels]:
        """Return the labels of the GPU of each device of a process, as keys have them; empty where it is not known.

        `held` are the bytes of GPU memory that the probes saw in use, by device.
        """
        state = self._state()
        if state and state.used.get(pid):
            if len(self._known) >= _MOST_REMEMBERED and pid not in self._known:
                self._known.clear()
            self._learn(pid, self._known.setdefault(pid, _Known()), state, held, first)
        return self.last(pid, held, first)

    def last(self, pid: int, held: Mapping[int, int], first: bool) -> Mapping[int, Labels]:
        """Return the same of a process that may have ended, from what is known."""
        known = self._known.get(pid, _Known())
        return {device: known.of(device, first) for device in held}

    def forget(self, pid: int) -> None:
        """Drop a process that has ended or runs another program."""
        self._known.pop(pid, None)
        self._environ.pop(pid, None)

    def _learn(self, pid: int, known: _Known, state: KfdState, held: Mapping[int, int], first: bool) -> None:
        listed = state.used[pid]
        gpus = [gpu for gpu in state.gpus if gpu.id in listed]
        if listed.keys() != known.listed:
            known.only = {}
        if len(gpus) < len(listed) or None in listed.values() or not all(gpu.labels for gpu in gpus):
            return
        known.only, known.listed = _only(gpus), set(listed)
        used: dict[int, int] = {}
        for device, size in held.items():
            if (ordinal := ordinal_of(device, first)) is not None:
                used[ordinal] = used.get(ordinal, 0) + size
        if known.only or not used.keys() - known.by_ordinal.keys():
            return
        ordered = self._ordered(pid, known, gpus)
        found = {it: gpu.labels for it, gpu in _agreeing(ordered, gpus, listed, used).items()}
        if first and UNKNOWN not in held and len(used) == 1:
            found |= _of_only_device(known, state, [gpu for gpu in gpus if listed[gpu.id]], listed, ordered, used)
        known.by_ordinal = found | known.by_ordinal

    def _ordered(self, pid: int, known: _Known, gpus: Sequence[kfd.KfdGpu]) -> Mapping[int, kfd.KfdGpu]:
        """Return GPUs by ordinal as the environment has them; none where it is unknown, or not what HIP has read."""
        environ = self._environment(pid)
        ordered = dict(enumerate(visible(environ, gpus))) if environ else {}
        right = all(it in ordered and ordered[it].labels == labels for it, labels in known.by_ordinal.items())
        return ordered if right else {}

    def _environment(self, pid: int) -> bytes:
        """Return the environment, or nothing while it cannot be read: then it is unknown, not empty."""
        if pid not in self._environ:
            if len(self._environ) >= _MOST_REMEMBERED:
                self._environ.clear()
            if environ := environment(self._proc, pid):
                self._environ[pid] = environ
        return self._environ.get(pid, b"")


def _only(gpus: Sequence[kfd.KfdGpu]) -> Labels:
    """Return the labels of the only GPU; partitions of one GPU have the same."""
    labels = [gpu.labels for gpu in gpus]
    return labels[0] if labels and all(it == labels[0] for it in labels) else {}


def _of_only_device(
    known: _Known,
    state: KfdState,
    holding: Sequence[kfd.KfdGpu],
    listed: _Listed,
    ordered: Mapping[int, kfd.KfdGpu],
    used: Mapping[int, int],
) -> Mapping[int, Labels]:
    """Return the only GPU with memory for the only device of a process, of which all calls have a known device.

    It is the device's by the environment, or if all along since an earlier reading the probes saw memory there.
    Memory from hipMemCreate may be on another GPU, and HIP starts with one GPU after the other.
    """
    ((ordinal, size),) = used.items()
    if not size:
        known.held_at = None
    elif known.held_at is None:
        known.held_at = state
    labels = _only(holding)
    if not labels or size > sum(listed[gpu.id] or 0 for gpu in holding):
        return {}
    agrees = ordinal in ordered and ordered[ordinal].labels == labels
    return {ordinal: labels} if agrees or (size and known.held_at is not state) else {}


def _agreeing(
    visible: Mapping[int, kfd.KfdGpu], gpus: Sequence[kfd.KfdGpu], listed: _Listed, used: Mapping[int, int]
) -> Mapping[int, kfd.KfdGpu]:
    """Return the GPUs of the ordinals with memory, if each has all that was allocated there, and no other has as much.

    Empty otherwise: the environment is not the one that HIP has read, or amdkfd was read before the memory was taken.
    """
    found = {it: visible[it] for it in used if it in visible}
    holding = {it: gpu for it, gpu in found.items() if used[it]}
    others = [listed[gpu.id] or 0 for gpu in gpus if gpu not in found.values()]
    agree = len(found) == len(used) and all(used[it] <= (listed[gpu.id] or 0) for it, gpu in holding.items())
    return holding if agree and max(others, default=0) < min((used[it] for it in holding), default=0) else {}
