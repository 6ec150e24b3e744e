"""Profiles that are kept because something happened, the newest few."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

MOST = 8
"""Profiles kept; an older one makes room for a newer one."""


class Numbered(Protocol):
    @property
    def number(self) -> int:
        """The number of this profile, from 1 since the exporter's start."""
        ...


K = TypeVar("K", bound=Numbered)


class Kept(Generic[K]):
    """The last MOST profiles of a kind. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[K] = deque(maxlen=MOST)
        self._count = 0

    def keep(self, make: Callable[[int], K]) -> K:
        """Keep what `make` makes with its number."""
        with self._lock:
            self._count += 1
            made = make(self._count)
            self._kept.append(made)
            return made

    @property
    def count(self) -> int:
        """Profiles that were ever kept."""
        with self._lock:
            return self._count

    def newest_first(self) -> tuple[K, ...]:
        with self._lock:
            return tuple(reversed(self._kept))

    def get(self, number: int) -> K | None:
        """Return the profile of that number; None where there is none, or no longer."""
        return next((it for it in self.newest_first() if it.number == number), None)
