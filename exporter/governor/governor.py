"""The thread that keeps what probes cost each process within a part of its CPU time."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf

from exporter.governor import metrics
from exporter.governor.estimates import Counts, Estimates, ProcessTally
from exporter.governor.files import CYCLE_SECONDS, FLOOR, LOOK_SECONDS, Bounds, WindowedFile
from exporter.governor.node_budget import NodeBudget
from exporter.governor.payer import Payer
from exporter.governor.processes import wait_for_tick
from exporter.governor.subject import Subject, SubjectFile
from exporter.model import Sample

_NEAR = 0.5
"""Part of the node's bound from which on the cost is looked at each second."""
log = logging.getLogger(__name__)


Rest = Callable[[Subject, Collection[int]], Iterator[tuple[Subject | Payer, Mapping[int, ProcessTally]]]]
"""Returns what other collectors have of these processes."""


def _no_rest(subject: Subject, pids: Collection[int]) -> Iterator[tuple[Subject | Payer, Mapping[int, ProcessTally]]]:
    return iter(())


class Governed:
    """The files and the estimates of one collector."""

    def __init__(
        self,
        subject: Subject,
        bound: float,
        clock: Callable[[], float],
        chance: Callable[[], float],
        rest: Rest = _no_rest,
        cap: Callable[[], float] = lambda: inf,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.subject, self._bound, self._clock, self._chance, self.rest = subject, bound, clock, chance, rest
        self._cap, self._tick = cap, tick
        self.estimates = Estimates()
        self._files: dict[int, WindowedFile] = {}
        self._throttles = 0
        self._looked, self._cost, self._busy = clock(), 0.0, False

    def step(self) -> float:
        """Do what is due at every file. Return the time of the next step."""
        present = self.subject.sampled_files()
        for key in self._files.keys() - present.keys():
            self.estimates.end(self._files.pop(key))
        for key in present.keys() - self._files.keys():
            self._files[key] = self._file(present[key])
        self._look()
        for key, file in self._files.items():
            file.probed = present[key]
            file.meet()
            if file.due <= self._clock():
                before = file.ladder.throttled
                file.step(self._busy)
                self._report(present[key], before, file)
        return min((file.due for file in self._files.values()), default=self._clock() + LOOK_SECONDS)

    @property
    def throttled(self) -> bool:
        """Return whether calls may be left out now."""
        return any(it.ladder.throttled for it in [*self._files.values()])

    @property
    def throttles(self) -> int:
        """Return how often a file's calls went to windows."""
        return self._throttles

    def rates(self) -> list[float]:
        """Return what these functions cost of each process, in cores."""
        return [rate for file in self._files.values() for rate in file.rates.values()]

    def missed(self, pid: int) -> Counts | None:
        """Return what Estimates.missed does; None for a process that windows have not come to yet."""
        return None if self._unread(pid) else self.estimates.missed(pid)

    def whole(self, pid: int) -> bool:
        """Return whether each call of a process was counted or estimated."""
        return self.missed(pid) is not None and not self.estimates.is_late(pid)

    def finish(self, pid: int, last: Callable[[ProcessTally], ProcessTally]) -> Counts | None:
        """Return what Estimates.finish does; None for a process that was never read beside windows."""
        unread = self._unread(pid)
        for file in [*self._files.values()]:
            file.leave(pid)
        missed = self.estimates.finish(pid, last)
        return None if unread else missed

    def _unread(self, pid: int) -> bool:
        if self.estimates.knows(pid):
            return False
        files = [*self._files.values()]
        own = [it for it in files if pid in it.probed.pids]
        return any(it.leaves_out(pid) for it in own or files)

    def collect(self) -> Iterator[Sample]:
        """Yield shares and levels by symbol and file, and what is used of the bound."""
        probe = {"probe": self.subject.name}
        shares: dict[tuple[str, str], tuple[float, int]] = {}
        for key, it in self.subject.sampled_files().items():
            if file := self._files.get(key):
                for symbol in it.symbols:
                    share, level = shares.get((symbol, it.name), (1.0, 0))
                    own = file.sampled(), int(file.ladder.throttled)
                    shares[symbol, it.name] = min(share, own[0]), max(level, own[1])
        for (symbol, library), (share, level) in shares.items():
            labels = probe | {"symbol": symbol, "library": library}
            yield metrics.SAMPLED.sample(share, labels)
            yield metrics.LEVEL.sample(level, labels)
        yield metrics.THROTTLED.sample(self._throttles, probe)
        users = {pid for it in [*self._files.values()] for pid in it.probed.pids}
        yield metrics.UNCOUNTED.sample(sum(self.missed(pid) is None for pid in users), probe)
        files = [*self._files.values()]
        if files and self.subject.sampled_cost() is not None:
            yield metrics.USED.sample(max(file.used for file in files), probe)

    def problems(self) -> Iterator[str]:
        """Yield which files' functions are in windows, for the landing page."""
        for key, it in self.subject.sampled_files().items():
            file = self._files.get(key)
            if file and file.ladder.throttled:
                first, *more = sorted(it.symbols)
                named = f"{first} and {len(more)} more" if more else first
                yield f"{named} in {it.name}: probed for {file.sampled():.1%} of the time, to keep {self._flags(file)}"

    def _flags(self, file: WindowedFile) -> str:
        """Return the flags of which one decided at the last look."""
        unit = f" or {self.subject.unit_flag}" if self.subject.unit_bound < inf else ""
        return "--overhead.max-cores" if file.for_node else f"--overhead.max-ratio{unit}"

    def _file(self, probed: SubjectFile) -> WindowedFile:
        bounds = Bounds(self._bound, self.subject.unit_bound, self._cap)
        return WindowedFile(probed, bounds, self.estimates, self._tallies, self._clock, self._chance, self._tick)

    def _tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        """Return what these processes did, with what probes of all collectors took."""
        found = dict(self.subject.tallies(pids))
        for subject, rest in self.rest(self.subject, pids):
            for pid in found.keys() & rest.keys():
                it, its = found[pid], rest[pid]
                yielding = its.cost if subject.rank < self.subject.rank else 0.0
                found[pid] = it._replace(other=it.other + its.cost + its.other, yielding=it.yielding + yielding)
        return found

    def _look(self) -> None:
        """Find out whether all calls together cost enough to look at processes one by one."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        cost = self.subject.sampled_cost()
        if cost is not None:
            self._busy = cost - self._cost >= FLOOR * (now - self._looked)
            self._cost = cost
        self._looked = now

    def _report(self, probed: SubjectFile, before: bool, file: WindowedFile) -> None:
        if before == file.ladder.throttled:
            return
        if file.ladder.throttled:
            self._throttles += 1
            log.warning(
                "%s are probed in windows: their probes cost more than %s",
                ", ".join(sorted(probed.symbols)),
                self._flags(file),
                extra={"library": probed.name, "share": f"{file.ladder.share:.3f}"},
            )
        else:
            log.info("all calls are counted again", extra={"library": probed.name})


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

    def leave(self, watch: Governed | None, payer: Payer | None = None) -> None:
        """Watch and charge a collector no more. Waits for a step that is being done."""
        with self._lock:
            self.watched = [it for it in self.watched if it is not watch]
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
