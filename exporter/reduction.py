"""Reduces samples to a profile: what a profile leaves out is added up exactly, from page to page."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from exporter import values
from exporter.members import RETENTION, Members
from exporter.model import Distribution, Exemplar, Kind, Labels, Metric, Sample, Value
from exporter.moves import Move
from exporter.profile import (
    BUCKETS,
    CONVENTIONAL,
    MEANS,
    MOST_SINGLY,
    RAS,
    Profile,
    ProfileRule,
    communicators_left_out,
    rule_of,
)

MOST_RULES = 4096
"""Rules that a reduction remembers; there are some 700 metrics."""


@dataclass(slots=True)
class _Sum:
    """A series to which others are added up. `counted` is unused for a gauge."""

    metric: Metric
    labels: Labels
    counted: Value
    start: float | None
    present: bool = True
    """True if a member is on this page."""
    until: float = 0.0
    """Time at which the sum vanishes unless it has members then, in seconds of the reduction's clock."""
    shown: Value | None = None
    """Value on the page before; None if it was not there."""
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    """The newest of the members on this page, by bucket."""

    def value(self) -> Value:
        """Return what was counted, with the exemplars."""
        if self.exemplars and isinstance(self.counted, Distribution):
            return replace(self.counted, exemplars=self.exemplars)
        return self.counted

    def sample(self) -> Sample:
        """Return the series."""
        return Sample(self.metric, self.labels, self.value(), self.start)

    def less(self, again: Value) -> None:
        """Subtract counts that another sum has too. The value never falls below the shown one, despite rounding."""
        self.counted = values.minus(self.counted, again)
        if self.shown is not None:
            self.counted = values.most(self.counted, self.shown)

    def add(self, value: Value, rise: Value | None) -> None:
        """Add what a member on this page has counted since, and take its exemplars, the newest of each bucket."""
        if rise is not None:
            counted = values.plus(self.counted, rise)
            if not values.alike(self.counted, counted):  # of fewer buckets from now on
                self.exemplars = {}
            self.counted = counted
        if isinstance(value, Distribution) and value.exemplars and values.alike(self.counted, value):
            both = sorted((*self.exemplars.items(), *value.exemplars.items()), key=lambda pair: pair[1].time)
            self.exemplars = dict(both)


