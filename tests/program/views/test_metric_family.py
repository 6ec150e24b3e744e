"""The page in Protocol Buffers, read by the official runtime: the same series as the text, and native histograms."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from exporter.model import Distribution, Exemplar, Kind, Metric, Sample
from exporter.page import Pages
from exporter.profile import Profile
from exporter.views.prometheus import Format, Page, render
from tests import typical_node
from tests.metric_family import Series, families, messages, series

CALLS = Metric("test.calls", 'Calls of "a"\nand \\b.', Kind.COUNTER, "{call}", labels=("api",), process=True)
USAGE = Metric("test.usage", "Bytes.", Kind.GAUGE, "By", labels=("memory",), process=True)
WAIT = Metric("test.wait", "Waits.", Kind.HISTOGRAM, "s", labels=("api",))
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OCTAVES = (2.0**-3, 2.0**-2, 2.0**-1, 1.0, 2.0)


def page(*samples: Sample) -> Page:
    return render(samples, Format.PROTOBUF)


def of_text(samples: list[Sample]) -> Series:
    """The series of the same samples in text, as prometheus_client reads them."""
    text = render(samples).text.decode()
    return {
        (one.name, frozenset(one.labels.items())): float(one.value)
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


@pytest.mark.parametrize("profile", list(Profile))
def test_series_of_a_node_are_those_of_the_text(profile: Profile, tmp_path: Path) -> None:
    """Each series of a whole node, with its labels, buckets and value, in each profile; types, help texts and units."""
    node = typical_node.node(tmp_path, 5)
    samples = [*Pages(50_000, Profile.DEBUG).within(lambda: node, None, profile)]
    rendered = page(*samples)
    assert (0, 0) == (rendered.duplicates, rendered.malformed)
    assert of_text(samples) == series(rendered.text)

    text = render(samples, Format.OPENMETRICS).text.decode()
    about = {it.name: (it.documentation, it.unit) for it in openmetrics_parser.text_string_to_metric_families(text)}
    found = families(rendered.text)
    kinds = {f"{it.name}": messages().MetricType.Name(it.type).lower() for it in found}
    assert about == {it.name.removesuffix("_total"): (it.help, it.unit) for it in found}
    types = [it.split()[2:] for it in render(samples).text.decode().splitlines() if it.startswith("# TYPE")]
    assert {name: kind for name, kind in types} == kinds


LABELS = st.dictionaries(st.sampled_from(["a", "b", "comm", "pod"]), st.text(st.characters()), max_size=4)
NUMBERS = st.integers(0, 2**64) | st.floats()


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([CALLS, USAGE]), LABELS, NUMBERS), max_size=6))
def test_any_label_and_number_is_that_of_the_text(drawn: list[tuple[Metric, dict[str, str], float]]) -> None:
    """Whatever labels hold, what is no UTF-8 too, and whatever a value is; the same series is left out as double."""
    samples = [metric.sample(value, labels) for metric, labels, value in drawn]
    expected, found = of_text(samples), series(page(*samples).text)
    assert expected.keys() == found.keys()
    assert page(*samples).duplicates == render(samples).duplicates
    assert all(found[key] == value or (math.isnan(found[key]) and math.isnan(value)) for key, value in expected.items())


def test_exemplars_and_starts() -> None:
    """An exemplar is on its bucket with its ids, value and time; a start is that of the series, absent if unknown."""
    waits = Distribution((0.001, 1.0), (1, 2, 4), 9.5, {1: Exemplar(0.0625, 1700000000.125, TRACE, SPAN)})
    rendered = page(
        Sample(WAIT, {}, waits, 1700000000.5), Sample(CALLS, {}, 7, 1600000000.25), CALLS.sample(1, {"a": "b"})
    )
    calls, wait = families(rendered.text)
    [histogram] = (it.histogram for it in wait.metric)
    assert [False, True, False] == [it.HasField("exemplar") for it in histogram.bucket]
    exemplar = histogram.bucket[1].exemplar
    assert {"span_id": SPAN, "trace_id": TRACE} == {pair.name: pair.value for pair in exemplar.label}
    assert (0.0625, 1700000000125) == (exemplar.value, exemplar.timestamp.ToMilliseconds())
    assert 1700000000500 == histogram.created_timestamp.ToMilliseconds()
    known, unknown = (it.counter for it in calls.metric)
    assert 1600000000250 == known.created_timestamp.ToMilliseconds()
    assert not unknown.HasField("created_timestamp")


def buckets(page: Page) -> tuple[int, float, int, dict[int, int]]:
    """Schema, zero threshold, zero count, and counts by index of the only native histogram of a page."""
    [family] = families(page.text)
    [histogram] = (it.histogram for it in family.metric)
    counts: dict[int, int] = {}
    index = count = 0
    deltas = iter(histogram.positive_delta)
    for span in histogram.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += next(deltas)
            counts[index] = count
            index += 1
    assert [] == [*deltas]
    assert histogram.sample_count == histogram.zero_count + sum(counts.values())
    return histogram.schema, histogram.zero_threshold, histogram.zero_count, counts


def test_a_native_histogram_has_the_counts_of_its_buckets() -> None:
    """Bounds that are powers of two are those of schema 0; what is up to the first bound is the zero bucket."""
    found = buckets(page(WAIT.sample(Distribution(OCTAVES, (7, 3, 0, 5, 1, 0), 9.5))))
    assert (0, 2.0**-3, 7, {-2: 3, -1: 0, 0: 5, 1: 1}) == found


def test_a_native_histogram_has_more_bounds_than_the_classic_buckets() -> None:
    """Classic buckets are sums of neighbours, those of the text; the native histogram of the same series has all."""
    waits = Distribution(OCTAVES, (7, 3, 0, 5, 1, 0), 9.5, {2: Exemplar(0.375, 1700000000.125, TRACE, SPAN)}, (1, 3))
    rendered = page(WAIT.sample(waits))
    assert (0, 2.0**-3, 7, {-2: 3, -1: 0, 0: 5, 1: 1}) == buckets(rendered)
    [histogram] = (it.histogram for it in families(rendered.text)[0].metric)
    assert [(0.25, 10), (1.0, 15), (math.inf, 16)] == [(it.upper_bound, it.cumulative_count) for it in histogram.bucket]
    assert [False, True, False] == [it.HasField("exemplar") for it in histogram.bucket]
    assert series(rendered.text) == of_text([WAIT.sample(waits)])


def test_a_histogram_of_rules_is_classic_alone() -> None:
    """Rules read its buckets, sum or count, which are no series where Prometheus stores a native histogram."""
    [family] = families(page(replace(WAIT, classic=True).sample(Distribution(OCTAVES, (7, 3, 0, 5, 1, 0), 9.5))).text)
    histogram = family.metric[0].histogram
    assert 6 == len(histogram.bucket)
    assert not (histogram.zero_threshold or histogram.zero_count or histogram.positive_span)


@pytest.mark.parametrize(("step", "schema"), [(1, 0), (2, -1), (4, -2), (8, -3), (16, -4)])
def test_what_is_above_the_last_bound_is_in_the_bucket_up_to_infinity(step: int, schema: int) -> None:
    """The distance of a value above the last bound is unknown: no bucket with a bound has it."""
    bounds = tuple(2.0 ** (step * exponent) for exponent in (-2, -1, 0, 1))
    found = buckets(page(WAIT.sample(Distribution(bounds, (0, 1, 2, 3, 23), 9.5))))
    assert (schema, bounds[0], 0, {-1: 1, 0: 2, 1: 3, 1024 // step + 1: 23}) == found


@pytest.mark.parametrize(
    "bounds",
    [
        (),
        (1.0,),
        (0.001, 1.0),
        (1.0, 2.0, 8.0),
        (2.0, 8.0, 32.0),  # steps of schema -1, the bounds of which are 1, 4, 16
        (1.0, 8.0, 64.0),
        (-2.0, -1.0),
        (0.0, 1.0),
        (1e-6, 2e-6, 4e-6),
    ],
)
def test_other_bounds_make_no_native_histogram(bounds: tuple[float, ...]) -> None:
    """Counts are never spread over buckets with other bounds."""
    value = Distribution(bounds, tuple(range(len(bounds) + 1)), 9.5)
    [family] = families(page(WAIT.sample(value)).text)
    histogram = family.metric[0].histogram
    assert not (histogram.schema or histogram.zero_threshold or histogram.positive_span or histogram.positive_delta)
    assert len(bounds) + 1 == len(histogram.bucket)


@pytest.mark.parametrize(
    "sample",
    [
        WAIT.sample(Distribution(OCTAVES, (1, 2), 9.5)),
        WAIT.sample(Distribution(OCTAVES, (1, 2), 9.5, shown=(0,))),
        WAIT.sample(Distribution((1.0,), (1, 2), 9.5, {7: Exemplar(1, 1, TRACE, SPAN)})),
        WAIT.sample(Distribution((1.0,), (1, -2), 9.5)),
        WAIT.sample(1),
        USAGE.sample("12"),  # type: ignore[arg-type]
        USAGE.sample(10**400),
    ],
)
def test_value_of_no_valid_form_costs_itself_only(sample: Sample) -> None:
    """A histogram with too few counts, a wrong exemplar, a number beyond all floats: counted, the rest is served."""
    rendered = page(sample, CALLS.sample(23))
    assert 1 == rendered.malformed
    assert {("test_calls_total", frozenset()): 23} == series(rendered.text)


def test_no_samples_are_no_bytes() -> None:
    assert b"" == page().text
