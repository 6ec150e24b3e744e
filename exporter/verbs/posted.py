"""Bytes that processes of this node posted to be sent: the verbs collector tells, the InfiniBand collector asks."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """What was posted on one port of a device since every process was observed; `since` tells one such time from
    the next, and counts from 1.
    """

    bytes: int
    since: int


class Posted:
    """One for a node. Safe from any thread. Says nothing of bytes until `whole` was called, nor after `lapse`."""

    def __init__(self) -> None:
        self._bytes: Counter[tuple[str, int]] = Counter()
        self._since = 0
        self._whole = False
        self._lock = threading.Lock()

    def add(self, device: str, port: int, count: int) -> None:
        """So many bytes more that this host's port sends: SEND, WRITE and atomics, not READ, whose data the peer sends.

        `device` as in /sys/class/infiniband; `port` counts from 1 and is 0 where it is not known, which makes what is
        known of every port of the device uncertain.
        """
        with self._lock:
            self._bytes[device, port] += count

    def whole(self) -> None:
        """From now on every process that can post is observed. Calling it again changes nothing."""
        with self._lock:
            if not self._whole:
                self._whole = True
                self._since += 1

    def lapse(self) -> None:
        """Something that can post is not observed, or calls were lost."""
        with self._lock:
            self._whole = False

    def seen(self, device: str, port: int, only_port: bool = False) -> Seen | None:
        """What is known of a port, None when that is not everything. `only_port`: the device has no other one."""
        with self._lock:
            if not self._whole:
                return None
            unknown = self._bytes[device, 0]
            if unknown and not only_port:
                return None
            return Seen(self._bytes[device, port] + unknown, self._since)