class Reduction:
    """Reduces the samples of one page after the other to a profile. One thread at a time.

    Counters and histograms that are added up keep the counts of members that vanish, and vanish with the last member;
    a member that returns within minutes goes on where it was. Of gauges it is the sum, or the largest of times, ratios,
    temperatures and infos.
    """

    def __init__(self, profile: Profile, now: Callable[[], float] = time.monotonic) -> None:
        self._profile, self._now = profile, now
        self._sums: dict[str, _Sum] = {}
        self.rules: dict[int, tuple[Metric, ProfileRule]] = {}
        self._members = Members(now)

    def apply(self, samples: Iterable[Sample]) -> list[Sample]:
        """Return the samples of the profile."""
        samples = list(samples)  # first: what makes them may retire processes
        if self._profile is Profile.DEBUG:
            return [self._coarse(it) if isinstance(it.value, Distribution) else it for it in samples]
        kept: list[Sample] = []
        bounded: list[Sample] = []
        shortened: set[str] = set()
        gauges: dict[str, Sample] = {}
        self._members.begin()
        for one in self._sums.values():
            one.present, one.exemplars = False, {}
        metric: Metric | None = None
        left_out: frozenset[str] | None = None
        for sample in samples:
            if sample.metric is not metric:  # those of one metric mostly come one after the other
                metric = sample.metric
                rule = self._rule(metric)
                of_ras = metric.name.startswith(RAS)
            if of_ras:
                left_out = communicators_left_out(samples) if left_out is None else left_out
                if sample.labels.get("comm_hash") in left_out:
                    continue
            if rule.joined and not rule.without:
                sample = self._short(sample, rule, shortened)
            if rule.singly and rule.singly(sample):
                (bounded if sample.metric.name in MOST_SINGLY else kept).append(sample)
            elif rule.shown and not rule.without:
                kept.append(self._coarse(sample) if isinstance(sample.value, Distribution) else sample)
            elif rule.shown and sample.metric.kind is Kind.GAUGE:
                _combine(sample, rule.without, gauges)
            elif rule.shown:
                self._add(sample, rule.without)
        for into, again in self._members.end(self._may_move):
            self._sums[into].less(again)
        for into in self._members.held():
            self._sums[into].present = True
        return [*kept, *gauges.values(), *self._counted(), *_first(bounded)]

    def retire(self, samples: Iterable[Sample], seconds: float) -> Iterator[Sample]:
        """Yield the counters and histograms of a process that is shown no more, those that have series of their own.

        Counts that are part of a sum over processes stay in the sum, which is shown for at least `seconds`. A sum with
        a pid covers only this process and ends with it: the next program with the pid counts from 0.
        """
        shortened: set[str] = set()
        own: dict[str, _Sum] = {}
        for sample in samples:
            rule = self._rule(sample.metric) if self._profile < Profile.DEBUG else None
            if sample.metric.kind is Kind.GAUGE or (rule and not rule.shown):
                continue
            if rule and rule.without and not (rule.singly and rule.singly(sample)):
                one, into = self._sum(sample, rule.without)
                rise, others = self._members.take(values.key(sample.metric, sample.labels), sample)
                one.counted = values.plus(one.counted, rise)
                for key in (into, *others):
                    self._sums[key].until = self._now() + seconds
                    if self._sums[key].labels.get("pid"):
                        own[key] = self._sums[key]
            else:
                yield self._coarse(self._short(sample, rule, shortened) if rule and rule.joined else sample)
        for key, one in own.items():
            if not self._members.has(key):
                del self._sums[key]
                yield self._coarse(one.sample())

    def move(self, moves: Iterable[Move], samples: Collection[Sample]) -> Iterator[tuple[Move, tuple[str, ...]]]:
        """Apply the moves of series that are part of sums. Yield the other moves with the keys that each may have here.

        A sum over processes keeps the counts of a series that moved, and is shown for at least RETENTION. A sum with a
        pid loses these counts. `samples` are those of the next page.
        """
        page = cache(lambda: {values.key(it.metric, it.labels): it for it in samples})
        for move in moves:
            rule = self._rule(move.metric) if self._profile < Profile.DEBUG else None
            if move.series is None:
                self._members.end_of(move.into)
                yield move, ()
                continue
            labels = move.series.labels
            key = values.key(move.metric, labels)
            if rule is None or not rule.without:
                joined = rule.joined if rule else frozenset[str]()
                short = {name: text for name, text in labels.items() if name not in joined}
                yield move, (key, values.key(move.metric, short)) if joined else (key,)
            elif _left(labels, rule.without).get("pid"):
                yield from self._leave(key, move, page)
            else:
                for into in self._members.move(key, move.series, move.into, page):
                    self._sums[into].until = self._now() + RETENTION

    def _leave(
        self, key: str, move: Move, page: Callable[[], Mapping[str, Sample]]
    ) -> Iterator[tuple[Move, tuple[str, ...]]]:
        """Subtract the counts of a series from its sums. Yield the sums that have ended with it."""
        for into, counted in self._members.leave(key, move.series, page) if move.series else ():
            one = self._sums[into]
            whole = one.sample()
            one.counted = values.minus(one.counted, counted)
            if not self._members.has(into):
                del self._sums[into]
                yield Move(move.metric, whole, move.into), (into,)

    def _may_move(self, before: str, into: str) -> bool:
        """Return whether the counts of a sum without members move to another sum.

        They move to a new sum, so that no reader sees it rise by them, and only if the sum has the pid.
        """
        ends = not self._sums[before].present and self._sums[before].until <= self._now()
        return ends and self._sums[into].shown is None and "pid" in self._sums[into].labels

    def _counted(self) -> Iterator[Sample]:
        now = self._now()
        for key, one in list(self._sums.items()):
            one.shown = one.counted if one.present or one.until > now else None
            if one.shown is not None:
                yield self._coarse(one.sample())
            elif not self._members.has(key):
                del self._sums[key]

    @staticmethod
    def _short(sample: Sample, rule: ProfileRule, seen: set[str]) -> Sample:
        """Return the sample without labels that are joined, unless another one of the page is the same without them."""
        if not sample.labels.get("pid") or rule.joined.isdisjoint(sample.labels):
            return sample
        labels = {name: text for name, text in sample.labels.items() if name not in rule.joined}
        key = values.key(sample.metric, labels)
        if key in seen:
            return sample
        seen.add(key)
        return Sample(sample.metric, labels, sample.value, sample.start)

    def _rule(self, metric: Metric) -> ProfileRule:
        """Return the rule of a metric, by its identity, as its hash would take the time of all its texts."""
        known = self.rules.get(id(metric))
        if known is None or known[0] is not metric:
            if len(self.rules) >= MOST_RULES:  # metrics that other exporters and custom probes bring may be ever new
                self.rules.clear()
            known = self.rules[id(metric)] = metric, rule_of(metric, self._profile)
        return known[1]

    def _sum(self, sample: Sample, without: frozenset[str]) -> tuple[_Sum, str]:
        """Return the sum that a counter or histogram is part of, and its key."""
        labels = _left(sample.labels, without)
        into = values.key(sample.metric, labels)
        one = self._sums.get(into)
        if one is None:
            one = self._sums[into] = _Sum(sample.metric, labels, values.zero(sample.value), sample.start)
        if sample.start is not None and (one.start is None or sample.start < one.start):
            one.start = sample.start
        return one, into

    def _add(self, sample: Sample, without: frozenset[str]) -> None:
        one, into = self._sum(sample, without)
        one.present = True
        key = values.key(sample.metric, sample.labels)
        if key in self._members.moved:
            sample = self._members.rest(key, sample)
        rise = self._members.add(key, into, sample)
        one.add(sample.value, rise)

    def _coarse(self, sample: Sample) -> Sample:
        if not isinstance(sample.value, Distribution):
            return sample
        if self._profile is Profile.NODE and sample.metric.name.startswith(CONVENTIONAL):
            return sample
        if self._profile is Profile.DEBUG and sample.value.shown is None:
            return sample
        mean = self._profile < Profile.DEBUG and sample.metric.name in MEANS
        few = values.merged(sample.value, 2 if mean else BUCKETS[self._profile])
        return Sample(sample.metric, sample.labels, few, sample.start)


def _left(labels: Labels, without: frozenset[str]) -> Labels:
    return {name: text for name, text in labels.items() if text and name not in without}


def _combine(sample: Sample, without: frozenset[str], gauges: dict[str, Sample]) -> None:
    """Add a gauge to those of the page that differ from it in labels only which the profile leaves out."""
    labels = _left(sample.labels, without)
    into = values.key(sample.metric, labels)
    value = values.combine(sample.metric, gauges[into].value, sample.value) if into in gauges else sample.value
    gauges[into] = Sample(sample.metric, labels, value)


def _first(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield as many samples of each metric as MOST_SINGLY allows: the largest, and of equal ones always the same."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.metric.name, []).append(sample)
    for name, own in found.items():
        order = sorted(own, key=lambda sample: (-values.count(sample.value), values.key(sample.metric, sample.labels)))
        yield from order[: MOST_SINGLY[name]]
