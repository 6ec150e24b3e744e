"""Times at which poll_cq and the extended calls that poll are probed.

They are probed all the time where called seldom, as by programs that wait for events, else in windows: programs that
poll without pause would spend all their time in probes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from exporter.bpf.events import Events
from exporter.bpf.find_places import find_places
from exporter.bpf.hook import Hook
from exporter.bpf.libbpf import Link, Object
from exporter.bpf.library import Library
from exporter.bpf.native import BpfError
from exporter.bpf.placement import Placement
from exporter.bpf.uprobe import Point, attach, close_all
from exporter.model import Sample
from exporter.verbs import metrics
from exporter.verbs.functions import POLLED, operation
from exporter.verbs.records import PollBusy

_JOIN_SECONDS = 4.0
_RECENT_SECONDS = 60.0
_WHOLE = 0.9
"""Share of a window that has to be seen before the probes of a file stay."""

_EXPENSIVE, _CHEAP = 50e-6, 1e-6
"""Seconds that a probed poll takes: where the cost is not known, and at least."""
_TIMES_SLOWER = 3.0
"""Cost of a probed poll over that of the small probes measured at start; docs/rdma.md has the measurement."""

log = logging.getLogger(__name__)


def polls_allowed(length: float, interval: float, hit: float | None) -> int:
    """Return how many polls of one thread in `length` seconds take length/interval of the thread's time.

    `hit` is the cost of a small return probe in seconds, None where it is not known. Returns 0, which means any number,
    where the probes are to stay.
    """
    if length >= interval:
        return 0
    poll = _EXPENSIVE if hit is None else max(_TIMES_SLOWER * hit, _CHEAP)
    return max(1, round(length * length / interval / poll))


def _points(library: Library, found: Mapping[str, Placement], slot: int) -> Mapping[tuple[str, bool], Sequence[Point]]:
    """Return where which programs are attached, those at returns first."""
    points: dict[tuple[str, bool], list[Point]] = defaultdict(list)
    for symbol, placement in found.items():
        polled, function = POLLED[operation(symbol)], library.functions[symbol]
        for program, returns in ((polled.returns, True), (polled.enters, False)):
            if program:
                hook = Hook(program, polled.cookie | slot, placed=True)
                points[program, returns].append(hook.point(function, placement))
    return dict(sorted(points.items(), key=lambda item: not item[0][1]))


def until_next(interval: float, now: float) -> float:
    """Return the seconds until the next whole multiple of the interval. `now` is wall time.

    Nodes with clocks that agree probe at the same time, so that both ends of a message are seen.
    """
    return interval - now % interval


@dataclass(eq=False)
class _PolledFile:
    """A file with functions that poll. `slot` is its index in the map of windows, 0 where no slot was free.

    Times are of time.monotonic, in seconds.
    """

    library: Library
    points: Mapping[tuple[str, bool], Sequence[Point]]
    """Points by program, and whether the program runs at the function's return."""
    slot: int
    links: list[Link] = field(default_factory=list)
    opened: float = 0.0
    """Time from which on the file is probed; 0 while it is not."""
    seconds: float = 0.0
    """Seconds for which the file was probed before `opened`."""
    stays: bool = False
    """True if the file is probed beyond the window: no thread polls often."""
    busy: bool = False
    """True if a thread polled too often in this window."""
    not_before: float = 0.0
    """Time before which the file is not probed again."""
    history: deque[tuple[float, float]] = field(default_factory=deque)
    """Times, and for how many seconds the file had been probed by then."""

    def probed(self, now: float) -> float:
        """Return for how many seconds the file has been probed."""
        return self.seconds + (now - self.opened if self.opened else 0.0)


