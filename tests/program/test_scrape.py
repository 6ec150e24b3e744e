"""Collectors side by side: isolation, time limits, sharing, selection, and metrics about them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from typing import Any

import pytest

from exporter import self_metrics
from exporter.collector_state import Health
from exporter.model import Kind, Metric, Sample, Unavailable
from exporter.scrape import Scraper
from exporter.version import Build
from exporter.views import prometheus
from tests.support import PATIENCE, until

VALUE = Metric("test.value", "A value.", Kind.GAUGE, labels=("of",))


class Fake:
    """A collector that gives one sample, or does what the test sets."""

    def __init__(self, name: str, collect: Callable[[], object] = lambda: None, start: Exception | None = None) -> None:
        self.name, self._do, self._start = name, collect, start
        self.calls = 0
        self.closed = False

    def start(self) -> None:
        if self._start:
            raise self._start

    def collect(self) -> Iterable[Sample]:
        self.calls += 1
        self._do()
        yield VALUE.sample(self.calls, {"of": self.name})

    def close(self) -> None:
        self.closed = True


def scraper(*collectors: Fake, disabled: Mapping[str, str] | None = None) -> Scraper:
    made = Scraper(collectors, disabled)
    made.start()
    return made


def values(samples: Iterable[Sample]) -> dict[str, object]:
    """Samples by Prometheus name and label value; durations left out."""
    return {
        " ".join([prometheus.name(it.metric).removeprefix("accel_exporter_"), *it.labels.values()]): it.value
        for it in samples
        if "duration" not in it.metric.name and "dropped" not in it.metric.name
    }


def fail() -> None:
    raise OSError("no such file")


def test_one_failing_collector_costs_its_own_samples_only(caplog: pytest.LogCaptureFixture) -> None:
    """An exception is success 0 and one log line for the collector; the others' samples are there."""
    subject = scraper(Fake("bad", fail), Fake("good"))

    first, second = values(subject.gather()), values(subject.gather())

    assert {
        "test_value good": 1,
        "collector_success bad": 0,
        "collector_available bad": 1,
        "collector_success good": 1,
        "collector_available good": 1,
        "collector_series good": 1,
    } == first
    assert 2 == second["test_value good"]
    assert ["collector bad failed: OSError: no such file"] == [record.getMessage() for record in caplog.records]


def test_late_collector_is_not_waited_for_nor_started_twice() -> None:
    """Results in time are served; the late collector has success 0, runs once, and joins in when done."""
    gate = threading.Event()
    late = Fake("late", gate.wait)
    subject = scraper(late, Fake("quick"))

    def gathered() -> list[Sample]:
        runs = subject.begin()
        wait([run.done for run in runs if run.collector is not late], PATIENCE)
        return subject.finish(runs)

    first, second = gathered(), gathered()

    assert (0, 1) == (values(first)["collector_success late"], values(first)["test_value quick"])
    assert (0, 2) == (values(second)["collector_success late"], values(second)["test_value quick"])
    assert 1 == late.calls
    assert Health.LATE is next(s.health for s in subject.states() if s.name == "late")
    gate.set()
    assert 1 == values(subject.gather())["collector_success late"]


def test_collectors_run_side_by_side() -> None:
    """Two collectors that wait for each other both finish."""
    barrier = threading.Barrier(2, timeout=PATIENCE)
    subject = scraper(Fake("a", barrier.wait), Fake("b", barrier.wait))

    got = values(subject.gather(timeout=PATIENCE))

    assert (1, 1) == (got["collector_success a"], got["collector_success b"])


