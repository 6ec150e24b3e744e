"""Bytes that processes of this node posted to be sent: the verbs collector tells, the InfiniBand collector asks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_REMEMBERED_NS = 300_000_000_000


class Port(NamedTuple):
    device: str
    """As in /sys/class/infiniband."""
    number: int
    """From 1; 0 where it is not known."""


@dataclass(frozen=True)
class Told:
    """What is known at one moment of everything that was posted."""

    bytes: Mapping[Port, int]
    since: int
    """The time from which on all posts were seen, monotonic nanoseconds: tells one such time from the next."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was posted on one port; `since` as in Told."""

    bytes: int
    since: int


class Posted:
    """One for a node. Safe from any thread."""

    def __init__(self) -> None:
        self._ask: Callable[[], Told | None] | None = None
        self._lock = threading.Lock()

    def follow(self, ask: Callable[[], Told | None] | None) -> None:
        """Who knows: `ask` gives all that was posted until it is called, None while that is not certain."""
        with self._lock:
            self._ask = ask

    def seen(self, device: str, port: int, only_port: bool = False) -> Seen | None:
        """What was posted on a port until now, None when that is not certain: as when it may be another port's.

        `only_port`: the device has no other one.
        """
        with self._lock:
            told = self._ask() if self._ask else None
        if told is None:
            return None
        unknown = told.bytes.get(Port(device, 0), 0)
        if unknown and not only_port:
            return None
        return Seen(told.bytes.get(Port(device, port), 0) + unknown, told.since)


class Sums:
    """Sums by port that stay when what they are made of goes. One thread at a time."""

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._now = now
        self._last: dict[Hashable, tuple[int, int]] = {}
        """Bytes, and when they were there last: what moves from the kernel to us may be missing for a moment."""
        self._sums: Counter[Port] = Counter()
        self._certain: object = None
        self._since = 0

    def see(self, counts: Mapping[Hashable, tuple[Port, int]], certain: object) -> Told | None:
        """Takes what there is now, each with its port and bytes since it was there first.

        `certain` is None while something may be missing; another value than the last time says that something was.
        """
        now = self._now()
        for key, (port, count) in counts.items():
            known, _ = self._last.get(key, (0, 0))
            self._sums[port] += count - known
            self._last[key] = count, now
        self._last = {key: it for key, it in self._last.items() if now - it[1] < _REMEMBERED_NS}
        if certain != self._certain:
            self._certain, self._since = certain, now
        return None if certain is None else Told(dict(self._sums), self._since)
