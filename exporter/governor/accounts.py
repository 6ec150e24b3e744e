"""Accounts of processes: what probes took of them beyond the bound, and what they may take now."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from exporter.governor.estimates import ProcessTally
from exporter.governor.weights import FLOOR, Bounds

SPAN = 10.0
"""Seconds over which the bound of a process is kept."""
GRACE = 3.0
"""Seconds from when a process is first seen for which it may cost more: starts of jobs are short."""
_MOST_DEBT = 3.0
"""Seconds that are carried at most: what an offence costs until it is noticed."""
_FADE, _CALM_FADE = 0.9, 0.5
"""Parts of the intensity of earlier offences that stay at each further one, and at each look without one."""
_STEADY, _STEADY_SECONDS = 0.7, 30.0
"""Part of its usual CPU time that a process has to use, for so long, to be taken for one that does not become idle."""
_MEMORY = 300.0
"""Seconds for which a process that cost too much is remembered: noticing it again, without that, takes 3 s of probes at
most, which are the bound of this time."""
TURN = 0.03
"""Seconds of calls that are seen while probes are attached and detached, for a loop of nothing but calls."""
_LONG = 0.5
"""Seconds from which on CPU time is compared with the usual one: pauses are shorter."""
NOTHING = ProcessTally({}, 0.0, 0.0, 0.0, 0.0)


class _Charge(NamedTuple):
    """Seconds that probes took, and might take by the CPU time, from one time to another."""

    begin: float
    end: float
    cost: float
    allowed: float


@dataclass(slots=True)
class Account:
    """The account of one process. `last` is its tally at the newest charge, made at `time`. It may cost more before
    `begin`.
    """

    last: ProcessTally
    time: float
    begin: float
    debt: float = 0.0
    """Seconds that probes took beyond the bound, and that are not made up for yet."""
    offended: float = -inf
    """Time at which the process was last known to cost too much."""
    intensity: float = 0.0
    """Part of its CPU time that probes took at the newest offence, while all calls were probed."""
    _part: float = 0.0
    """Part of its CPU time that these probes may take."""
    _usual: float = 0.0
    """CPU time that it uses in a second."""
    _slack: float = 0.0
    """Time at which it last used less than that."""
    present: float = 0.0
    """Time at which the process was last seen."""
    _charges: deque[_Charge] = field(default_factory=deque)

    def before(self, now: ProcessTally) -> ProcessTally:
        """Return the tally to compare with: counts begin at 0 where the process has replaced its program."""
        if now.cpu < self.last.cpu:  # another process under this pid
            return now
        return NOTHING._replace(cpu=self.last.cpu) if now.cost < self.last.cost else self.last

    def charge(self, now: ProcessTally, time: float, bounds: Bounds) -> None:
        """Take what the process did since the newest charge."""
        before, since = self.before(now), self.time
        self.last, self.time = now, time
        cost = now.cost - before.cost - (now.saved - before.saved)
        allowed = bounds.allowed(before, now)
        self._part = allowed / (now.cpu - before.cpu) if now.cpu > before.cpu else self._part
        self.debt = min(_MOST_DEBT, max(0.0, self.debt + cost - max(allowed, FLOOR * (time - since))))
        if (seconds := time - since) >= _LONG:
            rate = (now.cpu - before.cpu) / seconds
            if rate < _STEADY * self._usual:
                self._slack = time
            self._usual += (rate - self._usual) * min(1.0, seconds / SPAN)
        if time > self.begin:
            self._charges.append(_Charge(since, time, cost, allowed))
        while self._charges and self._charges[0].end <= time - SPAN:
            self._charges.popleft()

    def room(self, time: float, intensity: float, cpu: float | None = None) -> float:
        """Return the seconds that probes may take at once, so that they keep to the bound over the span until now.

        `cpu` is the CPU time now, and what they took since the newest charge is to be subtracted.
        Half as much where they take nearly all of the CPU time, by this part, and the process is idle at times: it may
        be so in the next moment, and then the bound of a span that begins now is less.
        """
        steady = time - max(self._slack, self.begin) >= _STEADY_SECONDS
        parts = [(it, min(1.0, (it.end - time + SPAN) / (it.end - it.begin or 1.0))) for it in self._charges]
        allowed = sum(it.allowed * part for it, part in parts if part > 0)
        allowed += self._part * max(0.0, cpu - self.last.cpu) if cpu is not None else 0.0
        return max(allowed * (1.0 if steady else 1.0 - intensity / 2), FLOOR * SPAN) - sum(
            it.cost for it, part in parts if part > 0
        )

    def free(self, time: float, seconds: float) -> float:
        """Return the time from which on there is room for so many seconds of probes, if calls are as at their worst:
        earlier costs are no part of the span then."""
        missing = self.intensity * seconds - self.room(time, self.intensity)
        for it in self._charges if missing > 0 else ():
            missing -= it.cost
            if missing <= 0:
                return it.end + SPAN
        return time


class Accounts:
    """The accounts of the processes of one collector, by pid. `clock` is in seconds.

    They outlive the files: a process may unload a library and load it again.
    """

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self._bounds, self._clock = bounds, clock
        self._much = bounds.ratio * SPAN
        self._by_pid: dict[int, Account] = {}

    def get(self, pid: int) -> Account | None:
        return self._by_pid.get(pid)

    def charge(self, tallies: Mapping[int, ProcessTally]) -> None:
        """Take what these processes did since they were last charged. What others did is not known any more."""
        now = self._clock()
        for pid, tally in tallies.items():
            if known := self._by_pid.get(pid):
                known.charge(tally, now, self._bounds)
                known.present = now
            else:
                self._by_pid[pid] = Account(tally, now, now + GRACE, self._first_debt(tally), present=now)
        oldest = now - SPAN - _MEMORY
        for pid in [pid for pid, it in self._by_pid.items() if it.present < oldest]:
            del self._by_pid[pid]

    def _first_debt(self, now: ProcessTally) -> float:
        """Return what probes took beyond the bound until now."""
        allowed = self._bounds.allowed(NOTHING, now)
        return min(_MOST_DEBT, max(0.0, now.cost - now.saved - allowed - FLOOR * SPAN))

    def offend(self, pid: int, intensity: float = 0.0) -> None:
        """Take note that a process costs too much."""
        if known := self._by_pid.get(pid):
            known.offended = self._clock()
            known.intensity = max(intensity, _FADE * known.intensity)

    def in_debt(self, pid: int) -> bool:
        """Return whether a process has cost too much, and not made up for it yet."""
        return pid in self._by_pid and self._by_pid[pid].debt > self._much

    def suspects(self) -> set[int]:
        """Return the processes that cost too much not long ago, or have not made up for it."""
        now, much = self._clock(), self._much
        return {
            pid
            for pid, it in self._by_pid.items()
            if now - it.offended < _MEMORY or (it.debt > much and now > it.begin)
        }

    def calm_for(self, pid: int) -> float:
        """Return the seconds since a process was last known to cost too much; infinite if it never did."""
        known = self._by_pid.get(pid)
        return self._clock() - known.offended if known else inf

    def seen_calm(self, pid: int) -> None:
        """Take note that a process cost little while it was probed."""
        if known := self._by_pid.get(pid):
            known.intensity *= _CALM_FADE

    def intensity(self, pid: int) -> float:
        """Return the part of its CPU time that probes take of a process at its worst."""
        known = self._by_pid.get(pid)
        return known.intensity if known and known.intensity else 1.0

    def opens(self, pids: Collection[int], seconds: float) -> float:
        """Return the time from which on these may be probed for so long, if they call as they did at their worst."""
        now = self._clock()
        its = [it for pid in pids if (it := self._by_pid.get(pid))]
        return max((it.free(now, seconds + TURN) for it in its), default=now)
