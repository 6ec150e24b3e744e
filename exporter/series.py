"""A limit on the series of a collector: what exceeds it is folded into one series for each of its own label sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exporter.model import PROCESS_LABELS, Distribution, Kind, Metric, Sample, Value
from exporter.options import Flag

FOLDED = Metric(
    "accel_exporter.series.folded",
    "Series beyond the collector's limit, folded into series labelled overflow=true without the labels of a process.",
    Kind.COUNTER,
    labels=("collector",),
)


def limit_flag(most: int) -> Flag:
    """The setting of a collector that has a limit."""
    help = "Series at most; what exceeds it is folded into series labelled overflow=true."
    return Flag("series-limit", most, help, 1, 1 << 24)


Key = tuple[Metric, frozenset[tuple[str, str]]]


@dataclass(slots=True)
class _Folded:
    last: Value
    into: Key


class SeriesLimit:
    """Keeps a collector to so many series. Which series are shown, and which are folded, stays so while they exist.

    A folded counter or histogram never falls: it keeps what its members counted, also after they have gone. A folded
    gauge is the sum of its members, a time of day the latest of them. One thread at a time.
    """

    def __init__(self, collector: str, most: int) -> None:
        self._collector, self._most = collector, most
        self._shown: set[Key] = set()
        self._folded: dict[Key, _Folded] = {}
        self._counted: dict[Key, Value] = {}
        self._ever = 0

    def apply(self, samples: Iterable[Sample]) -> list[Sample]:
        """The samples within the limit, then the folded ones, then how many were ever folded."""
        samples = list(samples)
        if len(samples) > self._most or self._ever:
            samples = self._fold(samples)
        return [*samples, FOLDED.sample(self._ever, {"collector": self._collector})]

    def _fold(self, samples: list[Sample]) -> list[Sample]:
        keyed = {_key(sample.metric, sample.labels): sample for sample in samples}
        self._shown &= keyed.keys()
        self._folded = {key: folded for key, folded in self._folded.items() if key in keyed}
        gauges: dict[Key, Value] = {}
        kept: list[Sample] = []
        for key, sample in keyed.items():
            if key not in self._folded and (key in self._shown or len(self._shown) < self._most):
                self._shown.add(key)
                kept.append(sample)
                continue
            folded = self._folded.get(key)
            if folded is None:
                self._ever += 1
                folded = self._folded[key] = _Folded(_zero(sample.value), _into(sample))
            if sample.metric.kind is Kind.GAUGE:
                known = gauges.get(folded.into)
                gauges[folded.into] = sample.value if known is None else _combine(sample.metric, known, sample.value)
            else:
                before = self._counted.get(folded.into, _zero(sample.value))
                self._counted[folded.into] = _plus(before, _minus(sample.value, folded.last))
                folded.last = sample.value
        folds = self._counted | gauges
        return kept + [Sample(metric, dict(labels), value) for (metric, labels), value in folds.items()]


def _key(metric: Metric, labels: Mapping[str, str]) -> Key:
    return metric, frozenset(labels.items())


def _into(sample: Sample) -> Key:
    own = {name: value for name, value in sample.labels.items() if name not in PROCESS_LABELS}
    return _key(sample.metric, own | {"overflow": "true"})


def _combine(metric: Metric, a: Value, b: Value) -> Value:
    assert not isinstance(a, Distribution) and not isinstance(b, Distribution)
    return max(a, b) if metric.name.endswith("timestamp") else a + b


def _zero(value: Value) -> Value:
    return Distribution(value.bounds, (0,) * len(value.counts), 0.0) if isinstance(value, Distribution) else 0


def _plus(a: Value, b: Value) -> Value:
    if isinstance(a, Distribution) and isinstance(b, Distribution):
        counts = tuple(x + y for x, y in zip(a.counts, b.counts, strict=True))
        return Distribution(a.bounds, counts, a.sum + b.sum)
    assert not isinstance(a, Distribution) and not isinstance(b, Distribution)
    return a + b


def _minus(a: Value, b: Value) -> Value:
    if isinstance(a, Distribution) and isinstance(b, Distribution):
        counts = tuple(x - y for x, y in zip(a.counts, b.counts, strict=True))
        return Distribution(a.bounds, counts, a.sum - b.sum)
    assert not isinstance(a, Distribution) and not isinstance(b, Distribution)
    return a - b
