"""What destroyed queue pairs had posted: the kernel tells when it drops their rows, and it is kept here for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from exporter.ledger import RETENTION
from exporter.verbs.control import Qp

MOST = 4096
"""Queue pairs; of more the oldest go first."""
NO_OPCODE = 0xFFFFFFFF
"""Of bpf/verbs_qp.h."""


class Posted(NamedTuple):
    """Work requests of one queue pair and opcode."""

    requests: int = 0
    bytes: int = 0
    packets: int = 0
    unsized: int = 0
    """Requests without a known MTU: then packets are not known."""

    @classmethod
    def of(cls, row: Any) -> Posted:
        """From struct posted."""
        return cls(*(_signed(getattr(row, name)) for name in cls._fields))

    def plus(self, more: Posted) -> Posted:
        return Posted(*(a + b for a, b in zip(self, more, strict=True)))


class Place(NamedTuple):
    """struct qp_life: one queue pair, told apart from later ones with its number."""

    tgid: int
    context: int
    number: int
    created_ns: int

    @classmethod
    def of(cls, row: Any) -> Place:
        return cls(row.qp.tgid, row.qp.context, row.qp.number, row.created_ns)


@dataclass(slots=True)
class Destroyed:
    expires: float
    qp: Qp | None = None
    """As it was; None if that is not known."""
    calls: int = 0
    posted: dict[int, Posted] = field(default_factory=dict)
    """By opcode."""


class Gone:
    """Safe from any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._destroyed: dict[Place, Destroyed] = {}

    def add(self, record: Any) -> None:
        """Takes a struct qp_end."""
        place = Place.of(record.life)
        with self._lock:
            it = self._destroyed.setdefault(place, Destroyed(self._now() + RETENTION))
            it.qp = Qp.of(record.qp) if record.qp.number else it.qp
            it.calls += record.calls
            if record.opcode != NO_OPCODE:
                it.posted[record.opcode] = it.posted.get(record.opcode, Posted()).plus(Posted.of(record.posted))
            while len(self._destroyed) > MOST:
                del self._destroyed[next(iter(self._destroyed))]

    def now(self) -> dict[Place, Destroyed]:
        """Those of the last five minutes."""
        with self._lock:
            now = self._now()
            self._destroyed = {place: it for place, it in self._destroyed.items() if it.expires > now}
            return {
                place: Destroyed(it.expires, it.qp, it.calls, dict(it.posted)) for place, it in self._destroyed.items()
            }

    def take(self, pids: Collection[int]) -> dict[Place, Destroyed]:
        """Removes those of these processes, and returns them."""
        with self._lock:
            taken = {place: it for place, it in self._destroyed.items() if place.tgid in pids}
            for place in taken:
                del self._destroyed[place]
            return taken


def _signed(count: int) -> int:
    """Calls that failed take back what they had counted, a moment later and from memory that may have changed."""
    return 0 if count >> 63 else int(count)
