"""Parser of another exporter's page in Prometheus' text format 0.0.4, for gauges and counters of DCGM only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from exporter.model import Kind, Labels

MOST_SERIES = 10_000
MOST_LABELS = 19
"""Labels of a line at most; its series also has gpu_uuid."""
_LONGEST_LINE = 16_384
_META = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) ?(.*)")
_SAMPLE = re.compile(
    r'((?:DCGM|dcgm)_[a-zA-Z0-9_]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)(?:[ \t]+-?[0-9]+)?[ \t]*'
)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_ESCAPED = re.compile(r'\\([\\"n])')
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_KINDS = {"gauge": Kind.GAUGE, "counter": Kind.COUNTER}


@dataclass(frozen=True, slots=True)
class ParsedSeries:
    """One series of a page."""

    name: str
    kind: Kind
    help: str
    labels: Labels
    value: int | float


def read(page: str) -> tuple[list[ParsedSeries], int]:
    """Parses a page. Returns the series, MOST_SERIES at most, and the number of DCGM's lines that were refused."""
    helps: dict[str, str] = {}
    kinds: dict[str, str] = {}
    series: list[ParsedSeries] = []
    refused = 0
    for line in page.split("\n"):
        if line.startswith("#"):
            if meta := _META.fullmatch(line[:_LONGEST_LINE]):
                (helps if meta[1] == "HELP" else kinds)[meta[2]] = meta[3]
        elif line[:5] in ("DCGM_", "dcgm_"):
            made = _series(line, helps, kinds) if len(series) < MOST_SERIES else None
            if made is None:
                refused += 1
            else:
                series.append(made)
    return series, refused


def _series(line: str, helps: dict[str, str], kinds: dict[str, str]) -> ParsedSeries | None:
    found = _SAMPLE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
    if found is None:
        return None
    name, inner, text = found.groups()
    kind, labels, value = _KINDS.get(kinds.get(name, "").strip()), _labels(inner or ""), _number(text)
    if kind is None or labels is None or value is None:
        return None
    return ParsedSeries(name, kind, _unescaped(helps.get(name, "")), labels, value)


def _labels(inner: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while at < len(inner.rstrip()):
        found = _LABEL.match(inner, at)
        if found is None or found[1] in labels or found[1].startswith("__"):  # reserved: __name__ is no label
            return None
        if len(labels) == MOST_LABELS:
            return None
        labels[found[1]], at = _unescaped(found[2]), found.end()
    return labels


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)


def _number(text: str) -> int | float | None:
    try:
        return int(text) if _INTEGER.fullmatch(text) else float(text)
    except ValueError:
        return None
