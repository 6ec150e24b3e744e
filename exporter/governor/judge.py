"""Comparison of what the processes of one file lost with what they may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.governor.accounts import Accounts
from exporter.governor.estimates import ProcessTally
from exporter.governor.ladder import LEAST
from exporter.governor.standings import Standings
from exporter.governor.weights import FLOOR, Bounds, Weight

_SEEN_SECONDS, _SEEN = 0.002, 0.2
"""CPU time in windows, or part of what they should have of it, with which they have seen a process."""
Tallies = Mapping[int, ProcessTally]


@dataclass(frozen=True, slots=True)
class Interval:
    """The time between two looks."""

    before: Tallies
    now: Tallies
    seconds: float
    share: float
    """The part of it in which processes without links of their own were probed."""
    planned: float
    """The part in which they were to be probed."""
    worked: Mapping[int, float] | None
    """CPU times of processes in the window; None if all of the interval was one."""

    def used(self, pid: int) -> float:
        """Return the CPU time of a process."""
        return self.now[pid].cpu - self.before[pid].cpu


@dataclass(slots=True)
class Verdict:
    """Findings of an interval."""

    pressure: float = 0.0
    """Pressure of the process in windows for which it is highest; it decides."""
    for_node: bool = False
    """True if the bound of the node was decisive, not the bound of a process."""
    again: bool = False
    """True if a process cost too much that has not made up for earlier costs."""
    seen: bool = True
    """False if a process worked between windows and not in them: it may have done anything."""
    used: float = 0.0
    """Cost in the process for which it is highest, in parts of its bound."""
    rates: Mapping[int, float] = field(default_factory=dict)
    """Cost of the functions by process, in cores."""
    offenders: Mapping[int, float] = field(default_factory=dict)
    """Processes that cost too much, with the part of their CPU time that probes take if all calls are probed."""


class Judge:
    """Keeps the standings and accounts of the processes of one file."""

    def __init__(self, bounds: Bounds, accounts: Accounts) -> None:
        self._bounds = bounds
        self.standings, self.accounts = Standings(), accounts

    def judge(self, interval: Interval) -> Verdict:
        """Compare what each process lost in an interval with its bound, and keep that in mind."""
        verdict, weights = Verdict(), self._weights(interval)
        for pid, weight in weights.items():
            kept = pid in self.standings.kept
            if not kept and weight.pressure > verdict.pressure:
                verdict.pressure, verdict.for_node = weight.pressure, weight.pressure > weight.own
            verdict.again |= weight.pressure > 1 and self.accounts.in_debt(pid)
        self.accounts.charge(interval.now)
        verdict.used = max((weight.used for weight in weights.values()), default=0.0)
        verdict.rates = {pid: weight.rate for pid, weight in weights.items()}
        self._compare(interval, weights, verdict)
        return verdict

    def _weights(self, interval: Interval) -> dict[int, Weight]:
        cap, found = self._bounds.cap(), {}
        for pid in interval.now.keys() & interval.before.keys() if interval.seconds else ():
            least = FLOOR * interval.seconds * (1.0 if pid in self.standings.kept else interval.planned)
            found[pid] = self._bounds.weight(interval.before[pid], interval.now[pid], interval.seconds, least, cap)
        return found

    def _compare(self, interval: Interval, weights: Mapping[int, Weight], verdict: Verdict) -> None:
        """Find out which processes are polite, and whether windows saw enough of those that are in windows."""
        share, kept = max(interval.share, LEAST), self.standings.kept
        worked = {
            pid: interval.used(pid) if interval.worked is None else interval.worked.get(pid, 0.0) for pid in weights
        }
        busy = {pid: worked[pid] for pid in weights if interval.used(pid) > FLOOR * interval.seconds}
        impolite = self.standings.look({pid: weight.pressure for pid, weight in weights.items()}, share, busy) - kept
        verdict.offenders = {pid: self._intensity(interval, pid, share) for pid in impolite}
        for pid in busy.keys() - kept:
            used = share * interval.used(pid)
            missed = worked[pid] < min(_SEEN_SECONDS, _SEEN * used)
            verdict.seen &= not (missed and 2 * used * self.accounts.intensity(pid) > FLOOR * interval.seconds)
        for pid in weights.keys() - impolite if verdict.seen else ():
            self.accounts.seen_calm(pid)

    @staticmethod
    def _intensity(interval: Interval, pid: int, share: float) -> float:
        cost, used = interval.now[pid].cost - interval.before[pid].cost, interval.used(pid)
        return min(1.0, cost / used / share) if used > 0 else 1.0
