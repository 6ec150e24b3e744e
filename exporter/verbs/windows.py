"""When poll_cq is probed: in windows, for programs that poll without pause would lose all their time to probes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from exporter.bpf.hooks import find_places
from exporter.bpf.libbpf import Link, Object
from exporter.bpf.library import Library
from exporter.bpf.native import BpfError
from exporter.bpf.placement import place
from exporter.bpf.uprobe import Point, attach, close_all

ENTER, RETURN = "poll_cq_enter", "poll_cq_return"
_JOIN_SECONDS = 4.0

log = logging.getLogger(__name__)


class Windows:
    """Attaches poll_cq's probes to all providers for `length` of every `interval` seconds, from a thread of its own.

    A thread that does nothing but poll loses at most length/interval of its time. Where the two are equal the probes
    stay. `allowed` says whether a provider may have return probes now; `tick` is called before every window.
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
        self._lock = threading.Lock()
        self._points: dict[int, tuple[Library, list[Point]]] = {}
        self._links: dict[int, list[Link]] = {}
        self._closing = threading.Event()
        self._window = 1
        self._opened = self._observed = self._since = 0.0
        self._thread = threading.Thread(target=self._run, name="poll_cq windows", daemon=True)
        self._object.maps["windows"].set(0, self._window)

    def start(self) -> None:
        self._thread.start()

    def add(self, library: Library, symbols: Collection[str]) -> None:
        """Takes a provider on; what has no place for a probe is left out (its other probes tell)."""
        found = find_places(library, list(symbols), place).found.values()
        with self._lock:
            self._points[id(library)] = library, [Point(it.offset) for it in found]
            self._since = self._since or time.monotonic()
            if self._opened:
                self._attach(id(library))

    def remove(self, library: Library) -> None:
        with self._lock:
            self._points.pop(id(library), None)
            close_all(reversed(self._links.pop(id(library), [])))

    def review(self, library: Library) -> None:
        """Its users changed: in a window, detaches where return probes are not allowed any more, or attaches."""
        with self._lock:
            if not self._opened or id(library) not in self._points:
                return
            if not self._allowed(library):
                close_all(reversed(self._links.pop(id(library), [])))
            elif id(library) not in self._links:
                self._attach(id(library))

    def ratio(self) -> float | None:
        """The share of time so far for which poll_cq was probed; None before there was a provider."""
        with self._lock:
            now = time.monotonic()
            if not self._since or now <= self._since:
                return None
            observed = self._observed + (now - max(self._opened, self._since) if self._opened else 0.0)
            return min(1.0, observed / (now - self._since))

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        self._shut()

    def _run(self) -> None:
        always = self._length >= self._interval
        while not self._closing.is_set():
            try:
                self._tick()
                if not (always and self._opened):
                    self._open()
                self._closing.wait(self._length)
                if not always:
                    self._shut()
            except Exception:
                log.exception("observing poll_cq failed; tried again in the next window")
                self._shut()
            self._closing.wait(max(0.0, self._interval - self._length))

    def _open(self) -> None:
        with self._lock:
            if self._window > 1 or self._length < self._interval:
                self._window += 1
            self._object.maps["windows"].set(0, self._window)
            for key in self._points:
                self._attach(key)
            self._opened = time.monotonic()

    def _shut(self) -> None:
        with self._lock:
            if self._opened:
                self._observed += time.monotonic() - max(self._opened, self._since or self._opened)
            self._opened = 0.0
            for links in self._links.values():
                close_all(reversed(links))
            self._links.clear()

    def _attach(self, key: int) -> None:
        """Returns first: no call is left waiting for its return. Asks whether it is allowed."""
        library, points = self._points[key]
        if not points or not self._allowed(library):
            return
        links = self._links.setdefault(key, [])
        try:
            for name, returns in ((RETURN, True), (ENTER, False)):
                links.append(attach(self._object.programs[name], library.open_path, points, returns))
        except BpfError as error:
            close_all(self._links.pop(key))
            log.warning("cannot observe poll_cq in %s: %s", library.path, error)
