"""Runs the collectors side by side: each is isolated, timed, and waited for no longer than the scrape allows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

from exporter.counters import Tally
from exporter.model import Collector, Kind, Metric, Sample, Unavailable

SUCCESS = Metric(
    "accel_exporter.collector.success",
    "1 when the collector's run for this scrape ended in time and without an error, else 0.",
    Kind.GAUGE,
    labels=("collector",),
)
AVAILABLE = Metric(
    "accel_exporter.collector.available",
    "0 when this node lacks what the collector needs (no such hardware, driver or permission), else 1.",
    Kind.GAUGE,
    labels=("collector",),
)
DURATION = Metric(
    "accel_exporter.collector.duration",
    "Time the collector's run for this scrape took, or has taken so far when it is late.",
    Kind.GAUGE,
    "s",
    labels=("collector",),
)
DROPPED = Metric(
    "accel_exporter.samples.dropped",
    "Samples kept off /metrics: those that repeat a series of the same page, and those whose value has no valid form.",
    Kind.COUNTER,
    "{sample}",
    labels=("reason",),
)

LOG_SECONDS = 60.0
MOST_PROBLEMS = 100

log = logging.getLogger(__name__)


class Health(Enum):
    WAITING = "waiting"
    OK = "ok"
    LATE = "late"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class State:
    """How it fared last. `seconds` is None until it has run, `reason` and `remedy` are empty when it is well.

    `problems` are sentences about parts of it that do not work while the rest does, from a collector with a method of
    that name.
    """

    name: str
    health: Health
    seconds: float | None = None
    reason: str = ""
    remedy: str = ""
    problems: tuple[str, ...] = ()


class Run:
    """One call of a collector's `collect`, in a thread of its own; scrapes that come meanwhile share it."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.started = time.monotonic()
        self.seconds = 0.0
        self.samples: list[Sample] = []
        self.error: BaseException | None = None
        self.done: Future[None] = Future()


