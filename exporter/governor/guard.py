"""Frequent looks at processes that cost too much not long ago, while their calls are probed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from exporter.governor.accounts import TURN, Account, Accounts
from exporter.governor.estimates import ProcessTally

GUARD_SECONDS = 0.02
"""Time between two looks."""
_LEAST_CPU = 0.002
_PART = 0.03
"""Part of the time that reading may take."""
_HASTE = 60.0
"""Seconds of calm after which calls are read less often, in proportion to the time."""


class Guard:
    """Finds those of which probes take more than there is room for in the bound.

    `tallies` returns what they did, of this collector alone; `cpu` their CPU times, which are cheap to read: probes
    cannot have taken more than that since the last reading. None to always read.
    """

    def __init__(
        self,
        accounts: Accounts,
        tallies: Callable[[Collection[int]], Mapping[int, ProcessTally]],
        cpu: Callable[[Collection[int]], Mapping[int, float]] | None,
        clock: Callable[[], float],
    ) -> None:
        self._accounts, self._tallies, self._cpu, self._clock = accounts, tallies, cpu, clock
        self._rests = clock()
        """Time until which nothing is read, as reading took so long."""
        self._read: dict[int, tuple[float, ProcessTally]] = {}
        """The time and tally of the newest reading, by pid."""

    def look(self, pids: Collection[int]) -> dict[int, float]:
        """Return those that cost too much now, with the part of their CPU time that probes take."""
        found, time = {}, self._clock()
        its = {pid: it for pid in pids if (it := self._accounts.get(pid))}
        self._read = {pid: self._newest(pid, it, time) for pid, it in its.items()}
        if time >= self._rests and (due := self._due(its)):
            tallies = self._tallies(due)
            self._rests = time + (self._clock() - time) / _PART
            for pid, now in tallies.items():
                if intensity := self._exceeds(its[pid], *self._read[pid], now):
                    found[pid] = intensity
                self._read[pid] = time, now
        return found

    def _newest(self, pid: int, account: Account, time: float) -> tuple[float, ProcessTally]:
        """Return the time and tally of the newest reading that is old enough to compare with."""
        read = self._read.get(pid)
        charged = account.time, account.last
        return charged if not read or read[0] < account.time <= time - GUARD_SECONDS / 2 else read

    def _due(self, its: Mapping[int, Account]) -> Collection[int]:
        """Return those that used enough CPU time for probes to have taken too much since the last reading."""
        if self._cpu is None:
            return its.keys()
        time, due = self._clock(), []
        for pid, cpu in self._cpu(its.keys()).items():
            account, (_, read) = its[pid], self._read[pid]
            room = account.room(time, 1.0, cpu) - _cost(account.last, read) - TURN - GUARD_SECONDS
            calm = time - max(account.offended, account.begin)
            if cpu - read.cpu >= max(_LEAST_CPU, room) * max(1.0, calm / _HASTE):
                due.append(pid)
            elif cpu - read.cpu < _LEAST_CPU:
                self._read[pid] = time, read
        return due

    def _exceeds(self, account: Account, since: float, before: ProcessTally, now: ProcessTally) -> float:
        """Return the part of its CPU time that probes take of a process, 0 if that may go on.

        It goes on until the next look, and while probes are detached.
        """
        time, cost, cpu = self._clock(), _cost(before, now), now.cpu - before.cpu
        intensity = min(1.0, cost / cpu) if cpu > 0 else 0.0
        rate = cost / max(GUARD_SECONDS, time - since)
        room = account.room(time, intensity, now.cpu) - _cost(account.last, now)
        return intensity if rate * (TURN + GUARD_SECONDS) > room else 0.0


def _cost(before: ProcessTally, now: ProcessTally) -> float:
    return max(0.0, now.cost - before.cost - (now.saved - before.saved))
