"""The last minutes of a few values: what is known of rates, where there are gaps, and that all of it is bounded."""

from __future__ import annotations

import threading
from collections.abc import Collection
from math import isnan, nan

import pytest

from exporter import history
from exporter.history import LEAST_STEP, LONGEST_STEP, MOST_OF_A_KIND, POINTS, CounterValue, History, ScrapeValues
from tests.support import PATIENCE


class Plotted:
    """A history that is plotted readings, at times of a clock that stands still between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 1000.0
        monkeypatch.setattr(history.time, "monotonic", lambda: self.clock)
        monkeypatch.setattr(history.time, "time", lambda: self.clock)
        self.reading = ScrapeValues()
        self.history = History(lambda _: self.reading, ("cuda",), ("calls",))

    def look(
        self, *, after: float = 10.0, watched: Collection[str] = (), busy: float | None = None, **counts: CounterValue
    ) -> None:
        """Counters of the kind calls by who they are of, and the gauge busy of the node."""
        self.clock += after
        gauges = {} if busy is None else {("busy", ""): busy}
        self.reading = ScrapeValues({("calls", of): count for of, count in counts.items()}, gauges, watched)
        self.history.add([], None)

    def plot(self, kind: str, of: str = "") -> list[float | None]:
        """The values of a plot, None for a gap."""
        points = self.history.recent().plots.get((kind, of), ())
        return [None if isnan(value) else pytest.approx(value) for _, value in points]

    def rates(self) -> dict[str, float]:
        return {of: rate for (_, of), rate in self.history.recent().rates.items()}


@pytest.fixture
def plotted(monkeypatch: pytest.MonkeyPatch) -> Plotted:
    return Plotted(monkeypatch)


def test_first_point_of_a_counter_is_unknown(plotted: Plotted) -> None:
    """A rate takes two looks; what was counted before the first is nobody's rate."""
    plotted.look(a=CounterValue(5000))
    assert {} == plotted.rates()
    plotted.look(a=CounterValue(5200))
    assert {"a": 20.0, "": 20.0} == plotted.rates()
    assert [None, 20.0] == plotted.plot("calls")
    assert 10.0 == plotted.history.recent().seconds


def test_what_starts_between_two_looks_is_known_from_its_start(plotted: Plotted) -> None:
    """A process that began since the last look has made all its calls since then; an older one that is new has not."""
    plotted.look(a=CounterValue(100))
    plotted.look(a=CounterValue(200), b=CounterValue(50, start=plotted.clock + 3))
    assert {"a": 10.0, "b": 5.0, "": 15.0} == plotted.rates()
    plotted.look(a=CounterValue(300), b=CounterValue(60, start=1013), c=CounterValue(999, start=1001))
    assert {"a": 10.0, "b": 1.0} == plotted.rates()


def test_a_new_series_had_counted_nothing(plotted: Plotted) -> None:
    """A process that began long ago and counts now for the first time: known where its collector worked before."""
    plotted.look(watched=["calls"])
    plotted.look(watched=["calls"], a=CounterValue(30, start=1001))
    assert {"a": 3.0, "": 3.0} == plotted.rates()
    plotted.look()
    plotted.look(watched=["calls"], a=CounterValue(60, start=1001))
    assert {} == plotted.rates()


def test_counter_that_fell_is_a_gap(plotted: Plotted) -> None:
    """A reset is no negative rate and no guess, of its series and of the node's sum; the next point is right again."""
    plotted.look(a=CounterValue(100), b=CounterValue(10))
    plotted.look(a=CounterValue(200), b=CounterValue(20))
    plotted.look(a=CounterValue(50), b=CounterValue(30))
    plotted.look(a=CounterValue(150), b=CounterValue(40))

    assert [None, 10.0, None, 10.0] == plotted.plot("calls", "a")
    assert [None, 1.0, 1.0, 1.0] == plotted.plot("calls", "b")
    assert [None, 11.0, None, 11.0] == plotted.plot("calls")


def test_counter_that_began_again_is_known(plotted: Plotted) -> None:
    """A counter with a later start than the last look counted all of its value since then, even if it is higher."""
    plotted.look(a=CounterValue(100))
    plotted.look(a=CounterValue(70, start=plotted.clock + 1))
    assert 7.0 == plotted.rates()["a"]
    plotted.look(a=CounterValue(300, start=plotted.clock + 1))
    assert 30.0 == plotted.rates()["a"]


def test_process_that_ended_takes_nothing_from_the_sum(plotted: Plotted) -> None:
    """The node's rate after a process has disappeared is that of the others, and never below 0."""
    plotted.look(a=CounterValue(1_000_000), b=CounterValue(10))
    plotted.look(b=CounterValue(20))
    assert {"b": 1.0, "": 1.0} == plotted.rates()


