"""Which ranks of this node come later than the others of their communicator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from exporter.ledger import Process
from exporter.model import Distribution, Labels, Sample
from exporter.nccl import metrics
from exporter.nccl.activity import Activity, Membership
from exporter.nccl.samples import comm_hash

_FIRST_S = 64e-6
"""The upper bound of the first slot of LAG_SLOTS in bpf/nccl.h; each is four times the one before."""


def stragglers(processes: Sequence[Process[Activity]]) -> Iterator[Sample]:
    """The lags of all ranks that are not alone on this node, and by how many calls each is behind."""
    together = _together([it for process in processes for it in process.activity.lags])
    furthest = _furthest(processes)
    for process in processes:
        for member, lag in process.activity.lags.items():
            if member[:2] in together:
                bounds = tuple(_FIRST_S * 4**slot for slot in range(len(lag.slots) - 1))
                value = Distribution(bounds, lag.slots, lag.sum_ns / 1e9)
                yield Sample(metrics.LAG, _labels(process, member), value, process.since)
        for member, number in process.activity.numbers.items():
            if member[:2] in furthest:
                behind = min(furthest[member[:2]] - number, (1 << 63) - 1)
                yield Sample(metrics.BEHIND, _labels(process, member), behind, process.since)


def _labels(process: Process[Activity], member: Membership) -> Labels:
    return {**process.labels, "comm_hash": comm_hash(member.hash), "rank": str(member.rank)}


def _together(members: Sequence[Membership]) -> set[tuple[int, ...]]:
    ranks = Counter(it[:2] for it in set(members))
    return {communicator for communicator, count in ranks.items() if count > 1}


def _furthest(processes: Sequence[Process[Activity]]) -> dict[tuple[int, ...], int]:
    """The most calls of each communicator that has two ranks or more here."""
    numbers = [it for process in processes for it in process.activity.numbers.items()]
    together = _together([member for member, _ in numbers])
    most: dict[tuple[int, ...], int] = {}
    for member, number in numbers:
        if member[:2] in together:
            most[member[:2]] = max(number, most.get(member[:2], 0))
    return most
