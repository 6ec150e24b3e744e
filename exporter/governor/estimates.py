"""Counts of calls that were not probed, estimated from windows in which they were."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

Counts = Mapping[Any, int]
ENOUGH = 16
"""Units of the first reference that windows have to hold for it to be used."""
_PLENTY, _MOST_WINDOWS = 128, 12
"""Units that a window should hold: else it is put together with so many before. Few units make a quotient too high."""
_PLENTY_SECONDS = 0.05
"""The same of a process's own CPU time where that is the reference: on a busy node a process gets little of a window,
and counts and CPU times may be a tick apart."""
_NEW_WAITS, _WAITS = 3, _MOST_WINDOWS
"""Windows that a gap goes on at most because they hold too little: the first one of a new process, and others. What is
shown is better than nothing for the life of a process that seldom makes other calls."""
_LEAST_OWN = 0.5
"""Part of a process's CPU time that has to be its own for an estimate by it. Where probes take more of it, the error of
their price would be one of what is left, and greater."""


class ProcessTally(NamedTuple):
    """Totals of one process until now; no number ever falls."""

    counts: Counts
    """The counts that are estimated while calls are not probed; those that are 0 may be left out."""
    reference: float
    """A count that is always exact and goes with the calls, such as groups with their messages; 0 without one."""
    cost: float
    """Seconds that the probes of these calls took."""
    other: float
    """Seconds that other probes took, those of other collectors included."""
    cpu: float
    """CPU time of the process, with both."""
    yielding: float = 0.0
    """The part of `other` of functions that are left out before these."""
    saved: float = 0.0
    """The part of `cost` that probes did not take, as windows have cheaper ones: `cost` is that of all calls seen."""
    measure: tuple[int, ...] = ()
    """Meaning of `reference`: where that changes, counts of before and after cannot be compared."""
    begun: bool = True
    """False if the process cannot have made any of these calls yet, as others come first."""

    @property
    def own(self) -> float:
        """CPU time without probes."""
        return self.cpu - (self.cost - self.saved) - self.other

    @classmethod
    def first(cls, now: ProcessTally) -> ProcessTally:
        """Return that of a process first seen now, between two windows: its calls so far were not seen.

        CPU time before its first call is nothing to go by.
        """
        return cls({}, 0.0, 0.0, 0.0, now.own, measure=now.measure)


_NOTHING = ProcessTally({}, 0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Piece:
    """A piece of time: what was counted, and by how much the references rose."""

    counts: Counter[Any] = field(default_factory=Counter)
    reference: float = 0.0
    """Minus infinity where what it is a count of has changed."""
    own: float = 0.0
    cpu: float = 0.0

    @property
    def empty(self) -> bool:
        """True if the process did nothing in the meantime."""
        return not (self.cpu or self.reference or any(self.counts.values()))

    def add(self, before: ProcessTally, after: ProcessTally) -> None:
        for key, count in after.counts.items():
            self.counts[key] += max(0, count - before.counts.get(key, 0))
        self.reference += max(0.0, after.reference - before.reference)
        self.own += after.own - before.own
        self.cpu += after.cpu - before.cpu

    def join(self, later: _Piece) -> None:
        self.counts.update(later.counts)
        self.reference += later.reference
        self.own += later.own
        self.cpu += later.cpu


@dataclass(slots=True)
class Estimate:
    """An estimate of what one process did.

    Calls in a gap between two windows are to the reference, or without one to the CPU time, as in those windows. So
    what a probe slows down is not counted less, and a process that waits is not counted more. Where neither is to be
    had, the number of calls is unknown from then on.
    """

    at: ProcessTally
    owner: object = None
    """The file with the windows and gaps that the process goes by; None while all calls are counted."""
    missed: Counter[Any] = field(default_factory=Counter)
    """Estimated counts of calls that were not seen, never falling."""
    unknown: bool = False
    """True if calls were not seen and could not be estimated."""
    new: bool = False
    """True if the first gap began before the process was first seen: CPU time is then no measure of that gap."""
    pending: bool = False
    """True while windows hold too little to estimate the gap, which then continues: counts are unknown."""
    late: bool = False
    """True if an unknown number of calls came before those that are counted or estimated."""
    _waited: int = 0
    """Windows for which the gap has been pending."""
    _before: deque[_Piece] = field(default_factory=lambda: deque(maxlen=_MOST_WINDOWS))
    _window: _Piece = field(default_factory=_Piece)
    _gap: _Piece = field(default_factory=_Piece)

    def advance(self, now: ProcessTally, probed: bool) -> None:
        """Add the time since the last call, in which the calls were probed or not."""
        if now.measure != self.at.measure:
            for piece in (*self._before, self._window, self._gap):
                piece.reference = -inf
        (self._window if probed else self._gap).add(self.at, now)
        self.at = now

    def settle(self) -> None:
        """Estimate the gap before the window that ends now, by that window and those before the gap.

        A window in which the process did nothing, as it may have got no processor, is no measure of the gap.
        """
        if self.pending and self._before:
            self._before[-1].join(self._window)
        elif not self._window.empty:
            self._before.append(self._window)
        self._window = _Piece()
        self.pending = not self._enough()
        if self.pending or not self._before:
            return
        self.new = False
        reference, own = sum(it.reference for it in self._before), sum(it.own for it in self._before)
        unit, gap = (reference, self._gap.reference) if reference >= ENOUGH else (own, self._gap.own)
        called = {key for it in self._before for key, count in it.counts.items() if count}
        least = _LEAST_OWN * sum(it.cpu for it in self._before)
        unmeasured = bool(called) and reference < ENOUGH and own < least and self._gap.cpu > 0
        self.unknown |= unmeasured
        for key in called if unit > 0 and not unmeasured else ():
            seen = sum(it.counts[key] for it in self._before)
            self.missed[key] += max(0, round(seen * gap / unit) - self._gap.counts[key])
        self._forget()
        self._gap = _Piece()

    def wait(self) -> None:
        """Take note of a window: the gap before it is pending for so many at most."""
        self._waited = self._waited + 1 if self.pending else 0
        if self._waited >= (_NEW_WAITS if self.new else _WAITS):
            self._give_up()

    def release(self) -> None:
        """Go by no windows any more: all calls are counted from now on."""
        self.settle()
        self._give_up()
        self.late |= self.unknown
        self.unknown, self.owner = False, None

    def _give_up(self) -> None:
        """Leave the calls of a pending gap out, and count from now on."""
        self.late |= self.pending
        self.new = self.pending = False
        self._waited, self._gap = 0, _Piece()

    def _enough(self) -> bool:
        """Return whether windows hold enough for the gap; what they lack for good makes it unknown instead."""
        reference = sum(it.reference for it in self._before)
        if self.new:
            return reference >= _PLENTY
        called = any(any(it.counts.values()) for it in self._before)
        return called or reference >= ENOUGH or self._gap.reference < ENOUGH

    def _forget(self) -> None:
        """Drop windows that are not needed for the next gap: the newest is, and more until they hold plenty."""
        references = [it.reference for it in self._before]
        by_time = min(references) < 0 or not any(references)
        held = [it.own if by_time else it.reference for it in self._before]
        while len(held) > 1 and sum(held[1:]) >= (_PLENTY_SECONDS if by_time else _PLENTY):
            held.pop(0)
            self._before.popleft()


def _continued(known: Estimate | None, at: ProcessTally, owner: object) -> Estimate:
    """Return the estimate of a process that goes by a file's windows from now on, after those before, if any."""
    return Estimate(at, owner, known.missed, late=known.late) if known else Estimate(at, owner)


