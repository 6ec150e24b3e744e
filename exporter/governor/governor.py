"""The thread that keeps what probes cost each process within a part of its CPU time."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf

from exporter.governor import metrics
from exporter.governor.estimates import ProcessTally
from exporter.governor.files import CYCLE_SECONDS, LOOK_SECONDS
from exporter.governor.governed import Governed as Governed
from exporter.governor.node_budget import NodeBudget
from exporter.governor.payer import Payer
from exporter.governor.processes import wait_for_tick
from exporter.governor.subject import Subject
from exporter.model import Sample

_NEAR = 0.5
"""Part of the node's bound from which on the cost is looked at each second."""
log = logging.getLogger(__name__)


class Governor:
    """Keeps the cost of probes to `max_ratio` of the CPU time of each process, and to `max_cores` of the node, where
    counts may be estimates.

    One for a node; the thread runs while a collector is watched. With a ratio of 0 every call is counted, whatever that
    costs; with 0 cores the node has no bound.
    """

    def __init__(
        self,
        max_ratio: float,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        max_cores: float = 0.0,
        tick: Callable[[], None] = wait_for_tick,
    ) -> None:
        self._max_ratio, self._clock, self._chance, self._tick = max_ratio, clock, chance, tick
        self._lock = threading.Lock()
        self.watched: list[Governed] = []
        self._payers: list[Payer] = []
        self.node, self._node_due = NodeBudget(max_cores, clock), clock()
        self._wake = threading.Event()
        self.thread: threading.Thread | None = None

    def watch(self, subject: Subject) -> Governed | None:
        """Return the watch of a collector, None where no bound is set."""
        if not self._max_ratio:
            return None
        watch = Governed(
            subject, self._max_ratio, self._clock, self._chance, self.rest, lambda: self.node.cap, self._tick
        )
        with self._lock:
            self.watched.append(watch)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="governor", daemon=True)
                self.thread.start()
        return watch

    def charge(self, payer: Payer) -> None:
        """Count the cost of these probes from now on."""
        with self._lock:
            self._payers.append(payer)

    def leave(self, watches: Collection[Governed], payer: Payer | None = None) -> None:
        """Watch and charge a collector no more. Waits for a step that is being done."""
        with self._lock:
            self.watched = [it for it in self.watched if it not in watches]
            self._payers = [it for it in self._payers if it is not payer]
        self._wake.set()

    def wake(self) -> None:
        """Do at once what is due, as a process has started."""
        self._wake.set()

    def collect(self) -> Iterator[Sample]:
        """Yield what is used of the node's bound, once that is known."""
        if (used := self.node.used) is not None:
            yield metrics.NODE_USED.sample(used)

    def _run(self) -> None:
        while (due := self.step()) is not None:
            self._wake.wait(min(LOOK_SECONDS, max(0.0, due - self._clock())))
            self._wake.clear()

    def step(self) -> float | None:
        """Do what is due. Return the time of the next step, None when nothing is watched."""
        with self._lock:
            if not self.watched:
                self.thread = None
                return None
            self._look()
            return min(map(self._step_of, self.watched))

    def _look(self) -> None:
        """Compare the cost of all probes with the node's bound: each second, or each cycle where that is not near."""
        now, node = self._clock(), self.node
        if not node.cores or now < self._node_due:
            return
        near = node.used is None or (node.used > _NEAR and node.cap == inf)
        self._node_due = now + (LOOK_SECONDS if near else CYCLE_SECONDS)
        try:
            spent = [it.spent() for it in self._payers]
            bounded = [it.subject.sampled_cost() or 0.0 for it in self.watched]
            known = [it for it in spent if it is not None]
            rates = [rate for it in self.watched for rate in it.rates()]
            node.look(sum(known) if len(known) == len(spent) else None, sum(bounded), rates)
        except Exception:
            log.exception("the cost of the probes of the node cannot be bounded; tried again")

    def rest(
        self, subject: Subject, pids: Collection[int]
    ) -> Iterator[tuple[Subject | Payer, Mapping[int, ProcessTally]]]:
        """Yield what other collectors have of these processes. Called by steps, which hold the lock."""
        for watch in self.watched:
            if watch.subject is not subject:
                yield watch.subject, watch.subject.tallies(pids)
        for payer in self._payers:
            yield payer, payer.tallies(pids)

    def _step_of(self, watch: Governed) -> float:
        try:
            return watch.step()
        except Exception:
            log.exception("the cost of the %s probes cannot be bounded; tried again", watch.subject.name)
            return self._clock() + LOOK_SECONDS