class Windows:
    """A thread that attaches the probes of polling functions to all providers for `length` of every `interval` seconds.

    A thread that does nothing but poll loses at most length/interval of its time. The probes of a provider stay beyond
    the window while no thread calls poll_cq more often than takes that share of the thread's time; when one does, the
    provider has no probes for an interval. Where length and interval are equal the probes always stay. `allowed`
    returns whether a provider may have return probes now; `tick` is called before every window.
    """

    def __init__(
        self,
        bpf_object: Object,
        length: float,
        interval: float,
        allowed: Callable[[Library], bool],
        tick: Callable[[], object],
    ) -> None:
        self._object, self._length, self._interval, self._allowed = bpf_object, length, interval, allowed
        self.tick = tick
        self._always = length >= interval
        self._lock = threading.Lock()
        self.files: dict[int, _PolledFile] = {}
        self._slots = list(range(bpf_object.maps["windows"].max_entries - 1, 0, -1))
        self._open = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poll_cq windows", daemon=True)
        self._events = Events()
        self._events.add(bpf_object.maps["poll_busy"], self._receive)

    def start(self) -> None:
        self._events.start("poll_cq load")
        self._thread.start()

    def add(self, library: Library, symbols: Collection[str]) -> Mapping[str, Placement]:
        """Add a provider, and return where it will be probed.

        Functions without a place for a probe are left out: the states of the provider's other probes report them.
        """
        found = find_places(library, list(symbols)).found
        with self._lock:
            slot = self._slots.pop() if self._slots else 0
            file = _PolledFile(library, _points(library, found, slot), slot)
            file.history.append((time.monotonic(), 0.0))
            self.files[id(library)] = file
            if self._open:
                self._attach(file)
        return found

    def remove(self, library: Library) -> None:
        with self._lock:
            if file := self.files.pop(id(library), None):
                self._detach([file])
                self._slots += [file.slot] if file.slot else []

    def review(self, library: Library) -> None:
        """Detach where a change of users forbids return probes, or attach where a window is open."""
        with self._lock:
            file = self.files.get(id(library))
            if file and file.opened and not self._allowed(library):
                self._detach([file])
            elif file and not file.opened and (self._open or file.stays):
                self._attach(file)

    def collect(self) -> Iterator[Sample]:
        """Yield the share of time for which poll_cq is probed, by provider; files of one path are one."""
        spans: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        now = time.monotonic()
        with self._lock:
            for file in self.files.values():
                since, before = file.history[0]
                spans[file.library.path][0] += file.probed(now) - before
                spans[file.library.path][1] += now - since
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
            self._detach([*self.files.values()])

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.tick()
                self._begin()
                self._closing.wait(self._length)
                self._end()
            except Exception:
                log.exception("probing poll_cq failed; it is tried again in the next window")
            if not self._always:
                self._closing.wait(until_next(self._interval, time.time()))

    def _begin(self) -> None:
        with self._lock:
            self._open, now = True, time.monotonic()
            for file in self.files.values():
                file.history.append((now, file.probed(now)))
                while len(file.history) > 1 and file.history[1][0] < now - max(_RECENT_SECONDS, 2 * self._interval):
                    file.history.popleft()
                file.busy = False
                if not file.opened and file.not_before <= now:
                    self._attach(file)

    def _end(self) -> None:
        if self._always:
            return
        with self._lock:
            self._open, now = False, time.monotonic()
            ending = []
            for file in [file for file in self.files.values() if file.opened and not file.stays]:
                seen = now - file.opened >= _WHOLE * self._length
                file.stays = bool(file.slot and seen and not file.busy)
                ending += [] if file.stays else [file]
            self._detach(ending)

    def _receive(self, record: PollBusy) -> None:
        """Mark the file of a struct poll_busy: a thread polls more often than is allowed."""
        with self._lock:
            for file in [file for file in self.files.values() if file.slot == record.slot]:
                file.busy = True
                if file.stays:
                    file.stays = False
                    self._detach([file])
                    file.not_before = time.monotonic() + self._interval - self._length

    def _attach(self, file: _PolledFile) -> None:
        """Attach where it is allowed, programs at returns first: no call is left waiting for its return."""
        if not file.points or not self._allowed(file.library):
            return
        windows = self._object.maps["windows"]
        try:
            windows.set(file.slot, time.monotonic_ns())
            for (name, returns), points in file.points.items():
                file.links.append(attach(self._object.programs[name], file.library.open_path, points, returns))
            windows.set(file.slot, time.monotonic_ns())  # what was polled meanwhile was not seen
            file.opened = time.monotonic()
        except BpfError as error:
            self._detach([file])
            log.warning("cannot probe poll_cq in %s: %s", file.library.path, error)

    def _detach(self, ending: list[_PolledFile]) -> None:
        now = time.monotonic()
        for file in ending:
            file.seconds, file.opened = file.probed(now), 0.0
        links = [link for file in ending for link in reversed(file.links)]
        for file in ending:
            file.links = []
        close_all(links)
