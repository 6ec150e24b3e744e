"""Series that are shown no more because their counts went into a folded one: pages that add up count these once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from exporter.model import Metric, Sample

MOST = 16_384
"""Moves of one limit that are kept for pages that have not read them; a page that is further behind counts twice."""


@dataclass(frozen=True, slots=True)
class Move:
    """A move of the counts of a series, with its last values, into the folded series with the key `into`.

    Without a series the folded series has ended: a later one with its key counts from 0.
    """

    metric: Metric
    series: Sample | None
    into: str


class Moves:
    """The moves of one limit, in their order. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: deque[Move] = deque(maxlen=MOST)
        self.count = 0
        """Moves ever."""

    def add(self, metric: Metric, series: Sample | None, into: str) -> None:
        """Add a move."""
        with self._lock:
            self._last.append(Move(metric, series, into))
            self.count += 1

    def between(self, first: int, end: int) -> list[Move]:
        """Return the moves from the first to before the end, both counted from 0, that are still kept."""
        with self._lock:
            before = self.count - len(self._last)
            return list(islice(self._last, max(0, first - before), max(0, end - before)))


@dataclass(slots=True, kw_only=True)
class MovesSample(Sample):
    """A sample with which a limit gives pages its moves: the samples beside it are as after the first `count`."""

    moves: Moves
    count: int


@dataclass(slots=True)
class _Read:
    moves: Moves
    count: int
    into: dict[str, Metric] = field(default_factory=dict)
    """The folded series of the moves that were read."""


class MovesReader:
    """The moves that one page has read from the limits before it. One thread at a time."""

    def __init__(self) -> None:
        self._read: dict[str, _Read] = {}
        """By collector."""

    def read(self, samples: Iterable[Sample]) -> list[Move]:
        """Return the moves between the page before and the one of these samples.

        Moves before a collector's first page are of no series that the page knows. The folded series of a collector
        that was replaced have ended.
        """
        found: list[Move] = []
        for sample in samples:
            if sample.__class__ is MovesSample:
                found += self._of(sample)
        return found

    def _of(self, sample: MovesSample) -> list[Move]:
        collector = sample.labels["collector"]
        read = self._read.get(collector)
        if read is None or read.moves is not sample.moves:
            self._read[collector] = _Read(sample.moves, sample.count)
            return [Move(metric, None, into) for into, metric in read.into.items()] if read else []
        if read.count == sample.count:
            return []
        moves = read.moves.between(read.count, sample.count)
        read.count = sample.count
        for move in moves:
            if move.series is None:
                read.into.pop(move.into, None)
            else:
                read.into[move.into] = move.metric
        return moves
