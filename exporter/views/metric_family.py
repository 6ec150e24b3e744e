"""Samples as a Prometheus page in Protocol Buffers: io.prometheus.client.MetricFamily, each after its length.

The field numbers are those of prompb/io/prometheus/client/metrics.proto in Prometheus' repository. Names, labels and
values are those of the text formats; besides there are native histograms, and when series began. Imported when somebody
takes this format. Why it is our own code: docs/decisions/0002-exposition.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import accumulate
from operator import getitem
from struct import Struct

from exporter import values
from exporter.exponential import Exponential, exponential
from exporter.model import Distribution, Exemplar, Kind, Metric, Sample
from exporter.views import prometheus

_TYPES = {Kind.COUNTER: 0, Kind.GAUGE: 1, Kind.HISTOGRAM: 4}
_DOUBLE = Struct("<Bd")
_SURROGATE = re.compile("[\ud800-\udfff]")


class FamilyWriter:
    """Writes families one after the other, as the writer of the text formats does."""

    def __init__(self) -> None:
        self._pairs: dict[str, _Pairs] = {}
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._bounds: dict[tuple[float, ...], list[bytes]] = {}
        self._chunks: list[bytes] = []

    def labels(self, labels: Mapping[str, str]) -> bytes:
        """Return the labels (Metric.label) in order of their names, without the empty ones."""
        names = tuple(labels)
        shape = self._shapes.get(names)
        if shape is None:
            shape = self._shapes[names] = _Shape(names, self._pairs)
        values = shape.values(labels)
        if "" in values:
            return self.labels({name: value for name, value in labels.items() if value})
        return b"".join(map(getitem, shape.pairs, values))

    def family(self, name: str, metric: Metric, series: Mapping[bytes, Sample]) -> int:
        """Write a family, if it has a series of valid form. Returns how many have none."""
        parts: list[bytes] = []
        for labels, sample in series.items():
            try:
                body = labels + self._value(metric.kind, sample)
            except (ArithmeticError, LookupError, TypeError, ValueError):
                continue
            parts += b"\x22", _varint(len(body)), body
        if parts:
            head = _text(1, prometheus.name(metric)) + _text(2, metric.help) + b"\x18" + _varint(_TYPES[metric.kind])
            suffix = prometheus.unit(metric)
            unit = _text(5, suffix) if name.endswith(f"_{suffix}") else b""
            size = sum(map(len, parts)) + len(head) + len(unit)
            self._chunks += _varint(size) + head, *_joined(parts), unit
        return len(series) - len(parts) // 3

    def chunks(self) -> list[bytes]:
        """Return what was written, complete."""
        return self._chunks

    def _value(self, kind: Kind, sample: Sample) -> bytes:
        if kind is Kind.GAUGE:
            return b"\x12\x09" + _double(1, sample.value)
        if kind is Kind.COUNTER:
            return _data(3, _double(1, sample.value) + _began(3, sample.start))
        if not isinstance(sample.value, Distribution):
            raise TypeError(f"{sample.metric.name} is a histogram, its value is {sample.value!r}")
        return _data(7, self._histogram(sample.metric, sample.value) + _began(15, sample.start))

    def _histogram(self, metric: Metric, value: Distribution) -> bytes:
        few = values.classic(value)
        cumulated = list(accumulate(few.counts))
        ends = [b""] * len(cumulated)
        for index, exemplar in few.exemplars.items():
            ends[index] = _data(3, self._exemplar(exemplar))
        parts = [_number(1, cumulated[-1]), _double(2, value.sum)]
        for count, bound, end in zip(cumulated, self._upper(few.bounds), ends, strict=True):
            parts.append(_data(3, _number(1, count) + bound + end))
        if not metric.classic and (native := exponential(value)):
            parts.append(_native(native))
        return b"".join(parts)

    def _upper(self, bounds: tuple[float, ...]) -> list[bytes]:
        known = self._bounds.get(bounds)
        if known is None:
            known = self._bounds[bounds] = [_double(2, float(bound)) for bound in (*bounds, float("inf"))]
        return known

    def _exemplar(self, exemplar: Exemplar) -> bytes:
        ids = self.labels({"trace_id": exemplar.trace_id, "span_id": exemplar.span_id})
        return ids + _double(2, exemplar.value) + _began(3, exemplar.time)


def _native(value: Exponential) -> bytes:
    """Return the fields of a native histogram: spans of buckets, and each count as a difference to the one before."""
    counts = list(value.counts)
    spans = [_span(value.first, len(counts))]
    if value.over:
        spans.append(_span(value.infinite - value.first - len(counts), 1))
        counts.append(value.over)
    deltas = b"".join(_varint(_zigzag(count - before)) for before, count in zip([0, *counts], counts, strict=False))
    head = b"\x28" + _varint(_zigzag(value.schema)) + _double(6, value.threshold) + _number(7, value.zero)
    return head + b"".join(spans) + _data(13, deltas)


def _span(offset: int, length: int) -> bytes:
    return _data(12, b"\x08" + _varint(_zigzag(offset)) + b"\x10" + _varint(length))


class _Shape:
    """A set of label names: how to fetch their values in order, and the encoded pairs of each name by value."""

    def __init__(self, names: tuple[str, ...], pairs: dict[str, _Pairs]) -> None:
        ordered, self.values = values.ordered(names)
        self.pairs = [pairs.setdefault(name, _Pairs(prometheus.label(name))) for name in ordered]


class _Pairs(dict[str, bytes]):
    """The pairs of a label's name and its values, each encoded once a page."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = _text(1, name)

    def __missing__(self, value: str) -> bytes:
        made = self[value] = _data(1, self._name + _text(2, _SURROGATE.sub("\ufffd", value)))
        return made


def _joined(parts: list[bytes]) -> Iterable[bytes]:
    """Yield chunks of so many series as those of text have; a series is three parts."""
    step = 3 * prometheus.LINES_IN_A_CHUNK
    for at in range(0, len(parts), step):
        yield b"".join(parts[at : at + step])


def _varint(value: int) -> bytes:
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} is no count of 64 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _number(field: int, value: int) -> bytes:
    return bytes((field << 3,)) + _varint(value)


def _double(field: int, value: object) -> bytes:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return _DOUBLE.pack(field << 3 | 1, float(value))


def _data(field: int, part: bytes) -> bytes:
    """Return a message or packed numbers; a field above 15 takes two bytes before its length."""
    return _varint(field << 3 | 2) + _varint(len(part)) + part


def _text(field: int, text: str) -> bytes:
    return _data(field, text.encode("utf-8", "replace"))


def _began(field: int, seconds: float | None) -> bytes:
    """Return a wall time as a Timestamp; nothing for None."""
    if seconds is None:
        return b""
    whole = int(seconds)
    return _data(field, _number(1, whole) + _number(2, int((seconds - whole) * 1e9)))
