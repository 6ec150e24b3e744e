"""Runs the collectors in parallel: each is isolated, timed, and waited for within the scrape's time limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from weakref import WeakValueDictionary

from exporter.collector_state import CollectorState, Health, about, failure
from exporter.counters import Tally
from exporter.model import Collector, Kind, Metric, Sample
from exporter.values import lines

DROPPED = Metric(
    "accel_exporter.samples.dropped",
    "Samples left out of /metrics, by reason: duplicate (of a series on the same page), malformed (value).",
    Kind.COUNTER,
    "{sample}",
    labels=("reason",),
)

LOG_SECONDS = 60.0
MOST_LOADING = 4
"""Collectors that load at once: each takes memory meanwhile, and a processor."""
MOST_PROBLEMS = 100

log = logging.getLogger(__name__)


class Run:
    """One call of a collector's `collect`, in a separate thread, shared by all scrapes during the call."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.started = time.monotonic()
        self.seconds = 0.0
        self.samples: list[Sample] = []
        self.series = 0
        self.error: BaseException | None = None
        self.done: Future[None] = Future()
        self.later: Run | None = None
        """The collector's next run, once that has completed."""


class Scraper:
    """The collectors of this node.

    `disabled` are the collectors that are switched off, with the flag of each for error messages. `own` are sources of
    samples about the exporter itself, which must be fast and are part of every scrape. `started` is called when all
    collectors have started, before scrapes are answered.

    Each collector runs in at most one daemon thread at a time: a stuck collector holds one thread, is late in every
    scrape until it returns, is not called again in the meantime, and does not block the end of the process.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        disabled: Mapping[str, str] | None = None,
        own: Sequence[Callable[[], Iterable[Sample]]] = (),
        started: Callable[[], object] = lambda: None,
    ) -> None:
        self.dropped = Tally(DROPPED, ("duplicate", "malformed"))
        self.ready = False
        self._collectors = {collector.name: collector for collector in collectors}
        self._disabled = disabled or {}
        self._own = (self.dropped.samples, *own)
        self._started = started
        self._startable: dict[str, Collector] = {}
        self._running: dict[str, Run] = {}
        self._latest: WeakValueDictionary[str, Run] = WeakValueDictionary()
        """The last run of each collector that has completed, while a scrape has it."""
        self._states = {name: CollectorState(name, Health.WAITING) for name in self._collectors}
        self._logged: dict[str, tuple[Health, float]] = {}
        self._lock = threading.Lock()
        self._subscriber: Callable[[Sequence[Sample], Collection[str] | None], None] | None = None

    def start(self) -> None:
        """Start the collectors in turn. A collector that cannot start is left out, and the reason is logged.

        Those with a method `load` are loaded side by side, once those before the first of them have started.
        """
        loadable = {name: load for name, it in self._collectors.items() if (load := getattr(it, "load", None))}
        with ThreadPoolExecutor(MOST_LOADING, "load") as threads:
            loading: dict[str, Future[None]] = {}
            for name, collector in self._collectors.items():
                try:
                    if name in loadable:
                        if not loading:
                            loading = {name: threads.submit(load) for name, load in loadable.items()}
                            wait(loading.values())  # before the first one measures what a probe costs
                        loading[name].result()
                    collector.start()
                except Exception as error:
                    self._note(failure(name, error, None))
                else:
                    started = {**self._startable, name: collector}  # a copy: a scrape may iterate over the old one
                    self._startable = started
        self._started()
        self.ready = True

    def subscribe(self, receive: Callable[[Sequence[Sample], Collection[str] | None], None]) -> None:
        """Call `receive` with the samples of each scrape and the requested collectors (None: all).

        There is one subscriber: a second call replaces the first.
        """
        self._subscriber = receive

    def replace(self, collectors: Sequence[Collector], disabled: Mapping[str, str]) -> None:
        """Start these collectors in place of the previous ones, which must be closed."""
        self._collectors = {collector.name: collector for collector in collectors}
        self._disabled = disabled
        self._states = {name: CollectorState(name, Health.WAITING) for name in self._collectors}
        self.start()

    def not_started(self) -> list[str]:
        """Return the collectors that failed to start, without those that are unavailable on this node."""
        states, started = self._states, self._startable
        return [name for name, state in states.items() if name not in started and state.health is Health.FAILED]

    def states(self) -> list[CollectorState]:
        """Return the state of every collector, in order of their names."""
        states = self._states  # a reload replaces it
        return [replace(states[name], problems=self._problems(name)) for name in sorted(states)]

    def _problems(self, name: str) -> tuple[str, ...]:
        collector = self._startable.get(name)
        problems: Callable[[], Iterable[str]] = getattr(collector, "problems", tuple)
        try:
            return tuple(islice(problems(), MOST_PROBLEMS))
        except Exception as error:
            return (f"the collector's problems are unknown: {error}",)

    def select(self, collect: Sequence[str], exclude: Sequence[str]) -> frozenset[str] | None:
        """Return the collectors selected by collect[] or exclude[], or None for all of them.

        Raises ValueError with the reason when both are given, or a name is unknown or disabled.
        """
        if collect and exclude:
            raise ValueError("collect[] and exclude[] cannot be combined: give one of them")
        for name in (*collect, *exclude):
            if name in self._disabled:
                raise ValueError(f"collector {name!r} is disabled: start the exporter with {self._disabled[name]}")
            if name not in self._collectors:
                raise ValueError(f"there is no collector {name!r}: there are {', '.join(sorted(self._collectors))}")
        if collect:
            return frozenset(collect)
        return frozenset(self._collectors) - frozenset(exclude) if exclude else None

    def begin(self, names: Collection[str] | None = None) -> list[Run]:
        """Start the named collectors (None: all), or join their current runs, and return the runs without waiting."""
        return [self._run(one) for name, one in self._startable.items() if names is None or name in names]

    def finish(self, runs: Iterable[Run], names: Collection[str] | None = None) -> list[Sample]:
        """Return the samples of completed runs, of the state of the named collectors, and of the exporter itself.

        Of a collector that has completed another run since, the samples are those of the later one.
        """
        samples: list[Sample] = []
        for run in runs:
            name = run.collector.name
            while run.later:
                run = run.later
            if not run.done.done():
                seconds = time.monotonic() - run.started
                self._note(CollectorState(name, Health.LATE, seconds, f"still running after {seconds:.1f} s"))
                continue
            if run.error is None:
                samples += run.samples
                self._note(CollectorState(name, Health.OK, run.seconds, series=run.series))
            else:
                self._note(failure(name, run.error, run.seconds))
        for state in list(self._states.values()):
            if names is None or state.name in names:
                samples += about(state)
        for source in self._own:
            try:
                samples += source()
            except Exception as error:
                log.error("a source of the exporter's own metrics failed: %s", error)
        if self._subscriber:
            try:
                self._subscriber(samples, names)
            except Exception as error:
                log.error("samples could not be recorded for the page at /: %s", error)
        return samples

    def gather(self, names: Collection[str] | None = None, timeout: float = 10.0) -> list[Sample]:
        """Return the samples of one scrape of the named collectors (None: all), within `timeout` seconds."""
        runs = self.begin(names)
        wait([run.done for run in runs], timeout)
        return self.finish(runs, names)

    def close(self, timeout: float = 4.0) -> None:
        """Close the collectors in parallel; one that is busy for `timeout` seconds is left to the process's end."""
        self.ready = False
        closing, self._startable = self._startable, {}
        threads = [
            threading.Thread(target=self._close, args=(collector, timeout), name=f"close-{name}"[:15], daemon=True)
            for name, collector in closing.items()
        ]
        deadline = time.monotonic() + timeout
        for thread in threads:
            thread.start()
        for name, thread in zip(closing, threads, strict=True):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("collector %s did not close within %.0f s", name, timeout)

    def _close(self, collector: Collector, timeout: float) -> None:
        with self._lock:
            run = self._running.get(collector.name)
        if run is not None and wait([run.done], timeout).not_done:
            return
        try:
            collector.close()
        except Exception as error:
            log.error("collector %s failed to close: %s", collector.name, error)

    def _run(self, collector: Collector) -> Run:
        with self._lock:
            run = self._running.get(collector.name)
            if run is None:
                run = self._running[collector.name] = Run(collector)
                thread = threading.Thread(
                    target=self._collect, args=(run,), name=f"collect-{collector.name}"[:15], daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:  # the limit of threads is reached
                    del self._running[collector.name]
                    run.error = error
                    run.done.set_result(None)
            return run

    def _collect(self, run: Run) -> None:
        try:
            run.samples = list(run.collector.collect())
            run.series = lines(run.samples)
        except BaseException as error:
            run.error = error
        run.seconds = time.monotonic() - run.started
        with self._lock:
            del self._running[run.collector.name]
            before = self._latest.get(run.collector.name)
            if before and before.collector is run.collector:
                before.later = run
            self._latest[run.collector.name] = run
        run.done.set_result(None)

    def _note(self, state: CollectorState) -> None:
        """Keep a state, and log it when it differs from the one logged last; LATE and OK at most once a minute."""
        if state.name not in self._collectors:
            return  # the collector was replaced during its run
        self._states[state.name] = state
        logged, at = self._logged.get(state.name, (Health.OK, -LOG_SECONDS))
        now = time.monotonic()
        if state.health is logged or (state.health in (Health.LATE, Health.OK) and now - at < LOG_SECONDS):
            return
        self._logged[state.name] = (state.health, now)
        if state.health is Health.UNAVAILABLE:
            remedy = f" ({state.remedy})" if state.remedy else ""
            log.info("collector %s is unavailable: %s%s", state.name, state.reason, remedy)
        elif state.health is Health.FAILED:
            log.error("collector %s failed: %s", state.name, state.reason)
        elif state.health is Health.LATE:
            log.warning("collector %s is late: %s", state.name, state.reason)
        else:
            log.info("collector %s works again", state.name)