class Estimates:
    """Estimates of the processes of one collector, by pid. Safe from any thread.

    Each process goes by the windows of one file, `owner`, also where it uses two.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_pid: dict[int, Estimate] = {}

    def begin(self, owner: object, before: Mapping[int, ProcessTally], now: Mapping[int, ProcessTally]) -> None:
        """Start with what was seen from `before` to `now`, when all calls were probed, as the first window."""
        with self._lock:
            for pid in before.keys() & now.keys():
                known = self._by_pid.get(pid)
                if known is None or known.owner is None:
                    self._by_pid[pid] = _continued(known, before[pid], owner)
                    self._by_pid[pid].advance(now[pid], probed=True)
                    self._by_pid[pid].settle()

    def join(self, pids: Collection[int]) -> None:
        """Count these from now on, of which an unknown number of calls was not seen."""
        with self._lock:
            for pid in pids:
                self._by_pid.setdefault(pid, Estimate(_NOTHING, late=True))

    def advance(self, owner: object, tallies: Mapping[int, ProcessTally], probed: bool) -> None:
        """Add the time since the last call for the owner's processes, those that are new included.

        What a new one did before is part of its first gap, also in a window: it may have been running before that.
        """
        with self._lock:
            for pid, now in tallies.items():
                known = self._by_pid.get(pid)
                if known is None or known.owner is None:
                    at = ProcessTally.first(now) if known is None else now
                    fresh = known is None
                    known = self._by_pid[pid] = _continued(known, at, owner)
                    known.new = known.pending = fresh
                    known.advance(now, probed and not fresh)
                elif known.owner is owner:
                    known.advance(now, probed)

    def settle(self, owner: object) -> None:
        """Estimate the gaps before the window of the owner that ends now, or leave out what they lack a measure for."""
        with self._lock:
            for estimate in self._of(owner):
                estimate.settle()
                estimate.wait()

    def end(self, owner: object) -> None:
        """Keep what was estimated: all calls are counted from now on."""
        with self._lock:
            for estimate in self._of(owner):
                estimate.release()

    def release(self, owner: object, pids: Collection[int]) -> None:
        """Keep what was estimated of these: all their calls are counted from now on."""
        with self._lock:
            for pid in pids:
                if (known := self._by_pid.get(pid)) and known.owner is owner:
                    known.release()

    def knows(self, pid: int) -> bool:
        with self._lock:
            return pid in self._by_pid

    def is_late(self, pid: int) -> bool:
        """Return whether an unknown number of calls is in no count of the process."""
        with self._lock:
            return pid in self._by_pid and self._by_pid[pid].late

    def missed(self, pid: int) -> Counts | None:
        """Return the estimated counts of what was not seen; empty where all was seen, None where they are not known."""
        with self._lock:
            known = self._by_pid.get(pid)
            if known is None:
                return {}
            return None if known.unknown or known.pending else dict(known.missed)

    def finish(self, pid: int, last: Callable[[ProcessTally], ProcessTally]) -> Counts | None:
        """Remove a process that has ended. `last` returns its last tally from the one before.

        Return what `missed` does, to the process's end where the reference reaches so far.
        """
        with self._lock:
            known = self._by_pid.pop(pid, None)
            if known is None:
                return {}
            if known.owner is not None:
                at = known.at
                now = last(at)._replace(cost=at.cost, saved=at.saved, other=at.other, cpu=at.cpu)
                known.advance(now, probed=False)
                known.settle()
            return None if known.unknown or known.pending else known.missed

    def _of(self, owner: object) -> list[Estimate]:
        return [it for it in self._by_pid.values() if it.owner is owner]
