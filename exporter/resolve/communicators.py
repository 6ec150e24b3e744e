"""Which NCCL communicators the processes of this node are in: the NCCL collector writes it, others read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """A process as one rank of a communicator; `comm_hash` as NCCL prints it: 16 hex digits."""

    pid: int
    comm_hash: str
    rank: int
    nranks: int


class Communicators:
    """One for a node. Knows nothing before it is told. Safe from any thread."""

    def __init__(self) -> None:
        self._members: tuple[Member, ...] = ()

    def tell(self, members: Iterable[Member]) -> None:
        """These are all there are now, of processes that run."""
        self._members = tuple(members)

    def all(self) -> tuple[Member, ...]:
        return self._members

    def speakers(self) -> list[int]:
        """The processes to ask about their job: each is rank 0 of its largest communicator. In order of pid.

        A job has one, on one node, so however many nodes ask, a job is asked once.
        """
        largest: dict[int, int] = {}
        for it in self._members:
            largest[it.pid] = max(largest.get(it.pid, 0), it.nranks)
        return sorted({it.pid for it in self._members if it.rank == 0 and it.nranks == largest[it.pid]})
