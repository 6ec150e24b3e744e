"""The files of one collector with functions that are probed all the time, or in windows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf

from exporter.governor import metrics
from exporter.governor.estimates import Counts, Estimates, ProcessTally
from exporter.governor.files import FLOOR, LOOK_SECONDS, Bounds, WindowedFile
from exporter.governor.payer import Payer
from exporter.governor.subject import Subject, SubjectFile
from exporter.model import Sample

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

    def leaves_out(self, pid: int) -> bool:
        """Return whether calls of a process may be left out now."""
        files = [*self._files.values()]
        own = [it for it in files if pid in it.probed.pids]
        return any(it.leaves_out(pid) for it in own or files)

    def left_out(self, pid: int) -> bool:
        """Return whether calls of a process are left out, or were once."""
        return self.estimates.knows(pid) or self.leaves_out(pid)

    def finish(self, pid: int, last: Callable[[ProcessTally], ProcessTally]) -> Counts | None:
        """Return what Estimates.finish does; None for a process that was never read beside windows."""
        unread = self._unread(pid)
        for file in [*self._files.values()]:
            file.leave(pid)
        missed = self.estimates.finish(pid, last)
        return None if unread else missed

    def _unread(self, pid: int) -> bool:
        return not self.estimates.knows(pid) and self.leaves_out(pid)

    def collect(self, others: Collection[Governed] = ()) -> Iterator[Sample]:
        """Yield shares and levels by symbol and file, and what is used of the bound.

        `others` are of the same collector, with other functions.
        """
        probe, watches = {"probe": self.subject.name}, [self, *others]
        for it in watches:
            yield from it._collect_levels()
        yield metrics.THROTTLED.sample(sum(it.throttles for it in watches), probe)
        uncounted = {pid for it in watches for pid in it.users if it.is_uncounted(pid)}
        yield metrics.UNCOUNTED.sample(len(uncounted), probe)
        if used := [it.used for it in watches if it.used is not None]:
            yield metrics.USED.sample(max(used), probe)

    def is_uncounted(self, pid: int) -> bool:
        """Return whether something of these functions is unknown of a process at present."""
        return self.missed(pid) is None or (self.subject.calls_only and self.leaves_out(pid))

    @property
    def users(self) -> set[int]:
        """Return the processes that use these functions."""
        return {pid for it in [*self._files.values()] for pid in it.probed.pids}

    @property
    def used(self) -> float | None:
        """Return the greatest part of a process's bound that is used; None without files, or while it is not known."""
        files = [*self._files.values()]
        known = files and self.subject.sampled_cost() is not None
        return max(file.used for file in files) if known else None

    def _collect_levels(self) -> Iterator[Sample]:
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

    def problems(self) -> Iterator[str]:
        """Yield which files' functions are in windows, for the landing page."""
        for key, it in self.subject.sampled_files().items():
            file = self._files.get(key)
            if file and file.ladder.throttled:
                part, flags = file.sampled(), self._flags(file)
                yield f"{_named(it)} in {it.name}: probed for {part:.1%} of the time, to keep {flags}"

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
                cost = its.cost - its.saved
                yielding = cost if subject.rank < self.subject.rank else 0.0
                found[pid] = it._replace(other=it.other + cost + its.other, yielding=it.yielding + yielding)
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
                "probed in windows: %s, as the probes cost more than %s",
                _named(probed),
                self._flags(file),
                extra={"library": probed.name, "share": f"{file.ladder.share:.3f}"},
            )
        else:
            log.info("all calls are counted again: %s", _named(probed), extra={"library": probed.name})


def _named(probed: SubjectFile) -> str:
    first, *more = sorted(probed.symbols)
    return f"{first} and {len(more)} more" if more else first
