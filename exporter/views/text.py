"""The lines of the text formats, for exporter/views/prometheus.py. Most of the time that a page takes goes here."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from itertools import accumulate

from exporter import values
from exporter.model import Distribution, Exemplar, Kind, Metric, Sample, Value
from exporter.views.prometheus import LINES_IN_A_CHUNK, escaped, label, number, suffix, unit


class LabelTexts:
    """The texts of the label sets of the page before: most are on the next page too. Safe from any thread.

    A page takes them and leaves those that it has, so none is kept for longer than a page; two pages written at once
    share none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shapes: dict[tuple[str, ...], _Shape] = {}

    def take(self) -> dict[tuple[str, ...], _Shape]:
        """Return the shapes of the page before, which are this page's then."""
        with self._lock:
            taken, self._shapes = self._shapes, {}
        return taken

    def leave(self, shapes: dict[tuple[str, ...], _Shape]) -> None:
        """Keep what was used of these shapes for the next page."""
        self._shapes = {names: shape for names, shape in shapes.items() if shape.end_page()}


class Writer:
    """Writes families one after the other."""

    def __init__(self, openmetrics: bool, texts: LabelTexts) -> None:
        self._openmetrics, self._texts = openmetrics, texts
        self._escaped = _Escaped()
        self._shapes = texts.take()
        self._buckets: _Buckets | None = None
        self._chunks: list[bytes] = []

    def labels(self, labels: Mapping[str, str]) -> str:
        """Return the labels between the braces, in order of their names, without the empty ones."""
        names = tuple(labels)
        shape = self._shapes.get(names)
        if shape is None:
            shape = self._shapes[names] = _Shape(names)
        of = shape.values(labels)
        text = shape.texts.get(of)
        if text is None:
            text = shape.texts[of] = shape.before.get(of) or self._text(shape, labels, of)
        return text

    def _text(self, shape: _Shape, labels: Mapping[str, str], of: tuple[str, ...]) -> str:
        if "" in of:
            return self.labels({name: value for name, value in labels.items() if value})
        return shape.template % tuple(map(self._escaped.__getitem__, of))

    def family(self, name: str, metric: Metric, series: Mapping[str, Sample]) -> int:
        """Write a family, if it has a series of valid form. Returns how many have none."""
        ordered, header, malformed = sorted(series), self._header(name, metric), 0
        name += suffix(metric)
        for at in range(0, len(ordered), LINES_IN_A_CHUNK):
            some = ordered[at : at + LINES_IN_A_CHUNK]
            lines = self._lines(name, metric.kind, some, series)
            malformed += len(some) - len(lines)
            if lines:
                self._flush((header, *lines))
                header = ""
        return malformed

    def chunks(self) -> list[bytes]:
        """Return what was written, complete."""
        if self._openmetrics:
            self._flush(("# EOF\n",))
        self._texts.leave(self._shapes)
        return self._chunks

    def _lines(self, name: str, kind: Kind, ordered: Iterable[str], series: Mapping[str, Sample]) -> list[str]:
        """Return the text of each of these series, without those of no valid form."""
        lines: list[str] = []
        for labels in ordered:
            value = series[labels].value
            try:
                if kind is Kind.HISTOGRAM:
                    lines.append(self._histogram(name, labels, value))
                elif labels:
                    lines.append(f"{name}{{{labels}}} {value if type(value) is int else number(value)}\n")
                else:
                    lines.append(f"{name} {number(value)}\n")
            except (LookupError, TypeError, ValueError):
                continue
        return lines

    def _histogram(self, name: str, labels: str, value: Value) -> str:
        if not isinstance(value, Distribution):
            raise TypeError(f"{name} is a histogram, its value is {value!r}")
        if len(value.counts) != len(value.bounds) + 1:
            raise ValueError(f"{len(value.counts)} counts of {len(value.bounds)} bounds")
        buckets = self._buckets
        if buckets is None or not buckets.are_of(name, value):
            buckets = self._buckets = _Buckets(name, value.bounds, value.shown)
        cumulated = list(accumulate(value.counts))
        ends: list[object] = [*buckets.shown_of(cumulated)]
        if self._openmetrics and value.exemplars:
            for index, exemplar in values.classic(value).exemplars.items():
                ends[index] = f"{ends[index]}{self._exemplar(exemplar)}"
        fields: list[object] = [f"{labels}," if labels else ""] * (2 * len(ends))
        fields[1::2] = ends
        braces = f"{{{labels}}}" if labels else ""
        return buckets.template % (*fields, braces, number(value.sum), braces, cumulated[-1])

    def _exemplar(self, exemplar: Exemplar) -> str:
        ids = self.labels({"trace_id": exemplar.trace_id, "span_id": exemplar.span_id})
        return f" # {{{ids}}} {number(exemplar.value)} {exemplar.time:.3f}"

    def _header(self, name: str, metric: Metric) -> str:
        ending, kind = unit(metric), metric.kind.value
        text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
        if self._openmetrics:
            text = text.replace('"', '\\"')
            if metric.literal and metric.kind is Kind.COUNTER:
                kind = "unknown"  # a counter's name would have to end in _total
        else:
            name += suffix(metric)
        header = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        return f"{header}# UNIT {name} {ending}\n" if self._openmetrics and ending else header

    def _flush(self, lines: Iterable[str]) -> None:
        self._chunks.append("".join(lines).encode("utf-8", "replace"))


class _Buckets:
    """The text of a histogram, for the labels and the count of each bucket, the sum and the count; and which are shown.

    Those of one family mostly have the same buckets, and the same objects as these.
    """

    def __init__(self, name: str, bounds: tuple[float, ...], shown: tuple[int, ...] | None) -> None:
        self._name, self._bounds, self._shown = name, bounds, shown
        few = bounds if shown is None else [bounds[at] for at in shown]
        lines = [f'{name}_bucket{{%sle="{number(float(bound))}"}} %s\n' for bound in (*few, float("inf"))]
        self.template = "".join([*lines, f"{name}_sum%s %s\n", f"{name}_count%s %s\n"])

    def are_of(self, name: str, value: Distribution) -> bool:
        """Return whether a histogram has these buckets."""
        return value.bounds is self._bounds and value.shown is self._shown and name == self._name

    def shown_of(self, cumulated: list[int]) -> list[int]:
        """Return the cumulated counts of the buckets that are shown."""
        if self._shown is None:
            return cumulated
        return [*map(cumulated.__getitem__, self._shown), cumulated[-1]]


class _Shape:
    """A set of label names: how to fetch their values in order, and the texts of label sets by these values."""

    def __init__(self, names: tuple[str, ...]) -> None:
        ordered, self.values = values.ordered(names)
        self.template = ",".join(f'{label(name)}="%s"' for name in ordered)
        self.texts: dict[tuple[str, ...], str] = {}
        """The texts of this page."""
        self.before: dict[tuple[str, ...], str] = {}
        """The texts of the page before."""

    def end_page(self) -> bool:
        """Keep the texts of this page for the next one. Returns False if the page has none."""
        self.before, self.texts = self.texts, {}
        return bool(self.before)


class _Escaped(dict[str, str]):
    """Label values by themselves, each escaped once a page however often it occurs."""

    def __missing__(self, value: str) -> str:
        made = self[value] = escaped(value)
        return made
