"""Samples as a Prometheus page: text format 0.0.4 and OpenMetrics 1.0.0; exporter/views/text.py has their lines,
exporter/views/metric_family.py Protocol Buffers. Pure functions; the names derive from Metric.

Own code rather than prometheus_client: see docs/decisions/0002-exposition.md for the measurement.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from exporter.model import Kind, Metric, Sample

if TYPE_CHECKING:
    from exporter.views.text import LabelTexts

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
    return family(metric) + suffix(metric)


def label(name: str) -> str:
    """Return the name of a label on the page."""
    return _NOT_IN_A_NAME.sub("_", name)


def suffix(metric: Metric) -> str:
    """Return what follows the family's name in those of its samples."""
    return "_total" if metric.kind is Kind.COUNTER and not metric.literal else ""


def render(samples: Iterable[Sample], page_format: Format = Format.TEXT, texts: LabelTexts | None = None) -> Page:
    """Return the page, families and series in order of their names. The first of two samples of one series is kept.

    `texts` are those of the labels of the page before, which make this one cheaper.
    """
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

    writer = _writer(page_format, texts)
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
    """A writer of pages in one of the formats. The labels of a series are a key made by the writer."""

    def labels(self, labels: Mapping[str, str]) -> Any: ...

    def family(self, name: str, metric: Metric, series: Mapping[Any, Sample]) -> int: ...

    def chunks(self) -> list[bytes]: ...


def _writer(page_format: Format, texts: LabelTexts | None) -> _AnyWriter:
    if page_format is Format.PROTOBUF:
        from exporter.views import metric_family  # few clients take it

        return metric_family.FamilyWriter()
    from exporter.views import text  # which imports this module

    return text.Writer(page_format is Format.OPENMETRICS, texts or text.LabelTexts())


def escaped(value: str) -> str:
    """Return a label's value as it is between quotation marks."""
    return _SPECIAL.sub(_escape, value)


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
