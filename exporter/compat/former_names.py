"""The names that accel_node_* metrics had before they left node_exporter's prefix; they go with the next release."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from exporter.faults import metrics
from exporter.model import Metric, Sample
from exporter.stability import FORMER, TODAY
from exporter.views import prometheus


def _former(metric: Metric) -> Metric:
    help_text = f"Former name of {prometheus.name(metric)}. Deprecated; only with --collector.faults.former-names."
    return replace(metric, name=metric.name.replace(TODAY, FORMER, 1), help=help_text)


_FORMER = {
    metric.name: _former(metric)
    for metric in vars(metrics).values()
    if isinstance(metric, Metric) and metric.name.startswith(TODAY)
}
METRICS = tuple(_FORMER.values())


def with_former(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the samples, each that had another name followed by the same in that name."""
    for sample in samples:
        yield sample
        if former := _FORMER.get(sample.metric.name):
            yield replace(sample, metric=former)
