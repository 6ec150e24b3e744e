"""The engines' own numbers: their /metrics, read in the background, with the labels of their processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from exporter.background.poller import Poller
from exporter.counters import Tally
from exporter.loopback import Endpoint
from exporter.model import Kind, Labels, Metric, Sample
from exporter.node import Node
from exporter.serving import engine_pages, engine_table, metrics
from exporter.serving.engine_pages import NoPageError
from exporter.serving.engines import UNKNOWN, engine
from exporter.serving.exposition import EngineSeries, samples, series

KEPT = 3
"""Intervals for which numbers count that could not be read again."""
AGAIN_S = 300.0
"""Pause before a port that had no metrics is tried again: it may be one for which a request by HTTP is a fault."""
MOST_ENGINES = 64
MOST_SECONDS = 2 * engine_pages.SECONDS
"""For the ports of one process in a round; the others are tried in the next one."""
MOST_SERIES = 20_000
"""Of all engines together, a histogram being one. Where there are more, the largest pages are cut."""


@dataclass(frozen=True, slots=True)
class _Page:
    """One reading of an engine's metrics, with the labels of the process at that time, as the pid may be reused."""

    labels: Labels
    engine: str
    series: tuple[EngineSeries, ...]
    at: float


class EngineNumbers:
    """Reads the metrics of engines among the followed processes; a scrape shows what was read last."""

    def __init__(self, node: Node, followed: Callable[[], Collection[int]], interval: float) -> None:
        self._node, self._followed, self._interval = node, followed, interval
        self._pages: dict[Endpoint, _Page] = {}
        self._without: dict[tuple[int, Endpoint], float] = {}
        """Ports of processes that had no metrics, and until when they are left alone."""
        self._failures: tuple[str, ...] = ()
        self._seconds: dict[int, int] = {}
        """Duration of the last reading of each process in seconds, by pid."""
        self._declared: dict[tuple[str, Kind], Metric] = {}
        self._reads = Tally(metrics.ENGINE_READS, ("read", "failed"))
        self._lock = threading.Lock()
        self._poller = Poller("engine metrics", self.read, interval, steady=True)

    def start(self) -> None:
        self._poller.start()

    def close(self) -> None:
        self._poller.close(1.0)

    def samples(self) -> Iterator[Sample]:
        """Yield the series of the engines in their own names, what several have in common, and the readings."""
        with self._lock:
            pages = list(self._pages.values())
        declared, self._declared = self._declared, {}
        left = MOST_SERIES
        for count, page in enumerate(sorted(pages, key=lambda page: len(page.series))):
            shown = page.series[: left // (len(pages) - count)]
            yield from samples(page.labels, shown, partial(self._metric, before=declared))
            yield from engine_table.samples(page.series, page.engine, page.labels)
            left -= len(shown)
        yield from self._reads.samples()

    def problems(self) -> tuple[str, ...]:
        """Return the reasons why engines were not read, for the landing page."""
        return self._failures

    def read(self) -> None:
        """Read every engine once: those that answer slowly after the others, and as far as the time goes."""
        now = time.monotonic()
        self._without = {it: until for it, until in self._without.items() if until > now}
        failures: dict[str, None] = {}
        done: set[Endpoint] = set()
        engines = 0
        before, self._seconds = self._seconds, {}
        for pid in sorted(self._followed(), key=lambda pid: (before.get(pid, 0), pid)):
            self._seconds[pid] = before.get(pid, 0)
            if self._poller.closing.is_set() or engines == MOST_ENGINES or time.monotonic() - now > self._interval:
                continue
            name = engine(self._node.proc, pid)
            if name == UNKNOWN:
                continue
            try:
                found = engine_pages.endpoints(self._node.proc, pid)
            except OSError:
                continue
            if found and done.isdisjoint(found):  # workers share a port
                engines += 1
                done.update(found)
                began = time.monotonic()
                if failure := self._read_engine(pid, name, found):
                    failures[failure] = None
                self._seconds[pid] = round(time.monotonic() - began)
        with self._lock:
            self._pages = {at: it for at, it in self._pages.items() if it.at >= now - KEPT * self._interval}
        self._failures = tuple(failures)

    def _read_engine(self, pid: int, name: str, found: list[Endpoint]) -> str:
        """Read the first of a process's ports that has metrics. Returns why none has, empty where one has."""
        known = [at for at in found if at in self._pages]
        labels, failure, began = self._node.processes.labels(pid), "", time.monotonic()
        for at in known or [at for at in found if (pid, at) not in self._without]:
            if self._poller.closing.is_set() or time.monotonic() - began > MOST_SECONDS:
                break
            try:
                page = tuple(series(engine_pages.read(self._node.proc, pid, at, name)))
                failure = failure or ("" if page else f"port {at.port} of process {pid} has no metrics of an engine")
            except NoPageError as error:
                page, failure = (), str(error)
            if page:
                with self._lock:
                    self._pages[at] = _Page(labels, name, page, time.monotonic())
                self._reads.add("read")
                return ""
            if at in known:
                self._reads.add("failed")
            else:
                self._without[pid, at] = time.monotonic() + AGAIN_S
        return failure

    def _metric(self, one: EngineSeries, before: Mapping[tuple[str, Kind], Metric]) -> Metric:
        """Return the metric of a name and kind, the same for all engines, and as on the page `before` if it was there.

        Only those of one page are kept, so that no engine uses up the names.
        """
        key = one.name, one.kind
        if key not in self._declared:
            made = before.get(key) or Metric(one.name, one.help, one.kind, process=True, literal=True)
            self._declared[key] = made
        return self._declared[key]
