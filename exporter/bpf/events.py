"""Records out of ring buffers: one poller for all of them."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from exporter.bpf.maps import Map
from exporter.bpf.native import EVENT, BpfError, check, library
from exporter.model import Kind, Metric, Sample

EVENTS_LOST = Metric(
    "accel_exporter.events.lost",
    "Records that did not reach their reader: the ring buffer was full, or the reader failed.",
    Kind.COUNTER,
    labels=("stream",),
)
_AT_ONCE = 4096
FEW = 64
LOOK_SECONDS = 0.3
"""Time for which records are looked for after one: longer than LOOKS_NS of bpf/probe.h."""
_IDLE_SECONDS = 1.0
_STOP_SECONDS = 1.0
_FLUSH_SECONDS = 0.5
_log = logging.getLogger(__name__)


@dataclass
class _Stream:
    map: Map
    callback: Callable[[Any], object]
    size: int
    ring: int = 0
    failed: int = 0
    budget: int = 0
    receive: Any = field(default=None)


class Events:
    """Reads ring buffers (EVENTS() of bpf/probe.h) and gives each record to its callback in the polling thread.

    Close it before the objects of the maps that it reads. A callback must not call back into its Events.
    """

    def __init__(self) -> None:
        self._bpf = library()
        self._poller = select.epoll()
        self._waker = os.eventfd(0)
        self._poller.register(self._waker, select.EPOLLIN)
        self._closed = False
        self.streams: dict[int, _Stream] = {}
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, ring: Map, callback: Callable[[Any], object]) -> None:
        """From now on `callback` gets a copy of each record, as the type that EVENTS() names. BpfError.

        What a record is shorter than its type is zeros.
        """
        stream = _Stream(ring, callback, ctypes.sizeof(ring.value))
        stream.receive = EVENT(lambda _, data, size: self._receive(stream, data, size))
        stream.ring = self._bpf.ring_buffer__new(ring.fd, stream.receive, None, None)
        check(stream.ring, f"read ring buffer {ring.name}")
        with self._lock:
            self.streams[ring.fd] = stream
        self._poller.register(ring.fd, select.EPOLLIN)

    def start(self, name: str, gather: float = 0.0, look: float = 0.0) -> None:
        """Polls in a thread of this name until it is closed.

        After few records it lets others gather for so many seconds: to wake up costs more than most records do. With
        `look` it looks every so many seconds for as long as programs that wake it seldom (wake_seldom() of bpf/probe.h)
        may not wake it.
        """
        self._reader = threading.Thread(target=self.run, args=(gather, look), name=name, daemon=True)
        self._reader.start()

    def poll(self, timeout_ms: int) -> int:
        """Waits for records (for ever, if negative) and hands them over; how many.

        A flood ends a call after some thousand records a stream. BpfError when closed.
        """
        try:
            ready = self._poller.poll(timeout_ms / 1000)
        except ValueError as error:  # closed by another thread
            raise BpfError(errno.EBADF, "poll ring buffers: closed") from error
        with self._lock:
            return sum(self._drain(self.streams[fd]) for fd, _ in ready if fd in self.streams)

    def flush(self, ring: Map, seconds: float | None = None) -> bool:
        """Hand over the records that a ring buffer has now, in this thread.

        Returns False and hands over nothing where callbacks keep it waiting for `seconds`, by default half a second.
        """
        if not self._lock.acquire(timeout=_FLUSH_SECONDS if seconds is None else seconds):
            return False
        try:
            if ring.fd in self.streams:
                self._drain(self.streams[ring.fd])
        finally:
            self._lock.release()
        return True

    def collect(self) -> Iterator[Sample]:
        """Records lost so far, by stream (the name of the ring buffer). Waits for no callback."""
        for stream in list(self.streams.values()):
            lost = stream.map.lost()
            if lost is not None:
                yield EVENTS_LOST.sample(lost + stream.failed, {"stream": stream.map.name})

    def close(self) -> None:
        """Stops reading. Once is enough; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._waker, 1)
        if self._reader:
            self._reader.join(_STOP_SECONDS)
        with self._lock:
            for stream in self.streams.values():
                self._bpf.ring_buffer__free(stream.ring)
            self.streams.clear()
            self._poller.close()
            os.close(self._waker)

    def run(self, gather: float, look: float) -> None:
        until = 0.0
        while not self._closed:
            waiting = -1.0 if not look else look if time.monotonic() < until else _IDLE_SECONDS
            try:
                read = self.poll(round(1000 * waiting))
            except BpfError:
                return  # closed while a callback took its time
            if look and (read := read + self._drain_all()):
                until = time.monotonic() + LOOK_SECONDS
            if gather and read < FEW:
                time.sleep(gather)

    def _drain_all(self) -> int:
        with self._lock:
            return sum(map(self._drain, self.streams.values()))

    def _drain(self, stream: _Stream) -> int:
        stream.budget = _AT_ONCE
        self._bpf.ring_buffer__consume(stream.ring)
        return _AT_ONCE - stream.budget

    def _receive(self, stream: _Stream, data: int, size: int) -> int:
        """libbpf's callback: nothing may be raised through it; a negative result ends this round."""
        try:
            record = ctypes.string_at(data, size).ljust(stream.size, b"\0")
            stream.callback(stream.map.value.from_buffer_copy(record))
        except Exception:
            if not stream.failed:
                _log.exception("a record of %s was lost: its reader failed (logged once, counted)", stream.map.name)
            stream.failed += 1
        stream.budget -= 1
        return 0 if stream.budget > 0 else -errno.EAGAIN
