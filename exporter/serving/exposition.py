"""Parser of an inference engine's /metrics in Prometheus' text format. All of the text is untrusted input."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from exporter import values
from exporter.model import PROCESS_LABELS, Distribution, Kind, Labels, Metric, Sample, Value

MOST_LINES = 20_000
MOST_SERIES = 5_000
"""Of one page, a histogram being one."""
MOST_COUNT = 2.0**53
"""Highest count that text has exactly, as a number of 64 bits."""
MOST_VALUE = 2.0**64
"""Absolute value that no number of an engine exceeds: sums of others' numbers with greater ones would be infinite."""
MOST_LABELS = 16
MOST_NAMES = 19
"""Labels of a series at most, including those of its process; buckets have `le` in addition."""
LONGEST_VALUE = 128
LONGEST_HELP = 300
PREFIXES = ("vllm:", "sglang:", "trtllm_", "dynamo_", "nv_", "llamacpp:", "tgi_")
"""Names of vLLM, SGLang, TensorRT-LLM, Dynamo, Triton, llama.cpp and TGI; what else a page has is not of the engine."""
RESERVED = frozenset((*PROCESS_LABELS, "instance", "job", "overflow"))
"""Labels that name the process or pod of a series, and the scraper's, which honor_labels would take from a page."""
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]{0,199})(?:\{([^{}]*)\})? ([^ ]{1,40})(?: -?\d{1,20})?", re.ASCII)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]{0,99})="((?:[^"\\]|\\.)*)"(?:,|$)', re.ASCII)
_ESCAPED = re.compile(r'\\([\\"n])')
_KINDS = {kind.value: kind for kind in Kind}
_PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """A series of an engine, in the engine's own name and labels."""

    name: str
    kind: Kind
    help: str
    labels: Labels
    value: Value


@dataclass(slots=True)
class _Histogram:
    buckets: dict[float, float] = field(default_factory=dict)
    sum: float | None = None
    count: float | None = None

    def distribution(self) -> Distribution | None:
        """Return what it counted; None where its parts are not all there or contradict each other."""
        bounds = sorted(self.buckets)
        cumulated = [self.buckets[bound] for bound in bounds]
        if self.sum is None or not bounds or bounds[-1] != math.inf or self.count not in (None, cumulated[-1]):
            return None
        if cumulated[-1] > MOST_COUNT:
            return None
        counts = [cumulated[0], *(later - earlier for earlier, later in pairwise(cumulated))]
        if any(count < 0 or count != int(count) for count in counts):
            return None
        return Distribution(tuple(bounds[:-1]), tuple(map(int, counts)), self.sum)


def series(text: str) -> Iterator[EngineSeries]:
    """Yield the counters, gauges and histograms of a page that are an engine's, at most MOST_SERIES.

    Lines that are malformed, of other kinds or without a TYPE are left out, and values that are no numbers up to
    MOST_VALUE.
    """
    kinds: dict[str, Kind] = {}
    helps: dict[str, str] = {}
    histograms: dict[tuple[str, tuple[tuple[str, str], ...]], _Histogram] = {}
    left = MOST_SERIES
    for line in text.split("\n", MOST_LINES)[:MOST_LINES]:
        if line.startswith("#"):
            _describe(line, kinds, helps)
            continue
        found = _SAMPLE.fullmatch(line.rstrip())
        if not found or not found[1].startswith(PREFIXES):
            continue
        name, labels, value = found[1], _labels(found[2] or ""), _number(found[3])
        if labels is None or value is None:
            continue
        base = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), "")
        if kinds.get(base) is Kind.HISTOGRAM:
            bound = _number(labels.pop("le", ""), infinite=True)
            key = base, tuple(sorted(labels.items()))
            if key not in histograms and left:
                histograms[key], left = _Histogram(), left - 1
            if key in histograms:
                _add(histograms[key], name, bound, value)
        elif (kind := kinds.get(name)) in (Kind.COUNTER, Kind.GAUGE) and kind is not None and left:
            left -= 1
            yield EngineSeries(name, kind, helps.get(name, ""), labels, value)
    for (name, pairs), histogram in histograms.items():
        distribution = histogram.distribution()
        if distribution is not None:
            yield EngineSeries(name, Kind.HISTOGRAM, helps.get(name, ""), dict(pairs), distribution)


def _describe(line: str, kinds: dict[str, Kind], helps: dict[str, str]) -> None:
    words = line.split(" ", 3)
    if len(words) < 4 or not words[2].startswith(PREFIXES) or words[2].endswith("_created"):
        return
    if words[1] == "TYPE" and words[3].strip() in _KINDS:
        kinds[words[2]] = _KINDS[words[3].strip()]
    elif words[1] == "HELP":
        helps[words[2]] = "".join(char if char.isprintable() else " " for char in words[3][:LONGEST_HELP])


def _add(histogram: _Histogram, name: str, bound: float | None, value: float) -> None:
    if name.endswith("_bucket") and bound is not None:
        histogram.buckets[bound] = value
    elif name.endswith("_sum"):
        histogram.sum = value
    elif name.endswith("_count"):
        histogram.count = value


def _labels(text: str) -> dict[str, str] | None:
    """Return the labels, values cut to LONGEST_VALUE; None where the text is no list of labels.

    Prometheus reserves names that begin with two underscores, and refuses a whole page for one named __name__.
    """
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if not found or found[1].startswith("__") or len(labels) == MOST_LABELS:
            return None
        labels[found[1]] = _printable(found[2])
        at = found.end()
    return labels


def _printable(value: str) -> str:
    value = _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
    return "".join(char if char.isprintable() else "?" for char in value[:LONGEST_VALUE])


def _number(text: str, infinite: bool = False) -> float | None:
    try:
        value = math.nan if "_" in text else float(text)  # Python alone takes 1_000 for a number
    except ValueError:
        return None
    return value if abs(value) <= MOST_VALUE or (infinite and value == math.inf) else None


def joined(own: Mapping[str, str], labels: Labels) -> dict[str, str]:
    """Return the labels of a process with those of an engine, which are `exported_NAME` where they would be taken for
    the process's or the scraper's. Beyond MOST_NAMES, the engine's last labels by name are omitted.
    """
    kept = sorted(labels.items())[: MOST_NAMES - len(own)]
    return {**own, **{f"exported_{name}" if name in RESERVED else name: value for name, value in kept}}


def samples(own: Labels, page: Iterable[EngineSeries], metric_of: Callable[[EngineSeries], Metric]) -> Iterator[Sample]:
    """Yield samples of a page with the labels of its process; combine series that differ only in omitted labels."""
    together: dict[str, Sample] = {}
    for one in page:
        metric = metric_of(one)
        sample = Sample(metric, joined(own, one.labels), one.value)
        if len(sample.labels) < MOST_NAMES:
            yield sample
            continue
        key = values.key(metric, sample.labels)
        if (other := together.get(key)) is not None:
            add = values.combine(metric, other.value, one.value) if one.kind is Kind.GAUGE else None
            sample = Sample(metric, sample.labels, values.plus(other.value, one.value) if add is None else add)
        together[key] = sample
    yield from together.values()
