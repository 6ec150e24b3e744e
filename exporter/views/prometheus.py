"""Samples as a Prometheus page: text format 0.0.4 and OpenMetrics 1.0.0; exporter/views/metric_family.py has Protocol
Buffers. Pure functions; the names derive from Metric.

Own code rather than prometheus_client: see docs/decisions/0002-exposition.md for the measurement.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Any, Protocol

from exporter import values
from exporter.model import Distribution, Exemplar, Kind, Metric, Sample, Value

LINES_IN_A_CHUNK = 500

_UNITS = {
    "s": "seconds",
    "By": "bytes",
    "Cel": "celsius",
    "W": "watts",
    "J": "joules",
    "Hz": "hertz",
    "V": "volts",
    "A": "amperes",
    "%": "percent",
}
_GZIP = 16  # for zlib's wbits
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_:]+")
_SPECIAL = re.compile('[\\\\"\n\ud800-\udfff]')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


class Format(Enum):
    """The formats served; the value is the Content-Type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"


@dataclass(frozen=True, slots=True)
class Page:
    """A rendered page, and what had to be kept off it so that a parser takes the rest.

    `duplicates` repeat a series (or reuse a family's name for another kind), `malformed` have values of no valid form.
    """

    chunks: list[bytes]
    duplicates: int = 0
    malformed: int = 0

    @property
    def text(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def size(self) -> int:
        """The length of the text in bytes."""
        return sum(map(len, self.chunks))

    def compressed(self) -> bytes:
        """The text as gzip; at level 1, a third of the default's time for a third more bytes."""
        stream = zlib.compressobj(1, wbits=zlib.MAX_WBITS | _GZIP)
        return b"".join([*map(stream.compress, self.chunks), stream.flush()])


def unit(metric: Metric) -> str:
    """The unit as a Prometheus name's suffix, without underscore: seconds, bytes_per_second, ratio, or nothing."""
    if metric.unit == "1":
        return "ratio" if metric.kind is Kind.GAUGE else ""
    base, _, per = re.sub(r"\{[^}]*\}", "", metric.unit).partition("/")
    suffix = _UNITS.get(base, _NOT_IN_A_NAME.sub("_", base))
    if per:
        suffix += "_per_" + _UNITS.get(per, _NOT_IN_A_NAME.sub("_", per)).removesuffix("s")
    return suffix.strip("_")


def family(metric: Metric) -> str:
    """The metric family's name: for a counter without `_total`, as OpenMetrics wants it."""
    if metric.literal:
        return metric.name
    name = _NOT_IN_A_NAME.sub("_", metric.name.replace(".", "_"))
    if metric.kind is Kind.COUNTER:
        name = name.removesuffix("_total")
    suffix = unit(metric)
    if suffix and name != suffix and not name.endswith("_" + suffix):
        name += "_" + suffix
    return "_" + name if name[:1].isdigit() else name


def name(metric: Metric) -> str:
    """The name its samples have on the page, less `_bucket`, `_sum` and `_count` of a histogram."""
    return family(metric) + _suffix(metric)


def label(name: str) -> str:
    """Return the name of a label on the page."""
    return _NOT_IN_A_NAME.sub("_", name)


def _suffix(metric: Metric) -> str:
    return "_total" if metric.kind is Kind.COUNTER and not metric.literal else ""


def render(samples: Iterable[Sample], page_format: Format = Format.TEXT) -> Page:
    """Return the page, families and series in order of their names. The first of two samples of one series is kept."""
    by_metric: dict[int, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(id(sample.metric), []).append(sample)
    families: dict[str, tuple[Metric, list[Sample]]] = {}
    duplicates = malformed = 0
    for group in by_metric.values():
        metric = group[0].metric
        first, kept = families.setdefault(family(metric), (metric, []))
        if first.kind is metric.kind:
            kept += group
        else:
            duplicates += len(group)

    writer = _writer(page_format)
    for family_name, (metric, group) in sorted(families.items()):
        series: dict[Any, Sample] = {}
        for sample in group:
            labels = writer.labels(sample.labels)
            if labels in series:
                duplicates += 1
            else:
                series[labels] = sample
        malformed += writer.family(family_name, metric, series)
    return Page(writer.chunks(), duplicates, malformed)


class _AnyWriter(Protocol):
    """What writes a page in one of the formats. The labels of a series are a key, which the writer made."""

    def labels(self, labels: Mapping[str, str]) -> Any: ...

    def family(self, name: str, metric: Metric, series: Mapping[Any, Sample]) -> int: ...

    def chunks(self) -> list[bytes]: ...


def _writer(page_format: Format) -> _AnyWriter:
    if page_format is Format.PROTOBUF:
        from exporter.views import metric_family  # few clients take it

        return metric_family.Writer()
    return _Writer(page_format)


class _Writer:
    def __init__(self, page_format: Format) -> None:
        self._openmetrics = page_format is Format.OPENMETRICS
        self._values = _Escaped()
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._bounds: dict[tuple[float, ...], list[str]] = {}
        self._chunks: list[bytes] = []

    def labels(self, labels: Mapping[str, str]) -> str:
        """The labels between the braces, in order of their names, without the empty ones.

        Most of a page's time goes here, so the order is worked out once for each set of names.
        """
        names = tuple(labels)
        shape = self._shapes.get(names)
        if shape is None:
            shape = self._shapes[names] = _Shape(names)
        values = shape.values(labels)
        if "" in values:
            return self.labels({name: value for name, value in labels.items() if value})
        return shape.text % tuple(map(self._values.__getitem__, values))

    def _lines(self, name: str, kind: Kind, labels: str, value: Value) -> str:
        if kind is Kind.HISTOGRAM:
            return self._histogram(name, labels, value)
        return f"{name}{{{labels}}} {number(value)}\n" if labels else f"{name} {number(value)}\n"

    def _histogram(self, name: str, labels: str, value: Value) -> str:
        if not isinstance(value, Distribution):
            raise TypeError(f"{name} is a histogram, its value is {value!r}")
        head = f"{name}_bucket{{{labels}," if labels else f"{name}_bucket{{"
        value = values.classic(value)
        cumulated = list(accumulate(value.counts))
        ends = [f" {count}" for count in cumulated]
        if self._openmetrics:
            for index, exemplar in value.exemplars.items():
                ends[index] += self._exemplar(exemplar)
        buckets = [f"{head}{le}{end}" for le, end in zip(self._les(value.bounds), ends, strict=True)]
        tail = f"{{{labels}}}" if labels else ""
        return "\n".join([*buckets, f"{name}_sum{tail} {number(value.sum)}", f"{name}_count{tail} {cumulated[-1]}\n"])

    def _les(self, bounds: tuple[float, ...]) -> list[str]:
        les = self._bounds.get(bounds)
        if les is None:
            les = [f'le="{number(float(bound))}"}}' for bound in (*bounds, float("inf"))]
            self._bounds[bounds] = les
        return les

    def _exemplar(self, exemplar: Exemplar) -> str:
        ids = self.labels({"trace_id": exemplar.trace_id, "span_id": exemplar.span_id})
        return f" # {{{ids}}} {number(exemplar.value)} {exemplar.time:.3f}"

    def family(self, name: str, metric: Metric, series: Mapping[str, Sample]) -> int:
        """Writes a family, if it has a series of valid form. Returns how many have none."""
        malformed = 0
        lines: list[str] = []
        header = self._header(name, metric)
        name += _suffix(metric)
        for labels in sorted(series):
            try:
                line = self._lines(name, metric.kind, labels, series[labels].value)
            except (LookupError, TypeError, ValueError):
                malformed += 1
                continue
            if header:
                lines, header = [header], ""
            lines.append(line)
            if len(lines) >= LINES_IN_A_CHUNK:
                self._flush(lines)
                lines = []
        self._flush(lines)
        return malformed

    def _header(self, name: str, metric: Metric) -> str:
        suffix, kind = unit(metric), metric.kind.value
        text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
        if self._openmetrics:
            text = text.replace('"', '\\"')
            if metric.literal and metric.kind is Kind.COUNTER:
                kind = "unknown"  # a counter's name would have to end in _total
        else:
            name += _suffix(metric)
        header = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        return f"{header}# UNIT {name} {suffix}\n" if self._openmetrics and suffix else header

    def _flush(self, lines: Iterable[str]) -> None:
        self._chunks.append("".join(lines).encode("utf-8", "replace"))

    def chunks(self) -> list[bytes]:
        """What was written, complete."""
        if self._openmetrics:
            self._flush(("# EOF\n",))
        return self._chunks


class _Shape:
    """A set of label names: how to fetch their values in order, and the text to put them in."""

    def __init__(self, names: tuple[str, ...]) -> None:
        ordered, self.values = values.ordered(names)
        self.text = ",".join(f'{label(name)}="%s"' for name in ordered)


class _Escaped(dict[str, str]):
    """Label values by themselves, each escaped once a page however often it occurs."""

    def __missing__(self, value: str) -> str:
        escaped = self[value] = _SPECIAL.sub(_escape, value)
        return escaped


def _escape(special: re.Match[str]) -> str:
    # A lone surrogate is a byte that was not UTF-8 (surrogateescape).
    return _ESCAPES.get(special[0], "\ufffd")


def number(value: object) -> str:
    """A value as both formats write it: integers digit by digit at any size, else the shortest exact decimal.

    Raises TypeError for what is no number.
    """
    if type(value) is int:
        return str(value)
    if isinstance(value, int):
        return str(int(value))
    if not isinstance(value, float):
        raise TypeError(f"{value!r} is not a number")
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
