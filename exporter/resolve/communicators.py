"""The NCCL communicators of this node's processes: written by the NCCL collector, read by others."""

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
    """The memberships on the node, one object for all collectors; empty at first. Safe from any thread."""

    def __init__(self) -> None:
        self._members: tuple[Member, ...] = ()

    def replace(self, members: Iterable[Member]) -> None:
        """Replace all memberships by those of the running processes."""
        self._members = tuple(members)

    def all(self) -> tuple[Member, ...]:
        return self._members

    def rank_zero_pids(self) -> list[int]:
        """Return the pids of the processes that are rank 0 of their largest communicator, in ascending order.

        A job has one such process, on one node, so a job is queried once however many nodes run this exporter.
        """
        largest = self._largest()
        first = (member for member in self._members if member.rank == 0)
        return sorted({member.pid for member in first if member.nranks == largest[member.pid].nranks})

    def ranks(self) -> dict[int, int]:
        """Return the rank of each process in its largest communicator, by pid."""
        return {pid: member.rank for pid, member in self._largest().items()}

    def peers(self, pid: int) -> set[int]:
        """Return the processes of this node in a communicator with a process, itself included."""
        members = self._members
        shared = {member.comm_hash for member in members if member.pid == pid}
        return {pid, *(member.pid for member in members if member.comm_hash in shared)}

    def _largest(self) -> dict[int, Member]:
        largest: dict[int, Member] = {}
        for member in self._members:
            if member.pid not in largest or member.nranks > largest[member.pid].nranks:
                largest[member.pid] = member
        return largest
