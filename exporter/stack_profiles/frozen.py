"""Profiles that are kept because something happened: an allocation that failed for want of memory, a hang."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from exporter.stack_profiles.bounds import bounded
from exporter.stack_profiles.model import Profile, Stack

MOST = 8
"""Profiles kept; an older one makes room for a newer one."""


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """A request for memory that failed.

    `size` is in bytes. `free` and `fragmented` are bytes of the GPU that no process held, and bytes that the process's
    allocator had cached in blocks too small for the request; None where they are not known. `labels` are those of a
    sample (model.LABELS), `stack` that of the failed call.
    """

    stack: Stack
    labels: Mapping[str, str]
    size: int
    free: int | None = None
    fragmented: int | None = None
    api: str = ""
    """The function that failed, such as cuMemAlloc_v2."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A kept profile: what was in use on that GPU, by all processes, when the allocation failed.

    `number` counts from 1 since the exporter's start; `time_ns` is wall time.
    """

    number: int
    time_ns: int
    profile: Profile
    failed: FailedAllocation


class FrozenProfiles:
    """The last MOST frozen profiles. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Frozen] = deque(maxlen=MOST)
        self._count = 0

    def freeze(self, profile: Profile, failed: FailedAllocation, time_ns: int) -> Frozen:
        """Keep the in-use profile of the moment `time_ns` at which an allocation failed. Never raises."""
        profile = bounded(profile)
        with self._lock:
            self._count += 1
            frozen = Frozen(self._count, time_ns, profile, failed)
            self._kept.append(frozen)
            return frozen

    def newest_first(self) -> tuple[Frozen, ...]:
        with self._lock:
            return tuple(reversed(self._kept))

    def get(self, number: int) -> Frozen | None:
        """Return the frozen profile of that number; None where there is none, or no longer."""
        return next((frozen for frozen in self.newest_first() if frozen.number == number), None)
