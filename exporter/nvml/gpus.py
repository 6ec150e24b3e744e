"""What is known of the GPUs, for everyone who asks: the NVML collector writes it, others read it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from exporter.nvml.snapshot import Event, Snapshot


class Gpus:
    """One for a node. Without the NVML collector, or without NVML, its snapshot has no GPUs. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._source: Callable[[], Snapshot] | None = None
        self._release: Callable[[float], bool] | None = None
        self._listeners: list[Callable[[Event], None]] = []

    def snapshot(self) -> Snapshot:
        """What is known now, without a call to NVML: what is too old is left out."""
        source = self._source
        return source() if source else Snapshot("absent", "the NVML collector is off")

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

    def tell(self, event: Event) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(event)
