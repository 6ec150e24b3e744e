"""The queue pairs that post most: the few that a page without all queue pairs shows one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

from exporter.ledger import Process
from exporter.model import Sample
from exporter.verbs.activity import Activity, QpId
from exporter.verbs.metrics import BUSIEST
from exporter.verbs.posts import UNKNOWN_QP
from exporter.verbs.samples import PeerLabels

MOST = 10
LEAST_SECONDS = 5.0
"""Time between two readings of counts that a rate is made of."""


class _Pair(NamedTuple):
    """A queue pair of a process, which two queue pairs with one number in turn are as one."""

    pid: int
    since: float
    device: str
    number: int


class Busiest:
    """The rates of the queue pairs that posted most between the last two readings of counts. One thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: Mapping[_Pair, int] = {}
        self._at: float | None = None
        self._rates: Mapping[_Pair, float] = {}

    def samples(self, processes: Sequence[Process[Activity]], peer_labels: PeerLabels) -> Iterator[Sample]:
        """Yield a sample of each; none before the second reading, nor of processes that have ended."""
        now = self._clock()
        if self._at is None or now - self._at >= LEAST_SECONDS:
            self._read(processes, now)
        for process in processes:
            if process.ended or not self._rates:
                continue
            for qp_id in _newest(process.activity):
                rate = self._rates.get(_Pair(process.pid, process.since, qp_id.device, qp_id.number))
                if rate is not None:
                    peer = peer_labels.of(process.pid, process.activity.qps, qp_id)
                    own = {"device": qp_id.device, "qp": str(qp_id.number), **peer}
                    yield BUSIEST.sample(rate, {**process.labels, **own})

    def _read(self, processes: Sequence[Process[Activity]], now: float) -> None:
        counts: dict[_Pair, int] = {}
        for process in processes:
            for (qp_id, _), posted in process.activity.posted.items():
                if qp_id.number == UNKNOWN_QP:
                    continue
                pair = _Pair(process.pid, process.since, qp_id.device, qp_id.number)
                counts[pair] = counts.get(pair, 0) + posted.bytes
        if self._at is not None:  # what was not there then has posted all its bytes since
            risen = {pair: count - self._counts.get(pair, 0) for pair, count in counts.items()}
            most = nlargest(MOST, (pair for pair, bytes_ in risen.items() if bytes_ > 0), risen.__getitem__)
            self._rates = {pair: risen[pair] / (now - self._at) for pair in most}
        self._counts, self._at = counts, now


def _newest(activity: Activity) -> Iterator[QpId]:
    """Yield the queue pairs of a process that posted; of those with one number the one made last."""
    newest: dict[tuple[str, int], QpId] = {}
    for qp_id, _ in activity.posted:
        known = newest.get((qp_id.device, qp_id.number))
        if known is None or known.created_ns < qp_id.created_ns:
            newest[qp_id.device, qp_id.number] = qp_id
    yield from newest.values()