def test_concurrent_scrapes_share_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapes that come while a collector runs get the result of that run."""
    gate = threading.Event()
    slow = Fake("slow", gate.wait)
    subject = scraper(slow)
    begun, begin = threading.Semaphore(0), subject.begin

    def counted(*arguments: Any) -> Any:
        try:
            return begin(*arguments)
        finally:
            begun.release()

    monkeypatch.setattr(subject, "begin", counted)
    results: list[dict[str, object]] = []
    threads = [threading.Thread(target=lambda: results.append(values(subject.gather(timeout=20)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=20)
    gate.set()
    for thread in threads:
        thread.join()

    assert [1] * 8 == [result["collector_success slow"] for result in results]
    assert 1 == slow.calls


@pytest.mark.parametrize("during_start", [True, False])
def test_unavailable_is_logged_once_and_is_no_fault(caplog: pytest.LogCaptureFixture, during_start: bool) -> None:
    """Unavailable, at the start or later, is one info line with its remedy, success 0 and available 0."""
    error = Unavailable("no InfiniBand device", "load the driver")

    def unavailable() -> None:
        raise error

    caplog.set_level(logging.INFO)
    subject = scraper(Fake("ib", start=error) if during_start else Fake("ib", unavailable))

    for _ in range(3):
        got = values(subject.gather())

    assert {"collector_success ib": 0, "collector_available ib": 0} == got
    assert [("INFO", "collector ib is unavailable: no InfiniBand device (load the driver)")] == [
        (record.levelname, record.getMessage()) for record in caplog.records
    ]


def test_collector_that_cannot_start_is_left_out() -> None:
    """A start that raises is success 0 in every scrape, and the others run."""
    broken = Fake("broken", start=RuntimeError("verifier refuses"))
    subject = scraper(broken, Fake("good"))

    got = values(subject.gather())

    assert (0, 1, 0) == (got["collector_success broken"], got["collector_success good"], broken.calls)
    [state] = [state for state in subject.states() if state.name == "broken"]
    assert (Health.FAILED, "RuntimeError: verifier refuses", None) == (state.health, state.reason, state.seconds)


def test_collectors_are_loaded_side_by_side() -> None:
    """Collectors with something to load do that together, after the ones before them; one that fails is left out."""
    together, begun = threading.Barrier(2, timeout=10), list[str]()

    class Loading(Fake):
        def load(self) -> None:
            assert begun == ["first"]
            together.wait()
            if self.name == "bad":
                raise Unavailable("nothing to load")

        def start(self) -> None:
            begun.append(self.name)

    class First(Fake):
        def start(self) -> None:
            begun.append(self.name)

    made = scraper(First("first"), Loading("bad"), Loading("good"))
    assert ["first", "good"] == begun
    assert {"bad": Health.UNAVAILABLE} == {it.name: it.health for it in made.states() if it.reason}


def test_recovery_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that works after failing is one more log line."""
    monkeypatch.setattr("exporter.scrape.LOG_SECONDS", 0)
    caplog.set_level(logging.INFO)
    broken = [True]
    subject = scraper(Fake("nvml", lambda: fail() if broken else None))
    subject.gather()
    broken.clear()

    for _ in range(3):
        subject.gather()

    assert "collector nvml works again" == caplog.records[-1].getMessage()
    assert 2 == len(caplog.records)


@pytest.mark.parametrize(
    ("collect", "exclude", "expected"),
    [
        (["a"], [], {"a"}),
        (["a", "a"], [], {"a"}),
        ([], ["a"], {"b"}),
        ([], [], None),
    ],
)
def test_selection(collect: list[str], exclude: list[str], expected: set[str] | None) -> None:
    """collect[] names what runs, exclude[] what does not; neither is everything."""
    names = scraper(Fake("a"), Fake("b")).select(collect, exclude)

    assert expected == names


@pytest.mark.parametrize(
    ("collect", "exclude", "message"),
    [
        (["a"], ["b"], "cannot be combined"),
        (["c"], [], "there is no collector 'c': there are a, b"),
        ([], ["c"], "there is no collector 'c'"),
        (["off"], [], "collector 'off' is disabled: start the exporter with --collector.off"),
    ],
)
def test_selection_refuses(collect: list[str], exclude: list[str], message: str) -> None:
    """Both parameters, an unknown and a disabled collector are errors with a reason."""
    subject = scraper(Fake("a"), Fake("b"), disabled={"off": "--collector.off"})

    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        subject.select(collect, exclude)


def test_selected_scrape_runs_and_reports_only_those() -> None:
    """A collector left out is neither run nor reported on."""
    left_out = Fake("b")
    subject = scraper(Fake("a"), left_out)

    got = values(subject.gather(subject.select(["a"], [])))

    assert {"test_value a": 1, "collector_success a": 1, "collector_available a": 1, "collector_series a": 1} == got
    assert 0 == left_out.calls


