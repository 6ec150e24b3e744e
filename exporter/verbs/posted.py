"""Bytes that processes of this node posted to be sent: the verbs collector counts them, the InfiniBand collector reads
them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_REMEMBERED_NS = 300_000_000_000


class RdmaPort(NamedTuple):
    """One port of an RDMA device."""

    device: str
    """The name in /sys/class/infiniband."""
    number: int
    """From 1; 0 where it is not known."""


@dataclass(frozen=True)
class PostedBytes:
    """All bytes posted until one moment."""

    bytes: Mapping[RdmaPort, int]
    since: int
    """The time from which on all posts were seen, in monotonic nanoseconds. Another time is another count."""


@dataclass(frozen=True, slots=True)
class PortBytes:
    """Bytes posted on one port; `since` as in PostedBytes."""

    bytes: int
    since: int


class Posted:
    """The posted bytes of a node, from a source. Safe from any thread."""

    def __init__(self) -> None:
        self._source: Callable[[], PostedBytes | None] | None = None
        self._lock = threading.Lock()

    def follow(self, source: Callable[[], PostedBytes | None] | None) -> None:
        """Set the source, None for none. It returns what was posted until the call, None while that is not certain."""
        with self._lock:
            self._source = source

    def seen(self, device: str, port: int, only_port: bool = False) -> PortBytes | None:
        """Return what was posted on a port until now; None when that is not certain, as when it may be another port's.

        `only_port`: the device has no other port.
        """
        with self._lock:
            posted = self._source() if self._source else None
        if posted is None:
            return None
        unknown = posted.bytes.get(RdmaPort(device, 0), 0)
        if unknown and not only_port:
            return None
        return PortBytes(posted.bytes.get(RdmaPort(device, port), 0) + unknown, posted.since)


class PostedSums:
    """Sums of bytes by port, which keep what ended processes and queue pairs posted. For one thread at a time."""

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._now = now
        self._last: dict[Hashable, tuple[int, int]] = {}
        """Bytes of a row, and when it was there last: a row may be missing while it moves from the kernel to Python."""
        self._sums: Counter[RdmaPort] = Counter()
        self._certain: object = None
        self._since = 0

    def see(self, counts: Mapping[Hashable, tuple[RdmaPort, int]], certain: object) -> PostedBytes | None:
        """Add the rows there are now, each with its port and its bytes so far, and return the sums.

        `certain` is None while something may be missing, and changes when something was. Returns None while it is None.
        """
        now = self._now()
        for key, (port, count) in counts.items():
            known, _ = self._last.get(key, (0, 0))
            self._sums[port] += count - known
            self._last[key] = count, now
        self._last = {key: last for key, last in self._last.items() if now - last[1] < _REMEMBERED_NS}
        if certain != self._certain:
            self._certain, self._since = certain, now
        return None if certain is None else PostedBytes(dict(self._sums), self._since)
