"""Which user each communicator of this node belongs to: a report of RAS counts only for those of its own user."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from exporter.ras.report import Report
from exporter.resolve.communicators import Member


class Owners:
    """Remembers the first user of each communicator: a hash can be read by all, and claimed later by anybody."""

    def __init__(self) -> None:
        self._users: dict[str, int] = {}

    def see(self, members: Iterable[Member], user: Callable[[int], int | None]) -> None:
        """These are all there are now. `user` gives the uid of a pid, None when that is gone."""
        users: dict[str, int] = {}
        for it in members:
            if it.comm_hash in self._users:
                users[it.comm_hash] = self._users[it.comm_hash]
            elif it.comm_hash not in users and (found := user(it.pid)) is not None:
                users[it.comm_hash] = found
        self._users = users

    def believed(self, report: Report, user: int, own: Iterable[str]) -> Report | None:
        """The report without communicators of other users; None where it is of another job than that of `own`.

        `own` are the hashes of the process that was asked. Those that no process here is in are of the job's other
        nodes. The text of older NCCL does not name what is healthy, so it need not name its own.
        """
        named = {it.comm_hash for it in report.communicators}
        if report.whole and named.isdisjoint(own):
            return None
        kept = tuple(it for it in report.communicators if self._users.get(it.comm_hash, user) == user)
        return replace(report, communicators=kept)
