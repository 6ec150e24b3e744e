"""What is known of the GPUs, for everyone who asks: the NVML collector writes it, others read it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from exporter.nvml.snapshot import Event, Gpu, Readings, Snapshot

More = Callable[[], Mapping[str, Readings]]

log = logging.getLogger(__name__)


class Gpus:
    """One for a node. Without the NVML collector, or without NVML, its snapshot has no GPUs. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._source: Callable[[], Snapshot] | None = None
        self._release: Callable[[float], bool] | None = None
        self._listeners: list[Callable[[Event], None]] = []
        self._more: dict[str, More] = {}

    def snapshot(self) -> Snapshot:
        """What is known now, without a call to NVML: what is too old is left out."""
        source = self._source
        snapshot = source() if source else Snapshot("absent", "the NVML collector is off")
        for name, more in self._more.copy().items():
            read = more()
            gpus = (_with(gpu, name, read[gpu.uuid]) if gpu.uuid in read else gpu for gpu in snapshot.gpus)
            snapshot = replace(snapshot, gpus=tuple(gpus))
        return snapshot

    def supplement(self, name: str, more: More | None) -> None:
        """Has readings from elsewhere, by UUID, be in snapshots as a set of that name; None has them no longer.

        They add to what NVML says: of a reading that both have NVML's counts, and of a GPU that is lost there is none.
        """
        if more is None:
            self._more.pop(name, None)
        else:
            self._more[name] = more

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Has `listener` called, in a thread of the collector's, for each event from now on; it must not block."""
        with self._lock:
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Event], None]) -> None:
        with self._lock:
            self._listeners.remove(listener)

    def release(self, seconds: float) -> bool:
        """Gives every NVML handle back for so long, so that a GPU can be reset; False when NVML does not answer.

        It waits for that, a few seconds at most. Raises LookupError without NVML.
        """
        release = self._release
        if release is None:
            raise LookupError("no GPU is held: the NVML collector is off or found no NVML")
        return release(seconds)

    # For the NVML collector.

    def serve(self, source: Callable[[], Snapshot], release: Callable[[float], bool]) -> None:
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
                log.exception("an event of GPU %s was not taken", event.uuid)


def _with(gpu: Gpu, name: str, read: Readings) -> Gpu:
    if gpu.state != "ok":
        return gpu
    values = {key: value for key, value in read.values.items() if gpu.value(key) is None}
    return replace(gpu, sets={**gpu.sets, name: replace(read, values=values)})
