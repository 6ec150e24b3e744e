"""Points of histograms in the form of the OpenTelemetry SDK: with explicit buckets, or with exponential ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from opentelemetry.sdk.metrics import Exemplar as OtlpExemplar
from opentelemetry.sdk.metrics.export import Buckets, ExponentialHistogramDataPoint, HistogramDataPoint

from exporter.exponential import Exponential
from exporter.model import Distribution, Exemplar

_UNKNOWN = cast(float, None)
"""The extremes of histograms are not known from buckets. The encoder leaves out what is None."""

Attributes = Mapping[str, str | int | float | bool]


def explicit(value: Distribution, labels: Attributes, start: int, now: int) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=start,
        time_unix_nano=now,
        count=sum(value.counts),
        sum=value.sum,
        bucket_counts=value.counts,
        explicit_bounds=value.bounds,
        min=_UNKNOWN,
        max=_UNKNOWN,
        exemplars=[_exemplar(exemplar) for exemplar in value.exemplars.values()],
    )


def exponential(
    value: Distribution, made: Exponential, labels: Attributes, start: int, now: int
) -> ExponentialHistogramDataPoint:
    """Return the point: OpenTelemetry's bucket i ends where Prometheus' bucket i + 1 does."""
    return ExponentialHistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=start,
        time_unix_nano=now,
        count=sum(value.counts),
        sum=value.sum,
        scale=made.schema,
        zero_count=made.zero,
        positive=Buckets(made.first - 1, made.counts),
        negative=Buckets(0, ()),
        flags=0,
        min=_UNKNOWN,
        max=_UNKNOWN,
        exemplars=[_exemplar(exemplar) for exemplar in value.exemplars.values()],
    )


def _exemplar(exemplar: Exemplar) -> OtlpExemplar:
    return OtlpExemplar(
        filtered_attributes={},
        value=float(exemplar.value),
        time_unix_nano=int(exemplar.time * 1e9),
        span_id=int(exemplar.span_id, 16),
        trace_id=int(exemplar.trace_id, 16),
    )
