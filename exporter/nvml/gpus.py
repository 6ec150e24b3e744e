"""The GPUs of the node, shared: the NVML collector provides snapshots and events, other collectors read them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from exporter.nvml.snapshot import FAST, Event, Gpu, GpuSnapshot, Readings
from exporter.stack_profiles.frozen import FreeMemory

Supplement = Callable[[], Mapping[str, Readings]]

log = logging.getLogger(__name__)


class Gpus:
    """Snapshots and events of the GPUs, one object for a node. Thread-safe.

    Without the NVML collector, or without NVML, snapshots have no GPUs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._source: Callable[[], GpuSnapshot] | None = None
        self._release: Callable[[float], bool] | None = None
        self._listeners: list[Callable[[Event], None]] = []
        self._supplements: dict[str, Supplement] = {}

    def snapshot(self) -> GpuSnapshot:
        """Returns the newest readings, without a call to NVML. Readings that are too old are left out."""
        source = self._source
        snapshot = source() if source else GpuSnapshot("absent", "the NVML collector is off")
        for name, supplement in self._supplements.copy().items():
            read = supplement()
            gpus = (_with(gpu, name, read[gpu.uuid]) if gpu.uuid in read else gpu for gpu in snapshot.gpus)
            snapshot = replace(snapshot, gpus=tuple(gpus))
        return snapshot

    def memory(self, within: float) -> int | None:
        """Bytes of all GPUs together, waiting so many seconds for the first reading; None where that is not known."""
        until = time.monotonic() + within
        while True:
            snapshot = self.snapshot()
            totals = [gpu.value("memory_bytes") for gpu in snapshot.gpus]
            known = [int(total) for total in totals if total is not None]
            if totals and len(known) == len(totals):
                return sum(known)
            if snapshot.state == "absent" or time.monotonic() >= until:
                return None
            time.sleep(0.02)

    def free(self, uuid: str) -> FreeMemory | None:
        """Return the free memory of the GPU with this UUID as it was read last; None where that is not known, and with
        MIG, where a process has a part of it.
        """
        gpu = next((it for it in self.snapshot().gpus if it.uuid == uuid and not it.identity.mig_enabled), None)
        read = gpu.sets.get(FAST) if gpu else None
        if read is None or (size := read.values.get("memory_free_bytes")) is None:
            return None
        return FreeMemory(int(size), max(0.0, time.monotonic() - read.at), "NVML")

    def supplement(self, name: str, supplement: Supplement | None) -> None:
        """Adds readings from another source, by UUID, to snapshots as the set `name`; None removes the source.

        A reading that NVML has too is NVML's, and a lost GPU has no readings from other sources.
        """
        if supplement is None:
            self._supplements.pop(name, None)
        else:
            self._supplements[name] = supplement

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Calls `listener` for each later event, in a thread of the NVML collector. `listener` must not block."""
        with self._lock:
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Event], None]) -> None:
        with self._lock:
            self._listeners.remove(listener)

    def release(self, seconds: float) -> bool:
        """Closes every NVML handle for `seconds`, so that a GPU can be reset.

        Waits a few seconds at most. Returns False when NVML does not answer. Raises LookupError without NVML.
        """
        release = self._release
        if release is None:
            raise LookupError("no GPU is held: the NVML collector is off or found no NVML")
        return release(seconds)

    # The rest is for the NVML collector.

    def serve(self, source: Callable[[], GpuSnapshot], release: Callable[[float], bool]) -> None:
        self._source, self._release = source, release

    def withdraw(self) -> None:
        self._source = self._release = None

    def publish(self, event: Event) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed on an event of GPU %s", event.uuid)


def _with(gpu: Gpu, name: str, read: Readings) -> Gpu:
    if gpu.state != "ok":
        return gpu
    values = {key: value for key, value in read.values.items() if gpu.value(key) is None}
    return replace(gpu, sets={**gpu.sets, name: replace(read, values=values)})
