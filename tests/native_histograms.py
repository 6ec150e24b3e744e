"""Durations that a served exporter has counted, and what a Prometheus has to make of them, natively or not."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from exporter.durations import duration_slot, durations
from exporter.model import Distribution, Kind, Metric, Sample
from exporter.profile import Profile
from exporter.reduction import Reduction
from exporter.values import classic, merged
from tests.e2e.backend import Prometheus
from tests.standins.served import Fake, Served

WAITS = Metric("test.wait", "Waits.", Kind.HISTOGRAM, "s", labels=("n",))
LONG = Metric("test.long", "Waits, some of them of days.", Kind.HISTOGRAM, "s")
CONVENTIONAL = Metric("gen_ai.server.time_to_first_token", "With bounds of a convention.", Kind.HISTOGRAM, "s")
FLAG = "--enable-feature=native-histograms"
QUANTILES = (0.05, 0.25, 0.5, 0.9, 0.99)
SLOTS, FIRST = 38, -20
DAY_NS = 86_400 * 10**9
TIMES_NS = tuple(int(2_000 * 1.018**n) for n in range(997))
"""From 2 us to 105 s, evenly by their logarithm."""


def counted(times_ns: Sequence[int]) -> Distribution:
    """The histogram of these times as the kernel makes it."""
    slots = [0] * SLOTS
    for ns in times_ns:
        slots[duration_slot(ns, FIRST, SLOTS)] += 1
    return durations(slots, sum(times_ns), FIRST)


class Load:
    """Counts each time once more with every page, and so the share of each bucket is always the same.

    Histograms and rates are then those of TIMES_NS, whenever they are read.
    """

    def __init__(self) -> None:
        self.turns = 0
        self._reduction = Reduction(Profile.NODE)
        self._base = counted(TIMES_NS)

    def collect(self) -> list[Sample]:
        """The samples of one page, in the default profile."""
        self.turns += 1
        return self._reduction.apply(self._samples())

    def _samples(self) -> Iterator[Sample]:
        counts = tuple(self.turns * count for count in self._base.counts)
        value = Distribution(self._base.bounds, counts, self.turns * self._base.sum, shown=self._base.shown)
        yield WAITS.sample(value, {"n": "1"})
        yield LONG.sample(counted([1_000_000, DAY_NS, 3 * DAY_NS]))
        yield CONVENTIONAL.sample(Distribution((0.1, 0.25, 1.0), (1, 2, 3, 4), 9.5))


def served() -> Served:
    """A served exporter with that load."""
    return Served([Fake("load", Load().collect)])


def natively(prometheus: Prometheus, job: str) -> None:
    """Assert what native histograms hold: whole pages, all buckets, and quantiles in the bucket of the true one."""
    series = f'test_wait_seconds{{job="{job}"}}'
    count = prometheus.value(f"histogram_count({series})")
    assert count and 0 == count % len(TIMES_NS)
    assert math.isclose(
        sum(TIMES_NS) / 1e9 / len(TIMES_NS), prometheus.value(f"histogram_sum({series}) / histogram_count({series})")
    )
    bounds = counted(TIMES_NS).bounds
    for expr in (series, f"rate({series}[10s])"):
        for q in QUANTILES:
            _within(bounds, q, prometheus.value(f"histogram_quantile({q}, {expr})"))
        for bound in (2.0**-20, 2.0**-10, 0.25, 1.0, 64.0):
            share = sum(ns / 1e9 <= bound for ns in TIMES_NS) / len(TIMES_NS)
            found = prometheus.value(f"histogram_fraction(0, {bound}, {expr})")
            assert math.isclose(share, found, abs_tol=1e-9), (expr, bound, share, found)
    above = prometheus.value(f'histogram_fraction({2.0**16}, +Inf, test_long_seconds{{job="{job}"}})')
    assert math.isclose(2 / 3, above), "days are above all bounds"


def classically(prometheus: Prometheus, job: str) -> None:
    """Assert what classic ones hold: eight buckets at most, exact counts, quantiles in the bucket of the true one."""
    few = classic(merged(counted(TIMES_NS), 8))
    buckets = prometheus.query(f'test_wait_seconds_bucket{{job="{job}"}}')
    stored = {float(dict(labels)["le"]): count for labels, count in buckets.items()}
    assert {*few.bounds, math.inf} == stored.keys() and len(stored) <= 8
    for bound, count in stored.items():
        share = sum(ns / 1e9 <= bound for ns in TIMES_NS)
        assert share * stored[math.inf] == count * len(TIMES_NS), bound
    for expr in (f'test_wait_seconds_bucket{{job="{job}"}}', f'rate(test_wait_seconds_bucket{{job="{job}"}}[10s])'):
        for q in QUANTILES:
            _within(few.bounds, q, prometheus.value(f"histogram_quantile({q}, {expr})"))
    of_count = prometheus.value(f'test_wait_seconds_count{{job="{job}"}} % {len(TIMES_NS)}')
    assert 0 == of_count


def of_convention(prometheus: Prometheus, job: str) -> None:
    """Assert that a histogram with other bounds has its classic buckets, also where native ones are stored."""
    found = prometheus.query(f'gen_ai_server_time_to_first_token_seconds_bucket{{job="{job}"}}')
    assert {0.1: 1, 0.25: 3, 1.0: 6, math.inf: 10} == {float(dict(it)["le"]): count for it, count in found.items()}


def _within(bounds: Sequence[float], q: float, found: float) -> None:
    """Assert that a quantile is in the bucket of the true one; above the last bound Prometheus gives that bound."""
    true = sorted(TIMES_NS)[math.ceil(q * len(TIMES_NS)) - 1] / 1e9
    at = bisect_left(bounds, true)
    lower, upper = (0.0, *bounds)[at], (*bounds, bounds[-1])[at]
    slack = 1e-6
    assert lower * (1 - slack) <= found <= upper * (1 + slack), (q, lower, true, found, upper)
