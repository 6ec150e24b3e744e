"""Processes that are busy and idle in turns, under a clock of their own, and what probes take of them over any 10 s."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, cycle, repeat
from math import inf

from exporter.governor.estimates import ProcessTally
from exporter.governor.governed import Governed
from tests.unit.governor.jobs import TRAP, Clock, Subject

BOUND = 0.01
SPAN, SETTLED = 10.0, 3.0
"""Any span of so many seconds is looked at, after the first seconds: an offence has to be noticed."""
ATTACH, DETACH = 0.006, 0.024
"""Seconds for which calls are already, or still, probed while links are attached and detached: half of that time."""
PIECE = 0.05
CALM_CALLS = 1000
"""Calls a second of one that has calmed down."""


def phases(busy: float, idle: float) -> Iterator[float]:
    return cycle((busy, idle))


def random_phases(seed: int, least: float, most: float) -> Iterator[float]:
    """Lengths of phases, all orders of magnitude alike; the first is long enough to be noticed in."""
    chance = random.Random(seed)
    return chain([SETTLED], (least * (most / least) ** chance.random() for _ in repeat(None)))


@dataclass
class Adversary:
    """Calls in an empty loop for a phase, and for the next does nothing, or works without a call (`spins`).

    A call takes `own` seconds without probes. It calms down when its phases end.
    """

    lengths: Iterator[float]
    own: float = 10e-9
    spins: bool = False
    threads: int = 1
    busy: bool = True
    calm: bool = False
    left: float = 0.0
    seen: float = 0.0
    sent: float = 0.0
    cpu: float = 0.0
    history: list[tuple[float, float, float]] = field(default_factory=list)
    """Time, cost and CPU time until then."""

    def __post_init__(self) -> None:
        self.left = next(self.lengths, inf)

    def run(self, seconds: float, probed: bool) -> None:
        while seconds > 0:
            part = min(seconds, self.left)
            calls = 0.0
            if self.calm:
                calls = part * CALM_CALLS
            elif self.busy:
                calls = part * self.threads / (self.own + (TRAP if probed else 0.0))
            self.sent += calls
            self.seen += calls if probed else 0.0
            self.cpu += part * self.threads if self.spins or (self.busy and not self.calm) else calls * TRAP
            seconds -= part
            self.left -= part
            if self.left <= 1e-12:
                self.busy, self.left = not self.busy, next(self.lengths, inf)
                self.calm |= self.left == inf

    @property
    def tally(self) -> ProcessTally:
        return ProcessTally({"calls": int(self.seen)}, 0.0, self.seen * TRAP, 0.0, self.cpu, begun=self.sent > 0)

    def note(self, time: float) -> None:
        self.history.append((time, self.seen * TRAP, self.cpu))

    def worst(self, floor: float) -> float:
        """Return the highest share of its CPU time that probes took in any span; `floor` cores are free."""
        times = [it[0] for it in self.history]
        worst = 0.0
        for time, cost, cpu in self.history:
            if time - times[0] >= SETTLED and times[-1] >= time + SPAN:
                _, later, used = self.history[bisect_left(times, time + SPAN)]
                worst = max(worst, (later - cost) / max(used - cpu, floor * SPAN / BOUND))
        return worst

    def share(self) -> float:
        """Return the share of its CPU time that probes took after the first seconds."""
        begun = self.history[0][0]
        _, cost, cpu = next(it for it in self.history if it[0] - begun >= SETTLED)
        _, later, used = self.history[-1]
        return (later - cost) / (used - cpu) if used > cpu else 0.0


class SlowFile:
    """A file that adversaries use, of which probes are attached and detached in some time."""

    symbols: Collection[str] = ("call",)

    def __init__(self, clock: Clock, jobs: dict[int, Adversary], alone: bool, name: str = "/lib/lib.so") -> None:
        self.clock, self.jobs, self.alone, self.name = clock, jobs, alone, name
        self.on, self.kept = True, set[int]()
        self.changes = 0

    @property
    def pids(self) -> Collection[int]:
        return [*self.jobs]

    def probe(self, on: bool) -> None:
        if on != self.on:
            self.on = True
            self.pass_until(self.clock.now + (ATTACH if on else DETACH))
            self.on = on
            self.changes += 1

    def keep(self, pids: Collection[int]) -> Collection[int]:
        wanted = set(pids) if self.alone else set()
        if new := wanted - self.kept:
            self.kept |= new
            self.pass_until(self.clock.now + ATTACH * len(new))
        if self.kept - wanted:
            self.pass_until(self.clock.now + DETACH)
        self.changes += len(self.kept ^ wanted)
        self.kept = wanted
        return self.kept

    def restore(self) -> None:
        self.probe(True)

    def pass_until(self, time: float) -> None:
        while self.clock.now < time:
            part = min(PIECE, time - self.clock.now)
            self.clock.now += part
            for pid, job in [*self.jobs.items()]:
                job.run(part, self.on or pid in self.kept)
                job.note(self.clock.now)


class Simulation:
    """A governed subject with one file, and its time."""

    def __init__(self, jobs: Mapping[int, Adversary], alone: bool, seed: int = 7) -> None:
        self.clock = Clock()
        self.file = SlowFile(self.clock, dict(jobs), alone)
        self.subject = Subject(self.file)  # type: ignore[arg-type]
        self.watch = Governed(self.subject, BOUND, self.clock, random.Random(seed).random, cpu=self._cpu)

    def _cpu(self, pids: Collection[int]) -> Mapping[int, float]:
        return {pid: self.file.jobs[pid].cpu for pid in pids if pid in self.file.jobs}

    def run(self, seconds: float, each: Callable[[], object] = lambda: None) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            due = min(self.watch.step(), self.clock.now + 1, end)
            self.file.pass_until(max(due, self.clock.now + 1e-3))
            each()
