"""When poll_cq, and the extended calls that poll, are probed: all the time where they are called seldom, as by programs
that wait for events, and else in windows, for programs that poll without pause would lose all their time to probes."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exporter.bpf.events import Events
from exporter.bpf.hooks import Hook, find_places
from exporter.bpf.libbpf import Link, Object
from exporter.bpf.library import Library
from exporter.bpf.native import BpfError
from exporter.bpf.placement import Placement
from exporter.bpf.uprobe import Point, attach, close_all
from exporter.model import Sample
from exporter.verbs import metrics
from exporter.verbs.functions import POLLED, operation

_JOIN_SECONDS = 4.0
_RECENT_SECONDS = 60.0
_WHOLE = 0.9
"""Of a window that has to be seen before a file stays attached to."""

_DEAR, _CHEAP = 50e-6, 1e-6
"""Seconds that a probed poll takes where that is not known, and at least."""
_TIMES_DEARER = 3.0
"""A probed poll than the small probes that are measured at start; docs/rdma.md has the measurement."""

log = logging.getLogger(__name__)


def polls_allowed(length: float, interval: float, hit: float | None) -> int:
    """Polls of one thread in `length` seconds that take it length/interval of that time.

    `hit` is what a small return probe costs, in seconds; None: that is not known. 0, which is any number, where the
    probes are to stay.
    """
    if length >= interval:
        return 0
    poll = _DEAR if hit is None else max(_TIMES_DEARER * hit, _CHEAP)
    return max(1, round(length * length / interval / poll))


def _points(library: Library, found: Mapping[str, Placement], slot: int) -> Mapping[tuple[str, bool], Sequence[Point]]:
    """Returns first."""
    points: dict[tuple[str, bool], list[Point]] = defaultdict(list)
    for symbol, placement in found.items():
        it, function = POLLED[operation(symbol)], library.functions[symbol]
        for program, returns in ((it.returns, True), (it.enters, False)):
            if program:
                hook = Hook(program, it.cookie | slot, placed=True)
                points[program, returns].append(hook.point(function, placement))
    return dict(sorted(points.items(), key=lambda it: not it[0][1]))


def until_next(interval: float, now: float) -> float:
    """Seconds until the next whole multiple of the interval: nodes with clocks that agree look at the same time, so
    that both ends of a message are seen. `now` is wall time.
    """
    return interval - now % interval


@dataclass(eq=False)
class _Observed:
    """A file with functions that poll. `slot` is its place in the map of windows: 0 is for those that found none."""

    library: Library
    points: Mapping[tuple[str, bool], Sequence[Point]]
    """By program, and whether it runs at the function's return."""
    slot: int
    links: list[Link] = field(default_factory=list)
    opened: float = 0.0
    """Since when it is probed; 0: it is not. Times are of time.monotonic."""
    seconds: float = 0.0
    """For which it was probed before that."""
    stays: bool = False
    """Probed beyond the window: no thread polls often."""
    busy: bool = False
    """Whether a thread polled too often in this window."""
    rests: float = 0.0
    """Not to be probed again before."""
    history: deque[tuple[float, float]] = field(default_factory=deque)
    """Times, and for how long it had been probed by then."""

    def probed(self, now: float) -> float:
        return self.seconds + (now - self.opened if self.opened else 0.0)


