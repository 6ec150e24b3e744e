"""Work requests of destroyed queue pairs: sent by the BPF program when it deletes rows, and kept for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from exporter.ledger import RETENTION
from exporter.verbs.control import Qp
from exporter.verbs.records import PostedCounts, QpEnd, QpLifeKey

MOST = 4096
"""Queue pairs that are kept; of more the oldest are dropped first, with all that had the same number."""
NO_OPCODE = 0xFFFFFFFF
"""As in bpf/verbs/qp.h: the record has no requests."""


class PostedRequests(NamedTuple):
    """Work requests of one queue pair and opcode."""

    requests: int = 0
    bytes: int = 0
    packets: int = 0
    unsized: int = 0
    """Requests without a known MTU: then packets are not known."""

    @classmethod
    def of(cls, row: PostedCounts) -> PostedRequests:
        """Return the counts of a struct posted."""
        return cls(row.requests, row.bytes, row.packets, row.unsized)

    def plus(self, more: PostedRequests) -> PostedRequests:
        """Return the sums of both."""
        return PostedRequests(*(a + b for a, b in zip(self, more, strict=True)))


class QpPlace(NamedTuple):
    """Key common to queue pairs that had the same number one after the other, and to their series."""

    tgid: int
    context: int
    number: int


class QpLife(NamedTuple):
    """struct qp_life: one queue pair, distinct from later ones of the same number."""

    tgid: int
    context: int
    number: int
    created_ns: int

    @classmethod
    def of(cls, row: QpLifeKey) -> QpLife:
        return cls(row.qp.tgid, row.qp.context, row.qp.number, row.created_ns)

    @property
    def place(self) -> QpPlace:
        return QpPlace(self.tgid, self.context, self.number)


@dataclass(slots=True)
class Destroyed:
    """State of one destroyed queue pair. `expires` is a time in seconds of the clock of DestroyedQps."""

    expires: float
    qp: Qp | None = None
    """The queue pair before its end; None where that is not known."""
    calls: int = 0
    posted: dict[int, PostedRequests] = field(default_factory=dict)
    """By opcode."""


class DestroyedQps:
    """The queue pairs destroyed in the last five minutes (exporter.ledger.RETENTION), and those before them of the
    same numbers, or of numbers that living ones have: no series of theirs falls. Safe from any thread.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._destroyed: dict[QpLife, Destroyed] = {}
        self._living: Collection[QpPlace] = frozenset()
        self.added = 0
        """Records so far."""

    def add(self, record: QpEnd) -> None:
        """Add a struct qp_end."""
        life = QpLife.of(record.life)
        with self._lock:
            self.added += 1
            destroyed = self._destroyed.setdefault(life, Destroyed(self._now() + RETENTION))
            destroyed.qp = Qp.of(record.qp) if record.qp.number else destroyed.qp
            destroyed.calls += record.calls
            if record.opcode != NO_OPCODE:
                before = destroyed.posted.get(record.opcode, PostedRequests())
                destroyed.posted[record.opcode] = before.plus(PostedRequests.of(record.posted))
            if len(self._destroyed) > MOST:
                self._make_room()

    def _make_room(self) -> None:
        """Drop an eighth, the oldest first and those of living numbers last."""
        oldest = sorted(self._destroyed, key=lambda life: life.place in self._living)
        dropped = {life.place for life in oldest[: MOST // 8]}
        self._destroyed = {life: it for life, it in self._destroyed.items() if life.place not in dropped}

    def now(self) -> dict[QpLife, Destroyed]:
        """Return copies of the queue pairs that are kept."""
        with self._lock:
            return {life: replace(it, posted=dict(it.posted)) for life, it in self._destroyed.items()}

    def expire(self, living: Collection[QpPlace]) -> Collection[QpLife]:
        """Drop the queue pairs of which the time is over, but for numbers that are used; return those dropped."""
        with self._lock:
            now, self._living = self._now(), living
            kept = {life.place for life, it in self._destroyed.items() if it.expires > now}.union(living)
            dropped = [life for life in self._destroyed if life.place not in kept]
            for life in dropped:
                del self._destroyed[life]
            return dropped

    def take(self, pids: Collection[int]) -> dict[QpLife, Destroyed]:
        """Remove the queue pairs of these processes, and return them."""
        with self._lock:
            taken = {life: it for life, it in self._destroyed.items() if life.tgid in pids}
            for life in taken:
                del self._destroyed[life]
            return taken
