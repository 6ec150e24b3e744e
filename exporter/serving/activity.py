"""The counts of one server process: its requests by model and route, as they end."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from exporter.durations import duration_bounds, shown
from exporter.model import Distribution, Labels, Metric, Value
from exporter.serving import metrics
from exporter.serving.answer import Answer

MOST_MODELS = 16
"""Names of models of one process; a client can invent names, and some servers return them."""
OTHER = "other"
DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Bounds of the semantic conventions for generative AI (docs/gen-ai/gen-ai-metrics.md)."""
_NOT_SHOWN: Mapping[tuple[float, ...], tuple[float, ...]] = {
    DURATION: (0.01, 0.02, 0.04),
    FIRST_TOKEN: (0.001, 0.005, 0.06, 0.75, 7.5),
    PER_TOKEN: (0.3, 0.75),
}
"""Bounds that no classic bucket has, because each bucket is a series; 12 buckets remain."""
QUEUE = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
GAP_FIRST = -12
"""GAP_FIRST of bpf/serving/serving.h."""


class Histogram:
    """Observed values in buckets with these upper bounds, in the metric's unit."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add counts by bucket, and the sum of the observed values."""
        self.counts = [known + more for known, more in zip(self.counts, counts, strict=True)]
        self.sum += total

    def distribution(self) -> Distribution:
        return Distribution(self.bounds, tuple(self.counts), self.sum, shown=_shown(self.bounds))


@cache
def _shown(bounds: tuple[float, ...]) -> tuple[int, ...] | None:
    """Return the bounds that classic buckets have (Distribution.shown)."""
    if bounds not in _NOT_SHOWN:
        return shown(bounds)
    return tuple(at for at, bound in enumerate(bounds) if bound not in _NOT_SHOWN[bounds])


def gap_bounds(slots: int) -> tuple[float, ...]:
    """Return the bounds of the kernel's histogram of gaps, in seconds."""
    return duration_bounds(slots, GAP_FIRST)


@dataclass(slots=True)
class _Requests:
    """The requests of one model and route."""

    statuses: Counter[str] = field(default_factory=Counter)
    aborted: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    totals: Counter[Metric] = field(default_factory=Counter)
    histograms: dict[Metric, Histogram] = field(default_factory=dict)

    def observe(self, metric: Metric, bounds: Sequence[float], seconds: float | None) -> None:
        if seconds is not None:
            self.histogram(metric, bounds).observe(seconds)

    def histogram(self, metric: Metric, bounds: Sequence[float]) -> Histogram:
        return self.histograms.setdefault(metric, Histogram(bounds))

    def absorb(self, late: _Requests) -> None:
        self.statuses.update(late.statuses)
        self.aborted.update(late.aborted)
        self.tokens.update(late.tokens)
        self.totals.update(late.totals)
        for metric, it in late.histograms.items():
            self.histogram(metric, it.bounds).add(it.counts, it.sum)


class Activity:
    """The requests of one process (exporter.ledger.Activity). One thread at a time."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.other = 0
        self._models: set[str] = set()
        self._requests: dict[tuple[str, str], _Requests] = {}

    def add(self, answer: Answer) -> None:
        """Count a request that has ended."""
        if not answer.inference:
            self.other += 1
            return
        requests = self._requests.setdefault((self._model(answer.model), answer.route), _Requests())
        requests.statuses[answer.status] += 1
        if answer.aborted:
            requests.aborted[answer.aborted] += 1
        requests.tokens.update({name: count for name, count in answer.tokens.items() if count is not None})
        requests.totals[metrics.REQUEST_BYTES] += answer.request_bytes
        requests.totals[metrics.RESPONSE_BYTES] += answer.response_bytes
        if answer.abandoned:
            requests.totals[metrics.ABANDONED] += 1
        if answer.stream_error:
            requests.totals[metrics.STREAM_ERRORS] += 1
        requests.observe(metrics.REQUEST_DURATION, DURATION, answer.duration)
        requests.observe(metrics.TIME_TO_FIRST_TOKEN, FIRST_TOKEN, answer.time_to_first_token)
        requests.observe(metrics.TIME_PER_OUTPUT_TOKEN, PER_TOKEN, answer.time_per_output_token)
        requests.observe(metrics.SOCKET_QUEUE, QUEUE, answer.queue)
        if any(answer.gaps):
            requests.histogram(metrics.EVENT_GAP, gap_bounds(len(answer.gaps))).add(answer.gaps, answer.gap_seconds)

    def ended(self) -> None:
        """Do nothing: counts outlive their process."""

    def absorb(self, late: Activity) -> None:
        """Add counts from after this activity was read."""
        self.other += late.other
        for (model, route), requests in late._requests.items():
            self._requests.setdefault((self._model(model), route), _Requests()).absorb(requests)

    def values(self) -> Iterator[tuple[Metric, Value, Labels]]:
        """Yield each metric's values with their own labels."""
        if self.other:
            yield metrics.OTHER_REQUESTS, self.other, {}
        for (model, route), requests in list(self._requests.items()):
            labels = {"model": model, "route": route, "engine": self.engine}
            for metric, name, counts in (
                (metrics.REQUESTS, "status", requests.statuses),
                (metrics.ABORTED, "reason", requests.aborted),
                (metrics.TOKENS, "type", requests.tokens),
            ):
                yield from ((metric, count, {**labels, name: value}) for value, count in list(counts.items()))
            yield from ((metric, count, labels) for metric, count in list(requests.totals.items()))
            yield from ((metric, it.distribution(), labels) for metric, it in list(requests.histograms.items()))

    def _model(self, name: str) -> str:
        """Return the name if it is one of the first of this process."""
        if not name or name in self._models:
            return name
        if len(self._models) >= MOST_MODELS:
            return OTHER
        self._models.add(name)
        return name