def test_missing_is_a_gap_and_nobody_is_none(plotted: Plotted) -> None:
    """The node's rate is 0 if the collector works and saw no process; it is unknown if the collector does not work."""
    plotted.look(watched=["calls"])
    plotted.look(watched=["calls"])
    plotted.look()
    plotted.look(watched=["calls"], busy=0.0)

    assert [None, 0.0, None, 0.0] == plotted.plot("calls")
    assert [None, None, None, 0.0] == plotted.plot("busy")


def test_long_silence_is_a_gap(plotted: Plotted) -> None:
    """After a minute without a look no line is drawn across it, and no rate is plotted over it."""
    plotted.look(a=CounterValue(100), busy=0.5)
    plotted.look(a=CounterValue(200), busy=0.5)
    plotted.look(after=LONGEST_STEP + 1, a=CounterValue(9000), busy=0.5)
    plotted.look(a=CounterValue(9100), busy=0.5)

    assert [None, 10.0, None, None, 10.0] == plotted.plot("calls", "a")
    assert [0.5, 0.5, None, 0.5, 0.5] == plotted.plot("busy")


def test_looks_in_quick_succession_are_one(plotted: Plotted) -> None:
    """However often is gathered, points are LEAST_STEP apart at least, and the rate goes on from the last of them."""
    plotted.look(a=CounterValue(0))
    for value in (1, 2, 3, 4):
        plotted.look(after=1, a=CounterValue(value))
    assert {} == plotted.rates()
    plotted.look(after=1, a=CounterValue(5))
    assert LEAST_STEP == plotted.history.recent().seconds
    assert 1.0 == plotted.rates()["a"]


def test_part_of_the_collectors_is_no_look(plotted: Plotted) -> None:
    """A scrape with collect[] that leaves out what is plotted makes no gap."""
    plotted.look(busy=0.5)
    plotted.clock += 10
    plotted.reading = ScrapeValues()
    plotted.history.add([], ["nvml"])
    assert [0.5] == plotted.plot("busy")
    plotted.history.add([], ["nvml", "cuda"])
    assert [0.5, None] == plotted.plot("busy")


def test_points_and_plots_are_bounded(plotted: Plotted) -> None:
    """There are POINTS points, of the last ten minutes, and of each kind MOST_OF_A_KIND plots and that of the node."""
    for at in range(2 * POINTS):
        plotted.look(after=LEAST_STEP, **{f"p{n}": CounterValue(at * (n + 1)) for n in range(100)})
    recent = plotted.history.recent()

    assert MOST_OF_A_KIND + 1 == len(recent.plots)
    assert {""} | {f"p{n}" for n in range(84, 100)} == {of for _, of in recent.plots}
    assert {POINTS} == {len(points) for points in recent.plots.values()}
    assert max(age for points in recent.plots.values() for age, _ in points) <= history.WINDOW
    assert 101 == len(recent.rates)


def test_plot_of_an_ended_process_makes_room(plotted: Plotted) -> None:
    """The plot of an ended process is dropped only to make room for a new process."""
    plotted.look(**{f"p{n}": CounterValue(0) for n in range(MOST_OF_A_KIND)})
    plotted.look(**{f"p{n}": CounterValue(1000 - n) for n in range(MOST_OF_A_KIND)})
    plotted.look(**{f"p{n}": CounterValue(1000) for n in range(1, MOST_OF_A_KIND)})
    assert [None, 100.0, None] == plotted.plot("calls", "p0")
    plotted.look(
        new=CounterValue(20, start=plotted.clock + 1), **{f"p{n}": CounterValue(1000) for n in range(1, MOST_OF_A_KIND)}
    )

    assert ([], [None, None, None, 2.0]) == (plotted.plot("calls", "p0"), plotted.plot("calls", "new"))
    for _ in range(POINTS):
        plotted.look(after=LEAST_STEP)
    assert {} == plotted.history.recent().plots


def test_collectors_run_only_when_nobody_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectors run after MOST_STEP seconds without a look, and never besides where a node is scraped."""
    monkeypatch.setattr(history, "FIRST_AFTER", 0.01)
    monkeypatch.setattr(history, "MOST_STEP", 0.1)
    gathered, enough = [], threading.Event()

    def gather(names: Collection[str]) -> None:
        gathered.append(frozenset(names))
        if len(gathered) == 3:
            enough.set()

    alone = History(lambda _: ScrapeValues(), ("cuda",), ())
    alone.start(gather)
    assert enough.wait(PATIENCE)
    alone.close()
    assert {frozenset({"cuda"})} == set(gathered)

    monkeypatch.setattr(history, "MOST_STEP", 60.0)
    scraped = History(lambda _: ScrapeValues(), ("cuda",), ())
    scraped.add([], None)
    besides: list[Collection[str]] = []
    scraped.start(besides.append)
    threading.Event().wait(0.2)
    scraped.close()
    assert [] == besides


def test_not_a_number_is_a_gap(plotted: Plotted) -> None:
    """A gauge that is not a number is not drawn."""
    plotted.look(busy=0.5)
    plotted.look(busy=nan)
    assert [0.5, None] == plotted.plot("busy")
