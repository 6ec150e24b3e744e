"""The limit on a collector's series."""

from __future__ import annotations

from exporter.model import Distribution, Kind, Metric, Sample, Value
from exporter.series import FOLDED, SeriesLimit

CALLS = Metric("calls", "", Kind.COUNTER, labels=("api",), process=True)
USED = Metric("used", "", Kind.GAUGE, process=True)
LAST = Metric("last.timestamp", "", Kind.GAUGE, "s", process=True)
WAITED = Metric("waited", "", Kind.HISTOGRAM, "s", process=True)


def calls(**by_pid: int) -> list[Sample]:
    return [CALLS.sample(value, {"pid": pid.removeprefix("p"), "api": "x"}) for pid, value in by_pid.items()]


def shown(samples: list[Sample]) -> dict[tuple[str, str], Value]:
    """Values by metric and pid, "+" for what was folded."""
    return {
        (sample.metric.name, "+" if "overflow" in sample.labels else sample.labels.get("pid", "")): sample.value
        for sample in samples
        if sample.metric is not FOLDED
    }


def folded(samples: list[Sample]) -> Value:
    [sample] = [sample for sample in samples if sample.metric is FOLDED]
    assert {"collector": "test"} == sample.labels
    return sample.value


def test_within_the_limit_nothing_changes() -> None:
    """Up to the limit every series is shown as it is."""
    limit = SeriesLimit("test", 2)
    samples = calls(p1=5, p2=6)
    assert samples == limit.apply(samples)[:2]
    assert 0 == folded(limit.apply(samples))


def test_what_exceeds_it_is_one_series_without_the_process() -> None:
    """The others are added up under overflow=true with the metric's own labels, and counted."""
    result = SeriesLimit("test", 2).apply(calls(p1=1, p2=2, p3=3, p4=4))
    assert {("calls", "1"): 1, ("calls", "2"): 2, ("calls", "+"): 7} == shown(result)
    [overflow] = [sample for sample in result if "overflow" in sample.labels]
    assert {"api": "x", "overflow": "true"} == overflow.labels
    assert 2 == folded(result)


def test_a_folded_counter_never_falls() -> None:
    """When its members go, what they counted stays; new members are added, and shown series stay shown."""
    limit = SeriesLimit("test", 1)
    assert 5 == shown(limit.apply(calls(p1=1, p2=5)))["calls", "+"]
    assert 8 == shown(limit.apply(calls(p2=8, p1=1)))["calls", "+"]
    assert {("calls", "1"): 1, ("calls", "+"): 8} == shown(limit.apply(calls(p1=1)))
    assert 10 == shown(limit.apply(calls(p1=1, p3=2)))["calls", "+"]


def test_a_freed_place_goes_to_a_new_series() -> None:
    """A folded series is not shown later, for its value would count twice; a new one takes the place."""
    limit = SeriesLimit("test", 1)
    limit.apply(calls(p1=1, p2=2))
    assert {("calls", "3"): 3, ("calls", "+"): 2} == shown(limit.apply(calls(p2=2, p3=3)))


def test_gauges_are_of_now() -> None:
    """Folded gauges add up as they are now, and of times the latest is told."""
    limit = SeriesLimit("test", 1)
    samples = [*calls(p1=1)]
    for pid, used, last in (("2", 10, 100.0), ("3", 20, 90.0)):
        samples += [USED.sample(used, {"pid": pid}), LAST.sample(last, {"pid": pid})]
    found = shown(limit.apply(samples))
    assert (30, 100.0) == (found["used", "+"], found["last.timestamp", "+"])
    assert ("used", "+") not in shown(limit.apply(calls(p1=1)))


def test_histograms_are_added_up() -> None:
    """Counts and sums of folded histograms add up bucket by bucket, and never fall."""
    limit = SeriesLimit("test", 1)
    samples = [*calls(p1=1), *(WAITED.sample(Distribution((1.0,), (1, n), 2.0), {"pid": str(n)}) for n in (2, 3))]
    assert Distribution((1.0,), (2, 5), 4.0) == shown(limit.apply(samples))["waited", "+"]
    assert Distribution((1.0,), (2, 5), 4.0) == shown(limit.apply(calls(p1=1)))["waited", "+"]
