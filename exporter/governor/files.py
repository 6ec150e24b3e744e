"""One file with functions that are probed all the time, or in windows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import NamedTuple, Protocol

from exporter.governor.estimates import Estimates, ProcessTally
from exporter.governor.ladder import LEAST, Ladder
from exporter.governor.newcomers import LOOK_SECONDS as LOOK_SECONDS
from exporter.governor.newcomers import Newcomers
from exporter.governor.standings import Standings

CYCLE_SECONDS = 5.0
"""Time between two looks at the cost while there is one window in each cycle: LOOK_SECONDS is while all calls count."""
FLOOR = 0.005
"""Cost in cores below which nothing is left out, however little CPU time the process needs: of the time that passes a
process that mostly waits loses less than this part."""
_WHOLE = 0.9
"""Share from which a window is all of its cycle: coming and going costs, too."""
_RECENT_SECONDS = 60.0
_SMALLEST = 0.1
"""Part of the bound that functions in windows have where other functions take all of it."""


class ProbedFile(Protocol):
    """A file with functions that can be probed or not."""

    @property
    def pids(self) -> Collection[int]:
        """The processes that use the file."""

    def probe(self, on: bool) -> None:
        """Attach what the functions have in windows, or detach it; nothing where that is so already."""

    def keep(self, pids: Collection[int]) -> Collection[int]:
        """Keep them attached in just these processes, whatever `probe` does. Return those where they are."""

    def restore(self) -> None:
        """Attach all that was there before the first gap, as windows have ended."""


class Bounds(NamedTuple):
    """Limits on the cost that probes of a file's functions may cause a process."""

    ratio: float
    """Part of its CPU time, all probes together."""
    unit: float
    """Seconds of each unit of the reference, on average: a thread may lose much in a process that uses many cores."""
    cap: Callable[[], float] = lambda: inf
    """Returns the cores that these probes may take at present, for the bound of the node."""


class _Weight(NamedTuple):
    """The cost of the functions to a process in some time."""

    own: float
    """In parts of what they may cost it, by the bound of a process; 0 where that is little."""
    pressure: float
    """The same by the bound of the node too."""
    rate: float
    """In cores."""
    used: float
    """The cost of all functions in parts of the process's bound."""


