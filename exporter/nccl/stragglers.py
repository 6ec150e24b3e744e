"""Arrival lags: delays of the ranks of this node after the first rank of their communicator here, and calls behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from exporter.durations import durations
from exporter.ledger import Process
from exporter.model import Labels, Sample
from exporter.nccl import metrics
from exporter.nccl.activity import Activity, Membership
from exporter.nccl.samples import comm_hash

_Communicator = tuple[int, int, int]
LAG_FIRST = -14
"""LAG_FIRST of bpf/nccl/nccl.h; the bound of a slot is four times the one before."""


def stragglers(processes: Sequence[Process[Activity]]) -> Iterator[Sample]:
    """The lags of all ranks that are not alone on this node, and by how many calls each is behind."""
    together = _together(it for process in processes for it in process.activity.lags)
    furthest = _furthest(processes)
    for process in processes:
        for member, lag in process.activity.lags.items():
            if _communicator(member) in together:
                value = durations(lag.slots, lag.sum_ns, LAG_FIRST, step=2)
                yield Sample(metrics.LAG, _labels(process, member), value, process.since)
        for member, number in process.activity.numbers.items():
            if (most := furthest.get(_communicator(member))) is not None:
                behind = min(most - number, (1 << 63) - 1)
                yield Sample(metrics.BEHIND, _labels(process, member), behind, process.since)


def _communicator(member: Membership) -> _Communicator:
    return member.domain, member.hash, member.nranks


def _labels(process: Process[Activity], member: Membership) -> Labels:
    return {**process.labels, "comm_hash": comm_hash(member.hash), "rank": str(member.rank)}


def _together(members: Iterable[Membership]) -> set[_Communicator]:
    """The communicators of which two ranks or more are here."""
    ranks = Counter(_communicator(it) for it in set(members))
    return {communicator for communicator, count in ranks.items() if count > 1}


def _furthest(processes: Sequence[Process[Activity]]) -> dict[_Communicator, int]:
    """The most calls of each communicator that has two ranks or more here."""
    numbers = [it for process in processes for it in process.activity.numbers.items()]
    together = _together(member for member, _ in numbers)
    most: dict[_Communicator, int] = {}
    for member, number in numbers:
        if (communicator := _communicator(member)) in together:
            most[communicator] = max(number, most.get(communicator, 0))
    return most