def test_close_closes_all_but_the_stuck(caplog: pytest.LogCaptureFixture) -> None:
    """Close takes no longer than its limit; a collector in the middle of a run is not closed under it."""
    gate = threading.Event()
    stuck, good = Fake("stuck", gate.wait), Fake("good")
    subject = scraper(stuck, good)
    subject.gather(["stuck"], timeout=0.05)

    subject.close(timeout=0.2)  # ends before the gate opens

    until(lambda: good.closed, "the other is closed, later on a busy machine")
    assert (False, False) == (stuck.closed, subject.ready)
    assert [] == subject.begin()
    gate.set()


def test_failing_source_of_own_metrics_costs_itself_only() -> None:
    """A source of self-metrics that raises leaves the rest of the scrape as it is."""

    def broken() -> Iterable[Sample]:
        raise RuntimeError("gone")

    subject = Scraper(
        [Fake("a")], own=[broken, lambda: self_metrics.build_info(Build("1", "abc123", "", "3.11", "linux/x86_64"))]
    )
    subject.start()

    names = {prometheus.name(sample.metric): sample for sample in subject.gather()}

    assert "abc123" == names["accel_exporter_build_info"].labels["revision"]
    assert "test_value" in names


def test_process_metrics_are_this_process() -> None:
    """process_* have the conventional names and plausible values of this very process."""
    got = {prometheus.name(sample.metric): float(str(sample.value)) for sample in self_metrics.process()}

    assert {
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_threads",
        "process_start_time_seconds",
    } == set(got)
    assert 1e6 < got["process_resident_memory_bytes"] < got["process_virtual_memory_bytes"]
    assert 0 < time.time() - got["process_start_time_seconds"] < 86_400
    assert 3 <= got["process_open_fds"] <= got["process_max_fds"]


def test_problems_of_a_working_collector_are_its_state() -> None:
    """A collector's problems are in its state, cut to a number; a method for them that fails is a problem too."""

    class Troubled(Fake):
        def problems(self) -> Iterable[str]:
            return (f"symbol {number} is not probed" for number in range(1000))

    class Broken(Fake):
        def problems(self) -> Iterable[str]:
            raise RuntimeError("gone")

    problems = {state.name: state.problems for state in scraper(Troubled("a"), Broken("b"), Fake("c")).states()}

    assert ("symbol 0 is not probed", 100) == (problems["a"][0], len(problems["a"]))
    assert ("the collector's problems are unknown: gone",) == problems["b"]
    assert () == problems["c"]


def test_states_during_a_reload() -> None:
    """A reload that removes a collector while the states are read costs none of the others theirs."""

    class Reloading(Fake):
        def problems(self) -> Iterable[str]:
            subject.replace([Fake("a")], {})
            return ()

    subject = scraper(Reloading("a"), Fake("b"))
    assert ["a", "b"] == [state.name for state in subject.states()]
    assert ["a"] == [state.name for state in subject.states()]


def test_follower_sees_every_gathering(caplog: pytest.LogCaptureFixture) -> None:
    """A follower gets what is scraped and what was requested; its failure costs no scrape a sample."""
    seen: list[tuple[int, object]] = []
    scraping = scraper(Fake("a"), Fake("b"))
    scraping.subscribe(lambda samples, names: seen.append((len(samples), names)))

    everything, part = scraping.gather(), scraping.gather(["a"])

    assert [(len(everything), None), (len(part), ["a"])] == seen
    scraping.subscribe(lambda samples, names: fail())
    assert len(everything) == len(scraping.gather())
    assert "could not be recorded for the page at /" in caplog.text


def test_two_scrapes_at_once_count_once() -> None:
    """Of two scrapes, the one that began first may be answered last: with the samples of the later run, not with older
    ones, which a page that adds up counters would take for a counter that began again.
    """
    one = scraper(Fake("a"))
    runs = []
    for _ in range(2):
        runs.append(one.begin())
        wait([run.done for run in runs[-1]], 10)
    assert [2, 2] == [values(one.finish(these))["test_value a"] for these in (runs[1], runs[0])]
    assert 3 == values(one.gather())["test_value a"]