class Windows:
    """Attaches the probes of what polls to all providers for `length` of every `interval` seconds, in its own thread.

    A thread that does nothing but poll loses at most length/interval of its time. A provider of which no thread called
    poll_cq more often in a window than may take it that share of its time stays attached to until one does, for an
    interval without the probes then. Where length and interval are equal the probes always stay. `allowed` says whether
    a provider may have return probes now; `tick` is called before every window.
    """

    def __init__(
        self,
        object: Object,
        length: float,
        interval: float,
        allowed: Callable[[Library], bool],
        tick: Callable[[], object],
    ) -> None:
        self._object, self._length, self._interval, self._allowed = object, length, interval, allowed
        self._tick = tick
        self._always = length >= interval
        self._lock = threading.Lock()
        self._observed: dict[int, _Observed] = {}
        self._slots = list(range(object.maps["windows"].max_entries - 1, 0, -1))
        self._open = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poll_cq windows", daemon=True)
        self._events = Events()
        self._events.add(object.maps["poll_busy"], self._heed)

    def start(self) -> None:
        self._events.start("poll_cq load")
        self._thread.start()

    def add(self, library: Library, symbols: Collection[str]) -> Mapping[str, Placement]:
        """Takes a provider on, and tells where it will be probed; what has no place for a probe is left out (its other
        probes tell).
        """
        found = find_places(library, list(symbols)).found
        with self._lock:
            slot = self._slots.pop() if self._slots else 0
            it = _Observed(library, _points(library, found, slot), slot)
            it.history.append((time.monotonic(), 0.0))
            self._observed[id(library)] = it
            if self._open:
                self._attach(it)
        return found

    def remove(self, library: Library) -> None:
        with self._lock:
            if it := self._observed.pop(id(library), None):
                self._detach([it])
                self._slots += [it.slot] if it.slot else []

    def review(self, library: Library) -> None:
        """Its users changed: detaches where return probes are not allowed any more, or attaches where it is time."""
        with self._lock:
            it = self._observed.get(id(library))
            if it and it.opened and not self._allowed(library):
                self._detach([it])
            elif it and not it.opened and (self._open or it.stays):
                self._attach(it)

    def collect(self) -> Iterator[Sample]:
        """How much of what poll_cq did is seen, by provider; files of one path together."""
        spans: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        now = time.monotonic()
        with self._lock:
            for it in self._observed.values():
                since, before = it.history[0]
                spans[it.library.path][0] += it.probed(now) - before
                spans[it.library.path][1] += now - since
        for path, (probed, time_) in spans.items():
            if time_ > 0:
                yield metrics.SAMPLED.sample(min(1.0, probed / time_), {"library": path})
        yield from self._events.collect()

    def close(self) -> None:
        self._closing.set()
        self._events.close()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        with self._lock:
            self._detach([*self._observed.values()])

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._tick()
                self._begin()
                self._closing.wait(self._length)
                self._end()
            except Exception:
                log.exception("observing poll_cq failed; tried again in the next window")
            if not self._always:
                self._closing.wait(until_next(self._interval, time.time()))

    def _begin(self) -> None:
        with self._lock:
            self._open, now = True, time.monotonic()
            for it in self._observed.values():
                it.history.append((now, it.probed(now)))
                while len(it.history) > 1 and it.history[1][0] < now - max(_RECENT_SECONDS, 2 * self._interval):
                    it.history.popleft()
                it.busy = False
                if not it.opened and it.rests <= now:
                    self._attach(it)

    def _end(self) -> None:
        if self._always:
            return
        with self._lock:
            self._open, now = False, time.monotonic()
            ending = []
            for it in [it for it in self._observed.values() if it.opened and not it.stays]:
                seen = now - it.opened >= _WHOLE * self._length
                it.stays = bool(it.slot and seen and not it.busy)
                ending += [] if it.stays else [it]
            self._detach(ending)

    def _heed(self, record: Any) -> None:
        """A thread polls more often than it may."""
        with self._lock:
            for it in [it for it in self._observed.values() if it.slot == record.slot]:
                it.busy = True
                if it.stays:
                    it.stays = False
                    self._detach([it])
                    it.rests = time.monotonic() + self._interval - self._length

    def _attach(self, it: _Observed) -> None:
        """Returns first: no call is left waiting for its return. Asks whether it is allowed."""
        if not it.points or not self._allowed(it.library):
            return
        windows = self._object.maps["windows"]
        try:
            windows.set(it.slot, time.monotonic_ns())
            for (name, returns), points in it.points.items():
                it.links.append(attach(self._object.programs[name], it.library.open_path, points, returns))
            windows.set(it.slot, time.monotonic_ns())  # what was polled meanwhile was not seen
            it.opened = time.monotonic()
        except BpfError as error:
            self._detach([it])
            log.warning("cannot observe poll_cq in %s: %s", it.library.path, error)

    def _detach(self, ending: list[_Observed]) -> None:
        now = time.monotonic()
        for it in ending:
            it.seconds, it.opened = it.probed(now), 0.0
        links = [link for it in ending for link in reversed(it.links)]
        for it in ending:
            it.links = []
        close_all(links)
