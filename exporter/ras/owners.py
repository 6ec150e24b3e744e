"""The user of each communicator of this node: a RAS report counts only for communicators of the reporting user."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from exporter.ras.report import Report
from exporter.resolve.communicators import Member


class CommunicatorOwners:
    """The first user of each communicator. Any process can read a communicator's hash and claim it later."""

    def __init__(self) -> None:
        self._users: dict[str, int] = {}

    def update(self, members: Iterable[Member], user: Callable[[int], int | None]) -> None:
        """Replace the known members by `members`. `user` returns the uid of a pid, or None when the process ended."""
        users: dict[str, int] = {}
        for member in members:
            if member.comm_hash in self._users:
                users[member.comm_hash] = self._users[member.comm_hash]
            elif member.comm_hash not in users and (found := user(member.pid)) is not None:
                users[member.comm_hash] = found
        self._users = users

    def trusted(self, report: Report, user: int, own: Iterable[str]) -> Report | None:
        """Return the report without communicators of other users, or None when the report is of another job.

        `own` are the hashes of the queried process: a report of its job names one of them, except that the text of
        older NCCL does not name healthy communicators. Communicators without a process here are on other nodes.
        """
        named = {comm.comm_hash for comm in report.communicators}
        if report.whole and named.isdisjoint(own):
            return None
        kept = tuple(comm for comm in report.communicators if self._users.get(comm.comm_hash, user) == user)
        return replace(report, communicators=kept)