class WindowedFile:
    """The windows of one file. Times are of a monotonic clock, in seconds.

    `tallies` returns what processes did; `clock` the time; `chance` a number from 0 to 1: windows begin at random times
    in their cycle, or a job with steps as long as a cycle would show the same part of each step. `tick` waits until CPU
    times are up to date: a window may be as short as a tick.
    """

    def __init__(
        self,
        probed: ProbedFile,
        bounds: Bounds,
        estimates: Estimates,
        tallies: Callable[[Collection[int]], Mapping[int, ProcessTally]],
        clock: Callable[[], float],
        chance: Callable[[], float],
        tick: Callable[[], None],
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
        self._standings, self._newcomers = Standings(), Newcomers(clock)
        self._before: Mapping[int, ProcessTally] = {}
        """Tallies at the last look, made at this time:"""
        self._looked, self._probed_before, self._turned = self.due, 0.0, 0.0
        self._on, self._since, self._seconds = True, self.due, 0.0
        """Probe state: true while the functions are probed, time of the last change, and seconds probed before."""
        self._history = deque([(self.due, 0.0)])
        self._length = 0.0

    def step(self, busy: bool) -> None:
        """Do what is due. Unless `busy`, the calls of all processes cost too little to be looked at one by one."""
        if self.ladder.throttled or busy:
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
            self._look_at_newcomers(self._tallies(due))
        if new := self._newcomers.since(self.probed.pids):
            self._meet(new, whole=False)

    def leave(self, pid: int) -> None:
        """Take note that a process has ended, or runs another program. From any thread."""
        self._newcomers.leave(pid)

    def leaves_out(self, pid: int) -> bool:
        """Return whether calls of a process may be left out now."""
        return self.ladder.throttled and (pid not in self._standings.kept or self._newcomers.left(pid))

    def sampled(self) -> float:
        """Return the share of the last minute for which the functions were probed."""
        now, (since, before) = self._clock(), self._history[0]
        return min(1.0, (self._probed_seconds(now) - before) / (now - since)) if now > since else float(self._on)

    def _look(self) -> None:
        """Compare, while all calls are counted, cost and bound."""
        before, now = self._before, self._read()
        self._weigh(now)
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
        self._estimates.advance(self, self._others(now), probed=self._on)
        if self._on:
            self._estimates.settle(self)
        self._weigh(now)
        if self.ladder.throttled:
            self._keep(before, now)
            self._cycle()
            return
        self._estimates.end(self)
        self.probed.restore()
        self._standings.kept = set(self.probed.keep(()))
        self._newcomers.watched.clear()
        self._step, self.due = self._look, self._clock() + LOOK_SECONDS

    def _cycle(self) -> None:
        began = self._clock()
        self._ends = began + CYCLE_SECONDS * self.ladder.stretch
        if self.ladder.share >= _WHOLE:
            self._open()
            self._step, self.due = self._begin, self._ends
            return
        self._turn(on=False)
        self._length = self.ladder.share * CYCLE_SECONDS
        self._step, self.due = self._window, began + self._chance() * (self._ends - began - self._length)

    def _window(self) -> None:
        self._open()
        self._step, self.due = self._close, self._clock() + self._length

    def _open(self) -> None:
        """Probe. What was counted before all functions were probed belongs to the gap, and to its estimate."""
        if not self._on:
            self._turn(on=True)
            self._tick()
            self._estimates.advance(self, self._others(self._read()), probed=False)

    def _close(self) -> None:
        self._tick()
        self._estimates.advance(self, self._others(self._read()), probed=True)
        self._estimates.settle(self)
        self._turn(on=False)
        self._step, self.due = self._begin, self._ends

    def _read(self) -> Mapping[int, ProcessTally]:
        return self._tallies(self.probed.pids)

    def _others(self, tallies: Mapping[int, ProcessTally]) -> Mapping[int, ProcessTally]:
        """Return those of processes that are probed in windows."""
        return {pid: it for pid, it in tallies.items() if pid not in self._standings.kept}

    def _keep(self, before: Mapping[int, ProcessTally], now: Mapping[int, ProcessTally]) -> None:
        """Probe processes that cost little all the time, and those that cost too much in windows only."""
        kept, wanted = self._standings.kept, self._standings.polite() | self._newcomers.watched.keys()
        if wanted == kept:
            return
        dropped = kept - wanted
        self._standings.kept = set(self.probed.keep(wanted))
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

    def _look_at_newcomers(self, now: Mapping[int, ProcessTally]) -> None:
        cap = self._bounds.cap()
        costly: dict[int, ProcessTally] = {}
        for pid, seconds, newcomer in self._newcomers.looks(now):
            weight = self._weight(newcomer.before, now[pid], seconds, FLOOR * seconds, cap)
            if newcomer.look(now[pid], weight.pressure > 1):
                costly[pid] = newcomer.first
        if costly:
            self._newcomers.end(costly)
            self._estimates.begin(self, costly, now)
            self._standings.kept = set(self.probed.keep(self._standings.kept - costly.keys()))

    def _turn(self, on: bool) -> None:
        if on == self._on:
            return
        began = self._clock()
        self.probed.probe(on)
        self._turned += self._clock() - began
        now = self._clock() if on else began  # the last calls are seen when detaching begins
        self._seconds, self._since, self._on = self._probed_seconds(now), now, on

    def _probed_seconds(self, now: float) -> float:
        return self._seconds + (now - self._since if self._on else 0.0)

    def _weigh(self, now: Mapping[int, ProcessTally]) -> None:
        """Compare what each process lost since the last look with its bound; the worst one decides."""
        time, probed = self._clock(), self._probed_seconds(self._clock())
        seconds = time - self._looked
        share = (probed - self._probed_before + self._turned) / seconds if seconds else 1.0
        weights, cap = dict[int, _Weight](), self._bounds.cap()
        highest, self.for_node = 0.0, False
        for pid in now.keys() & self._before.keys() if seconds else ():
            kept = pid in self._standings.kept
            least = FLOOR * seconds * (1.0 if kept else self.ladder.share / self.ladder.stretch)
            weights[pid] = it = self._weight(self._before[pid], now[pid], seconds, least, cap)
            if not kept and it.pressure > highest:
                highest, self.for_node = it.pressure, it.pressure > it.own
        self.used = max((it.used for it in weights.values()), default=0.0)
        self.rates = {pid: it.rate for pid, it in weights.items()}
        self.ladder.look(highest)
        used = {pid: now[pid].cpu - self._before[pid].cpu for pid in weights}
        busy = {pid: cpu for pid, cpu in used.items() if cpu > FLOOR * seconds}
        self._standings.look({pid: it.pressure for pid, it in weights.items()}, max(share, LEAST), busy)
        self._before, self._looked, self._probed_before, self._turned = now, time, probed, 0.0
        self._history.append((time, self._probed_seconds(time)))
        while len(self._history) > 2 and self._history[1][0] <= time - _RECENT_SECONDS:
            self._history.popleft()

    def _weight(self, before: ProcessTally, after: ProcessTally, seconds: float, least: float, cap: float) -> _Weight:
        """Return what the functions cost a process: nothing by its own bound where it is less than `least` seconds."""
        rate = max(0.0, after.cost - before.cost) / seconds
        own, used = self._pressure(before, after, least)
        return _Weight(own, max(own, rate / cap), max(0.0, rate - (after.saved - before.saved) / seconds), used)

    def _pressure(self, before: ProcessTally, after: ProcessTally, least: float) -> tuple[float, float]:
        """Return the cost of the functions in parts of what it may be, and that of all in parts of the bound."""
        cost, other = after.cost - before.cost, after.other - before.other
        allowed = self._bounds.ratio * (after.cpu - before.cpu)
        if cost <= 0 or cost < least or allowed <= 0:
            return 0.0, 0.0
        kept = other - (after.yielding - before.yielding)
        units = after.reference - before.reference
        pressure = cost / max(allowed - kept, _SMALLEST * allowed), cost / units / self._bounds.unit if units else 0.0
        return max(pressure), (cost - (after.saved - before.saved) + other) / allowed
