"""One file with functions that are probed all the time, or in windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from exporter.governor.accounts import Accounts
from exporter.governor.estimates import Estimates, ProcessTally
from exporter.governor.exposure import Exposure
from exporter.governor.guard import GUARD_SECONDS, Guard
from exporter.governor.judge import Interval, Judge
from exporter.governor.ladder import Ladder
from exporter.governor.newcomers import LOOK_SECONDS as LOOK_SECONDS
from exporter.governor.newcomers import Newcomers
from exporter.governor.subject import ProbedFile
from exporter.governor.weights import FLOOR, Bounds

CYCLE_SECONDS = 5.0
"""Time between two looks at the cost while there is one window in each cycle: LOOK_SECONDS is while all calls count."""
_WHOLE = 0.9
"""Share from which a window is all of its cycle: coming and going costs, too."""
_LATER = 0.5
"""Part of a cycle for which a window that has to wait for room may begin later: a job may have a step of that wait."""
_CALM_CYCLES = 5
"""Cycles for which a process that cost too much has to be calm before it leaves the windows."""


class WindowedFile:
    """The windows of one file. Times are of a monotonic clock, in seconds.

    `tallies` returns what processes did; `clock` the time; `chance` a number from 0 to 1: windows begin at random times
    in their cycle, or a job with steps as long as a cycle would show the same part of each step. `tick` waits until CPU
    times are up to date: a window may be as short as a tick. `own_tallies` are without other collectors, and `cpu`
    returns CPU times, see Guard.
    """

    def __init__(
        self,
        probed: ProbedFile,
        bounds: Bounds,
        accounts: Accounts,
        estimates: Estimates,
        tallies: Callable[[Collection[int]], Mapping[int, ProcessTally]],
        clock: Callable[[], float],
        chance: Callable[[], float],
        tick: Callable[[], None],
        own_tallies: Callable[[Collection[int]], Mapping[int, ProcessTally]] | None = None,
        cpu: Callable[[Collection[int]], Mapping[int, float]] | None = None,
    ) -> None:
        self.probed, self._bounds, self._estimates, self._tallies = probed, bounds, estimates, tallies
        self._clock, self._chance, self._tick = clock, chance, tick
        self.ladder = Ladder()
        self.used = 0.0
        """Cost in the process for which it is highest, in parts of its bound."""
        self.rates: Mapping[int, float] = {}
        """Cost of the functions by process, in cores, over the time before the last look."""
        self.for_node = False
        """True if the bound of the node was decisive at the last look, not the bound of a process."""
        self.due = clock()
        """Time of the next step."""
        self._step: Callable[[], None] = self._look
        self._judge, self._newcomers = Judge(bounds, accounts), Newcomers(clock)
        self._standings, self.accounts = self._judge.standings, accounts
        self._guard, self._guarded = Guard(self.accounts, own_tallies or tallies, cpu, clock), self.due
        self._exposure = Exposure(clock)
        self._before: Mapping[int, ProcessTally] = {}
        """Tallies at the last look."""
        self._length, self._opened, self._ends = 0.0, self.due, self.due
        """Of the window: its planned length, when it was opened, and when its cycle ends."""
        self._at_open: Mapping[int, ProcessTally] = {}
        self._worked: dict[int, float] = {}
        """Tallies when the window was opened, and CPU times of processes in it."""
        self._lasted: float | None = None
        """Seconds of the last window; None for one that is all of its cycle."""
        self._caught = False
        """True if the guard has chosen the share since the last look."""

    @property
    def next(self) -> float:
        """Return the time of the next step or look of the guard."""
        return min(self.due, self._guarded + GUARD_SECONDS) if self._exposed() else self.due

    def step(self, busy: bool) -> None:
        """Do what is due. Unless `busy`, the calls of all processes cost too little to be looked at one by one."""
        if self.ladder.throttled or busy or self.accounts.suspects():
            self._step()
        else:
            self._weigh({})
            self.due = self._clock() + LOOK_SECONDS

    def meet(self) -> None:
        """Give processes that came in windows links of their own, and those that cost too much since to the windows."""
        self._standings.kept -= self._newcomers.take_left()
        if not self.ladder.throttled:
            return
        if due := self._newcomers.due():
            self._look_at_kept(self._tallies(due))
        if new := self._newcomers.since(self.probed.pids):
            self._meet(new, whole=False)

    def guard(self) -> None:
        """Leave calls of processes out that cost too much again, not long after they did."""
        if self._clock() < self._guarded + GUARD_SECONDS or not (exposed := self._exposed()):
            return
        self._guarded = self._clock()
        if not (found := self._guard.look(exposed)):
            return
        for pid, intensity in found.items():
            self.accounts.offend(pid, intensity)
        if self.ladder.throttled:
            self.ladder.throttle(max(found.values()) / self._bounds.ratio)
            self._caught = True
            self._drop(found.keys() & self._standings.kept)
            if self._exposure.on and found.keys() - self._standings.kept:
                self._close()
        else:
            self._look(max(found.values()))
        self._charge(self._tallies(found.keys()))

    def _exposed(self) -> set[int]:
        """Return the processes that cost too much not long ago, and are probed at present."""
        suspects = self.accounts.suspects()
        return suspects & {*self.probed.pids} if self._exposure.on else suspects & self._standings.kept

    def leave(self, pid: int) -> None:
        """Take note that a process has ended, or runs another program. From any thread."""
        self._newcomers.leave(pid)

    def leaves_out(self, pid: int) -> bool:
        """Return whether calls of a process may be left out now."""
        return self.ladder.throttled and (pid not in self._standings.kept or self._newcomers.left(pid))

    def sampled(self) -> float:
        """Return the share of the last minute for which the functions were probed."""
        return self._exposure.sampled()

    def _look(self, intensity: float = 0.0) -> None:
        """Compare, while all calls are counted, cost and bound. With an intensity windows begin at once."""
        before, now = self._before, self._read()
        self._weigh(now)
        if intensity and not self.ladder.throttled:
            self.ladder.throttle(intensity / self._bounds.ratio)
        if self.ladder.throttled:
            self._keep(before, now)
            self._estimates.begin(self, self._others(before), now)
            self._newcomers.begin(before.keys() | now.keys())
            self._meet(now.keys() - before.keys(), whole=True)
            self._cycle()
        else:
            self.due = self._clock() + LOOK_SECONDS

    def _begin(self) -> None:
        """A cycle ended: compare cost and bound, and choose the next window."""
        before, now = self._before, self._read()
        self._estimates.advance(self, self._others(now), probed=self._exposure.on)
        if self._exposure.on:
            self._estimates.settle(self)
        self._weigh(now)
        if self.ladder.throttled:
            self._keep(before, now)
            self._cycle()
            return
        self._estimates.end(self)
        self.probed.restore()
        self._exposure.set(on=True, now=self._clock())
        self._standings.kept = set(self.probed.keep(()))
        self._newcomers.watched.clear()
        self._step, self.due = self._look, self._clock() + LOOK_SECONDS

    def _cycle(self) -> None:
        began = self._clock()
        self._ends = began + CYCLE_SECONDS * self.ladder.stretch
        self._worked, self._lasted = {}, None
        if self.ladder.share >= _WHOLE and self._has_others():
            self._length = CYCLE_SECONDS
            self._open()
            self._step, self.due = self._begin, self._ends
            return
        self._turn(on=False)
        self._length = self.ladder.share * CYCLE_SECONDS
        self._step, self.due = self._window, began + self._chance() * (self._ends - began - self._length)

    def _window(self) -> None:
        """Open the window, once there is room for it in the bound.

        None while all processes have links of their own: one that cost too much again would have to be left out twice.
        """
        if not self._has_others():
            self._step, self.due = self._begin, self._ends
            return
        others = self.accounts.suspects() - self._standings.kept
        if (free := self.accounts.opens(others, min(self._length, GUARD_SECONDS))) > self._clock():
            self.due = free + self._chance() * _LATER * CYCLE_SECONDS
            self._ends = max(self._ends, self.due + self._length)
            return
        self._open()
        self._step, self.due = self._close, self._clock() + self._length

    def _has_others(self) -> bool:
        """Return whether there are processes without links of their own."""
        return not self._standings.kept.issuperset(self.probed.pids)

    def _open(self) -> None:
        """Probe. What was counted before all functions were probed belongs to the gap, and to its estimate."""
        if not self._exposure.on:
            self._turn(on=True)
            self._tick()
            self._at_open = self._charge(self._read())
            self._estimates.advance(self, self._others(self._at_open), probed=False)
        self._opened = self._clock()

    def _close(self) -> None:
        self._tick()
        now = self._charge(self._read())
        self._worked = {pid: it.cpu - self._at_open[pid].cpu for pid, it in now.items() if pid in self._at_open}
        self._estimates.advance(self, self._others(now), probed=True)
        self._estimates.settle(self)
        self._lasted = self._clock() - self._opened
        self._turn(on=False)
        self._charge(self._tallies(self.accounts.suspects() & {*self.probed.pids} - self._standings.kept))
        self._step, self.due = self._begin, self._ends

    def _charge(self, now: Mapping[int, ProcessTally]) -> Mapping[int, ProcessTally]:
        self.accounts.charge(now)
        return now

    def _read(self) -> Mapping[int, ProcessTally]:
        return self._tallies(self.probed.pids)

    def _others(self, tallies: Mapping[int, ProcessTally]) -> Mapping[int, ProcessTally]:
        """Return those of processes that are probed in windows."""
        return {pid: it for pid, it in tallies.items() if pid not in self._standings.kept}

    def _keep(self, before: Mapping[int, ProcessTally], now: Mapping[int, ProcessTally]) -> None:
        """Probe processes that cost little all the time, and those that cost too much in windows only."""
        calm = _CALM_CYCLES * CYCLE_SECONDS
        polite = {pid for pid in self._standings.polite() if self.accounts.calm_for(pid) >= calm}
        kept, wanted = self._standings.kept, polite | self._newcomers.watched.keys()
        if wanted == kept:
            return
        self._standings.kept = set(self.probed.keep(wanted))
        dropped = kept - self._standings.kept
        self._newcomers.watch({pid: now[pid] for pid in (self._standings.kept - kept) & now.keys()})
        self._newcomers.end(dropped)
        self._estimates.begin(self, {pid: before[pid] for pid in dropped & before.keys()}, now)
        # Those that the estimates do not know were counted whole so far.
        if new := {pid for pid in self._standings.kept - kept if self._estimates.knows(pid)}:
            later = self._read()
            self._estimates.advance(self, {pid: later[pid] for pid in new & later.keys()}, probed=False)
            self._estimates.release(self, new)

    def _meet(self, new: Collection[int], whole: bool) -> None:
        """Probe processes all the time that were not known until now; `whole` if that is so already."""
        began, users = self._clock(), set(self.probed.pids)
        if new:
            self._standings.kept = kept = set(self.probed.keep((self._standings.kept | {*new}) & users))
            now = self._tallies(new)
            linked = {pid: it for pid, it in now.items() if pid in kept}
            others = {pid: it for pid, it in now.items() if pid not in kept}
            self._before = {**self._before, **linked}
            self._newcomers.watch(linked)
            if whole:
                self._estimates.begin(self, {pid: ProcessTally.first(it) for pid, it in others.items()}, others)
            else:
                self._estimates.join([pid for pid, it in linked.items() if it.begun])
                self._estimates.advance(self, others, probed=False)
            self._newcomers.took(self._clock() - began)

    def _look_at_kept(self, now: Mapping[int, ProcessTally]) -> None:
        """Compare cost and bound of processes that are probed all the time."""
        cap, costly = self._bounds.cap(), set[int]()
        for pid, seconds, it in self._newcomers.looks(now):
            over = self._bounds.weight(it.before, now[pid], seconds, FLOOR * seconds, cap).pressure > 1
            again = self.accounts.in_debt(pid)
            if it.look(now[pid], over) or (over and again):
                costly.add(pid)
                self.accounts.offend(pid, 1.0)
        self.accounts.charge(now)
        self._drop(costly)

    def _drop(self, pids: Collection[int]) -> None:
        """Probe these in windows from now on."""
        if pids:
            firsts = {pid: it.first for pid in pids if (it := self._newcomers.watched.get(pid))}
            self._estimates.begin(self, firsts, self._tallies(firsts))
            self._newcomers.end(pids)
            self._standings.kept = set(self.probed.keep(self._standings.kept - {*pids}))

    def _turn(self, on: bool) -> None:
        self._exposure.turn(on, self.probed.probe)

    def _weigh(self, now: Mapping[int, ProcessTally]) -> None:
        """Compare what each process lost since the last look with its bound; the worst one decides."""
        seconds, share = self._exposure.look()
        whole = not self.ladder.throttled or self._exposure.on
        planned = self.ladder.share / self.ladder.stretch
        it = Interval(self._before, now, seconds, share, planned, None if whole else self._worked)
        verdict = self._judge.judge(it)
        self.used, self.rates, self.for_node = verdict.used, verdict.rates, verdict.for_node
        if not self._caught:
            probed = None if self._lasted is None or not seconds else self._lasted / seconds
            self.ladder.look(verdict.pressure, verdict.again, probed, verdict.seen)
        for pid, intensity in verdict.offenders.items() if self.ladder.throttled else ():
            self.accounts.offend(pid, intensity)
        self._before, self._caught = now, False
