"""Counters of the exporter's own losses."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from exporter.model import Metric, Sample


class Tally:
    """A counter metric with one label. Safe from any thread.

    The expected values of the label start at 0, so that a first event is an increase and not a new series.
    """

    def __init__(self, metric: Metric, values: Iterable[str]) -> None:
        self._metric = metric
        self._counts = dict.fromkeys(values, 0)
        self._lock = threading.Lock()

    def add(self, value: str, count: int = 1) -> None:
        with self._lock:
            self._counts[value] = self._counts.get(value, 0) + count

    def __getitem__(self, value: str) -> int:
        return self._counts[value]

    def samples(self) -> list[Sample]:
        [label] = self._metric.labels
        with self._lock:
            return [self._metric.sample(count, {label: value}) for value, count in self._counts.items()]