class Scraper:
    """The collectors of this node.

    `disabled` are those switched off and the flag of each, for a clear answer when one is asked for. `own` are sources
    of samples about the exporter itself: quick, and part of every scrape.

    A collector runs in a daemon thread, at most one at a time each: a stuck one holds one thread, is late in every
    scrape until it returns, is not called again meanwhile, and does not keep the process from ending.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        disabled: Mapping[str, str] | None = None,
        own: Sequence[Callable[[], Iterable[Sample]]] = (),
    ) -> None:
        self.dropped = Tally(DROPPED, ("duplicate", "malformed"))
        self.ready = False
        self._collectors = {collector.name: collector for collector in collectors}
        self._disabled = disabled or {}
        self._own = (self.dropped.samples, *own)
        self._startable: dict[str, Collector] = {}
        self._running: dict[str, Run] = {}
        self._states = {name: State(name, Health.WAITING) for name in self._collectors}
        self._said: dict[str, tuple[Health, float]] = {}
        self._lock = threading.Lock()
        self._seen: Callable[[Sequence[Sample], Collection[str] | None], None] | None = None

    def start(self) -> None:
        """Starts each collector in turn; one that cannot start is left out and said."""
        for name, collector in self._collectors.items():
            try:
                collector.start()
            except Exception as error:
                self._note(_failure(name, error, None))
            else:
                self._startable = {**self._startable, name: collector}  # a scrape may be going through it
        self.ready = True

    def follow(self, seen: Callable[[Sequence[Sample], Collection[str] | None], None]) -> None:
        """Gives `seen` what each gathering finds, and the names it was asked for; of one follower."""
        self._seen = seen

    def replace(self, collectors: Sequence[Collector], disabled: Mapping[str, str]) -> None:
        """Starts these collectors in place of those before, which have been closed."""
        self._collectors = {collector.name: collector for collector in collectors}
        self._disabled = disabled
        self._states = {name: State(name, Health.WAITING) for name in self._collectors}
        self.start()

    def states(self) -> list[State]:
        """How every collector fared, in order of their names."""
        return [replace(self._states[name], problems=self._problems(name)) for name in sorted(self._states)]

    def _problems(self, name: str) -> tuple[str, ...]:
        collector = self._startable.get(name)
        tell: Callable[[], Iterable[str]] = getattr(collector, "problems", tuple)
        try:
            return tuple(islice(tell(), MOST_PROBLEMS))
        except Exception as error:
            return (f"its problems are not known: {error}",)

    def select(self, collect: Sequence[str], exclude: Sequence[str]) -> frozenset[str] | None:
        """The collectors that collect[] or exclude[] leave, None for all of them.

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
        """Starts the collectors named, or joins the runs under way. Does not wait."""
        return [self._run(it) for name, it in self._startable.items() if names is None or name in names]

    def finish(self, runs: Iterable[Run], names: Collection[str] | None = None) -> list[Sample]:
        """The samples of the runs that are done, and those about every collector named and the exporter itself."""
        samples: list[Sample] = []
        for run in runs:
            name = run.collector.name
            if not run.done.done():
                seconds = time.monotonic() - run.started
                self._note(State(name, Health.LATE, seconds, f"still running after {seconds:.1f} s"))
                continue
            if run.error is None:
                samples += run.samples
                self._note(State(name, Health.OK, run.seconds))
            else:
                self._note(_failure(name, run.error, run.seconds))
        for state in list(self._states.values()):
            if names is None or state.name in names:
                samples += _about(state)
        for source in self._own:
            try:
                samples += source()
            except Exception as error:
                log.error("a source of the exporter's own metrics failed: %s", error)
        if self._seen:
            try:
                self._seen(samples, names)
            except Exception as error:
                log.error("what was gathered could not be kept for the page at /: %s", error)
        return samples

    def gather(self, names: Collection[str] | None = None, timeout: float = 10.0) -> list[Sample]:
        """One scrape: what the collectors named (all, by default) give within `timeout` seconds."""
        runs = self.begin(names)
        wait([run.done for run in runs], timeout)
        return self.finish(runs, names)

    def close(self, timeout: float = 4.0) -> None:
        """Closes the collectors side by side; one still busy after `timeout` seconds is left to the process's end."""
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
        except BaseException as error:
            run.error = error
        run.seconds = time.monotonic() - run.started
        with self._lock:
            del self._running[run.collector.name]
        run.done.set_result(None)

    def _note(self, state: State) -> None:
        """Remembers a state; logs it when it is another than was said last, being late or well again once a minute."""
        if state.name not in self._collectors:
            return  # replaced while it ran
        self._states[state.name] = state
        said, at = self._said.get(state.name, (Health.OK, -LOG_SECONDS))
        now = time.monotonic()
        if state.health is said or (state.health in (Health.LATE, Health.OK) and now - at < LOG_SECONDS):
            return
        self._said[state.name] = (state.health, now)
        if state.health is Health.UNAVAILABLE:
            remedy = f" ({state.remedy})" if state.remedy else ""
            log.info("collector %s is unavailable: %s%s", state.name, state.reason, remedy)
        elif state.health is Health.FAILED:
            log.error("collector %s failed: %s", state.name, state.reason)
        elif state.health is Health.LATE:
            log.warning("collector %s is late: %s", state.name, state.reason)
        else:
            log.info("collector %s works again", state.name)


def _failure(name: str, error: BaseException, seconds: float | None) -> State:
    if isinstance(error, Unavailable):
        return State(name, Health.UNAVAILABLE, seconds, error.reason, error.remedy)
    return State(name, Health.FAILED, seconds, f"{type(error).__name__}: {error}")


def _about(state: State) -> Iterable[Sample]:
    labels = {"collector": state.name}
    yield SUCCESS.sample(int(state.health is Health.OK), labels)
    yield AVAILABLE.sample(int(state.health is not Health.UNAVAILABLE), labels)
    if state.seconds is not None:
        yield DURATION.sample(state.seconds, labels)
