"""Rows of a custom probe's maps as samples of the metrics that its YAML file declares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporter.custom.decode import Decoder, number
from exporter.custom.definition import Buckets, MapReading
from exporter.custom.messages import RowsMessage, Shape
from exporter.custom.shapes import Fields
from exporter.model import Distribution, Sample

Series = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Map:
    key: Fields
    value: Fields
    rows: list[list[object]]


def samples(
    reading: MapReading, shapes: Mapping[str, Shape], rows: Mapping[str, RowsMessage], decoder: Decoder
) -> Iterator[Sample]:
    """Yield the metric's samples: one for each set of labels, of which rows are added up.

    Yields nothing where one of the metric's maps was not read.
    """
    if reading.map not in rows:
        return
    read = _map(reading.map, shapes, rows)
    if reading.histogram is None:
        for series, total in _totals(reading, read, reading.field, decoder).items():
            yield reading.metric.sample(_scaled(total, reading.scale), dict(series))
    elif reading.histogram.sum_map in rows:
        sums = _map(reading.histogram.sum_map, shapes, rows)
        yield from _distributions(reading, reading.histogram, read, sums, decoder)


def _distributions(
    reading: MapReading, histogram: Buckets, read: _Map, sums: _Map, decoder: Decoder
) -> Iterator[Sample]:
    """Yield histograms with all their buckets, for the label sets that have a sum too."""
    bounds = _bounds(histogram, reading.scale)
    counts: dict[Series, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
    for key, value in read.rows:
        slot = number(read.key, histogram.slot, key) - histogram.log2  # bpf_log2l() begins with 1
        series = frozenset(decoder.labels(reading.labels, read.key, key).items())
        counts[series][min(max(slot, 0), len(bounds))] += number(read.value, reading.field, value)
    totals = _totals(reading, sums, histogram.sum_field, decoder)
    for series, found in counts.items():
        if any(found) and series in totals:
            value = Distribution(bounds, tuple(found), float(totals[series] * reading.scale))
            yield reading.metric.sample(value, dict(series))


def _totals(reading: MapReading, read: _Map, field: str, decoder: Decoder) -> dict[Series, int]:
    totals: dict[Series, int] = defaultdict(int)
    for key, value in read.rows:
        series = frozenset(decoder.labels(reading.labels, read.key, key).items())
        totals[series] += number(read.value, field, value)
    return totals


def _bounds(histogram: Buckets, scale: float) -> tuple[float, ...]:
    """Return the inclusive upper bounds of the buckets.

    Slot i of a log2 histogram holds the whole numbers from 2^i to 2^(i+1) - 1.
    """
    if histogram.log2:
        return tuple(((1 << slot + 1) - 1) * scale for slot in range(histogram.buckets))
    return tuple((slot + 1) * histogram.width * scale for slot in range(histogram.buckets))


def _scaled(total: int, scale: float) -> int | float:
    return total if scale == 1 else total * scale


def _map(name: str, shapes: Mapping[str, Shape], rows: Mapping[str, RowsMessage]) -> _Map:
    return _Map(shapes[name].key, shapes[name].value, rows[name].rows)
