"""The Prometheus page against golden text, prometheus_client's parsers and promtool."""

from __future__ import annotations

import math
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from exporter.model import Distribution, Exemplar, Kind, Metric, Sample
from exporter.views.prometheus import Format, family, name, number, render, unit
from exporter.views.text import LabelTexts

LAUNCHES = Metric(
    "gpu.cuda.kernel_launch.calls", "Kernel launches.", Kind.COUNTER, "{call}", labels=("api_layer",), process=True
)
USAGE = Metric("gpu.cuda.memory.usage", "Allocated and not freed.", Kind.GAUGE, "By", labels=("memory",), process=True)
WAIT = Metric("gpu.cuda.sync_wait", "Time blocked in a call.", Kind.HISTOGRAM, "s", labels=("api",))
NACK = Metric("rdma.nack", 'A "ratio" with a \\ and\na second line.', Kind.GAUGE, "1")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def wait(counts: tuple[int, ...] = (1, 2, 4), api: str = "cuStreamSynchronize") -> Sample:
    exemplars = {1: Exemplar(0.0625, 1700000000.1234, TRACE, SPAN)}
    return WAIT.sample(Distribution((0.001, 1.0), counts, 9.5, exemplars), {"api": api})


def page() -> list[Sample]:
    return [
        wait(),
        LAUNCHES.sample(23, {"pid": "12", "comm": 'a"b\\c\nd', "api_layer": "driver", "pod": ""}),
        LAUNCHES.sample(2**63 + 1, {"pid": "1", "api_layer": "driver"}),
        USAGE.sample(1.5e6, {}),
        NACK.sample(float("nan")),
    ]


TEXT = """\
# HELP gpu_cuda_kernel_launch_calls_total Kernel launches.
# TYPE gpu_cuda_kernel_launch_calls_total counter
gpu_cuda_kernel_launch_calls_total{api_layer="driver",comm="a\\"b\\\\c\\nd",pid="12"} 23
gpu_cuda_kernel_launch_calls_total{api_layer="driver",pid="1"} 9223372036854775809
# HELP gpu_cuda_memory_usage_bytes Allocated and not freed.
# TYPE gpu_cuda_memory_usage_bytes gauge
gpu_cuda_memory_usage_bytes 1500000.0
# HELP gpu_cuda_sync_wait_seconds Time blocked in a call.
# TYPE gpu_cuda_sync_wait_seconds histogram
gpu_cuda_sync_wait_seconds_bucket{api="cuStreamSynchronize",le="0.001"} 1
gpu_cuda_sync_wait_seconds_bucket{api="cuStreamSynchronize",le="1.0"} 3
gpu_cuda_sync_wait_seconds_bucket{api="cuStreamSynchronize",le="+Inf"} 7
gpu_cuda_sync_wait_seconds_sum{api="cuStreamSynchronize"} 9.5
gpu_cuda_sync_wait_seconds_count{api="cuStreamSynchronize"} 7
# HELP rdma_nack_ratio A "ratio" with a \\\\ and\\na second line.
# TYPE rdma_nack_ratio gauge
rdma_nack_ratio NaN
"""

OPENMETRICS = """\
# HELP gpu_cuda_kernel_launch_calls Kernel launches.
# TYPE gpu_cuda_kernel_launch_calls counter
gpu_cuda_kernel_launch_calls_total{api_layer="driver",comm="a\\"b\\\\c\\nd",pid="12"} 23
gpu_cuda_kernel_launch_calls_total{api_layer="driver",pid="1"} 9223372036854775809
# HELP gpu_cuda_memory_usage_bytes Allocated and not freed.
# TYPE gpu_cuda_memory_usage_bytes gauge
# UNIT gpu_cuda_memory_usage_bytes bytes
gpu_cuda_memory_usage_bytes 1500000.0
# HELP gpu_cuda_sync_wait_seconds Time blocked in a call.
# TYPE gpu_cuda_sync_wait_seconds histogram
# UNIT gpu_cuda_sync_wait_seconds seconds
gpu_cuda_sync_wait_seconds_bucket{api="cuStreamSynchronize",le="0.001"} 1
gpu_cuda_sync_wait_seconds_bucket{api="cuStreamSynchronize",le="1.0"} 3 \
# {span_id="00f067aa0ba902b7",trace_id="4bf92f3577b34da6a3ce929d0e0e4736"} 0.0625 1700000000.123
gpu_cuda_sync_wait_seconds_bucket{api="cuStreamSynchronize",le="+Inf"} 7
gpu_cuda_sync_wait_seconds_sum{api="cuStreamSynchronize"} 9.5
gpu_cuda_sync_wait_seconds_count{api="cuStreamSynchronize"} 7
# HELP rdma_nack_ratio A \\"ratio\\" with a \\\\ and\\na second line.
# TYPE rdma_nack_ratio gauge
# UNIT rdma_nack_ratio ratio
rdma_nack_ratio NaN
# EOF
"""


@pytest.mark.parametrize(("written", "golden"), [(Format.TEXT, TEXT), (Format.OPENMETRICS, OPENMETRICS)])
def test_page_matches_golden(written: Format, golden: str) -> None:
    """A page with each kind, a hostile label, an empty label and an integer above 2**63 is exactly this text."""
    assert golden == render(page(), written).text.decode()


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (("gpu.cuda.memory.allocations", Kind.COUNTER, "By"), "gpu_cuda_memory_allocations_bytes_total"),
        (("gpu.cuda.last_launch.timestamp", Kind.GAUGE, "s"), "gpu_cuda_last_launch_timestamp_seconds"),
        (("gpu.cuda.last_launch.timestamp_seconds", Kind.GAUGE, "s"), "gpu_cuda_last_launch_timestamp_seconds"),
        (("rdma.nack.ratio", Kind.GAUGE, "1"), "rdma_nack_ratio"),
        (("hw.gpu.utilization", Kind.GAUGE, "1"), "hw_gpu_utilization_ratio"),
        (("hw.status.changes", Kind.COUNTER, "1"), "hw_status_changes_total"),
        (("hw.errors", Kind.COUNTER, "{error}"), "hw_errors_total"),
        (("hw.energy", Kind.COUNTER, "J"), "hw_energy_joules_total"),
        (("hw.power", Kind.GAUGE, "W"), "hw_power_watts"),
        (("hw.temperature", Kind.GAUGE, "Cel"), "hw_temperature_celsius"),
        (("hw.clock", Kind.GAUGE, "Hz"), "hw_clock_hertz"),
        (("hw.pcie.rate", Kind.GAUGE, "By/s"), "hw_pcie_rate_bytes_per_second"),
        (("rdma.rate", Kind.GAUGE, "{packet}/s"), "rdma_rate_per_second"),
        (("already.total", Kind.COUNTER, "By"), "already_bytes_total"),
        (("DCGM_FI_DEV_GPU_TEMP", Kind.GAUGE, ""), "DCGM_FI_DEV_GPU_TEMP"),
        (("3d-engine.use", Kind.GAUGE, ""), "_3d_engine_use"),
    ],
)
def test_names_derive_from_name_and_unit(metric: tuple[str, Kind, str], expected: str) -> None:
    """Dots become underscores, the unit is one suffix, counters end in _total."""
    declared = Metric(metric[0], "", metric[1], metric[2])

    assert expected == name(declared)
    assert family(declared).endswith(unit(declared))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10**6, "1000000"),
        (2**53 + 1, "9007199254740993"),
        (2**64 - 1, "18446744073709551615"),
        (True, "1"),
        (0.1, "0.1"),
        (1e6, "1000000.0"),
        (1e-06, "1e-06"),
        (-math.inf, "-Inf"),
        (math.inf, "+Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers_keep_every_digit(value: float, text: str) -> None:
    """Integers are written digit by digit, floats as the shortest text that reads back equal."""
    assert text == number(value)


LITERAL = """\
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Energy (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION %s
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID="GPU-1",modelName="H100"} 7
"""


@pytest.mark.parametrize(
    ("written", "golden"),
    [(Format.TEXT, LITERAL % "counter"), (Format.OPENMETRICS, LITERAL % "unknown" + "# EOF\n")],
)
def test_literal_name_is_left_as_it_is(written: Format, golden: str) -> None:
    """Another exporter's counter keeps its name; in OpenMetrics, where it is none by its name, its type is unknown."""
    energy = Metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy (in mJ).", Kind.COUNTER, literal=True)

    text = render([energy.sample(7, {"UUID": "GPU-1", "modelName": "H100"})], written).text.decode()

    assert golden == text
    assert energy.name == name(energy)
    parse = openmetrics_parser.text_string_to_metric_families if "# EOF" in golden else text_string_to_metric_families
    assert [7] == [sample.value for found in parse(text) for sample in found.samples]


@pytest.mark.parametrize("written", [Format.TEXT, Format.OPENMETRICS])
def test_series_given_twice_is_kept_once(written: Format) -> None:
    """Of samples of one series, the label order aside, the first reaches the page and the others are counted."""
    samples = [
        USAGE.sample(1, {"pid": "1", "memory": "pool"}),
        USAGE.sample(2, {"memory": "pool", "pid": "1", "pod": ""}),
    ]

    rendered = render(samples, written)

    assert (1, 0) == (rendered.duplicates, rendered.malformed)
    assert b'gpu_cuda_memory_usage_bytes{memory="pool",pid="1"} 1\n' in rendered.text
    assert 1 == rendered.text.count(b"\ngpu_cuda_memory_usage_bytes{")


def test_labels_that_become_equal_are_one_series() -> None:
    """Two names with different invalid bytes look the same on the page, so only one of them is on it."""
    rendered = render([USAGE.sample(1, {"comm": "\udc80"}), USAGE.sample(2, {"comm": "\udc81"})])

    assert 1 == rendered.duplicates
    assert 'gpu_cuda_memory_usage_bytes{comm="\ufffd"} 1\n' in rendered.text.decode()


def test_name_of_two_kinds_keeps_the_first() -> None:
    """A family has one TYPE: samples that reuse its name for another kind are left out and counted."""
    gauge = Metric("gpu_cuda_sync_wait", "Another.", Kind.GAUGE, "s")

    rendered = render([wait(), gauge.sample(1), gauge.sample(2)])

    assert 2 == rendered.duplicates
    assert 1 == rendered.text.count(b"# TYPE")


def test_metric_declared_twice_is_one_family() -> None:
    """Equal declarations in two modules share one HELP and TYPE."""
    again = Metric(*(getattr(LAUNCHES, field) for field in ("name", "help", "kind", "unit", "labels", "process")))

    rendered = render([LAUNCHES.sample(1, {"pid": "1"}), again.sample(2, {"pid": "2"})])

    assert 1 == rendered.text.count(b"# TYPE")
    assert 2 == rendered.text.count(b"gpu_cuda_kernel_launch_calls_total{")


@pytest.mark.parametrize(
    "sample",
    [
        WAIT.sample(Distribution((0.001, 1.0), (1, 2), 9.5), {}),
        WAIT.sample(Distribution((1.0,), (1, 2), 9.5, {7: Exemplar(1, 1, TRACE, SPAN)}), {}),
        WAIT.sample(1),
        USAGE.sample("12"),  # type: ignore[arg-type]
    ],
)
def test_value_of_no_valid_form_costs_itself_only(sample: Sample) -> None:
    """A histogram with too few counts, a wrong exemplar, a text as value: counted, and the rest is served."""
    rendered = render([sample, LAUNCHES.sample(23)], Format.OPENMETRICS)

    assert 1 == rendered.malformed
    assert b"gpu_cuda_kernel_launch_calls_total 23\n# EOF\n" in rendered.text
    assert b"sync_wait" not in rendered.text


def test_no_samples_is_a_valid_page() -> None:
    """No samples are an empty text page and a lone EOF in OpenMetrics."""
    assert b"" == render([]).text
    assert b"# EOF\n" == render([], Format.OPENMETRICS).text


LABELS = st.dictionaries(st.sampled_from(["a", "b", "comm", "pod"]), st.text(st.characters(), min_size=1), max_size=4)


@given(LABELS, st.integers(0, 2**64 - 1))
def test_any_label_is_read_back(labels: dict[str, str], value: int) -> None:
    """Whatever a label holds, both parsers give it back; what cannot be UTF-8 becomes U+FFFD."""
    samples = [LAUNCHES.sample(value, labels), wait(api="x" + labels.get("a", ""))]
    expected = {
        key: "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text) for key, text in labels.items()
    }

    text = {f.name: f for f in text_string_to_metric_families(render(samples).text.decode("utf-8"))}
    openmetrics = {
        f.name: f
        for f in openmetrics_parser.text_string_to_metric_families(
            render(samples, Format.OPENMETRICS).text.decode("utf-8")
        )
    }

    for families in (text, openmetrics):
        [sample] = families["gpu_cuda_kernel_launch_calls"].samples
        assert expected == sample.labels
        assert float(value) == float(sample.value)


def test_parsers_read_exemplars_and_buckets_back() -> None:
    """OpenMetrics carries the exemplar on its bucket, with ids, value and time; buckets are cumulated."""
    text = render(page(), Format.OPENMETRICS).text.decode()
    families = {f.name: f for f in openmetrics_parser.text_string_to_metric_families(text)}

    buckets = [s for s in families["gpu_cuda_sync_wait_seconds"].samples if s.name.endswith("_bucket")]

    assert [1, 3, 7] == [s.value for s in buckets]
    exemplar = buckets[1].exemplar
    assert exemplar is not None
    assert ({"trace_id": TRACE, "span_id": SPAN}, 0.0625, 1700000000.123) == (
        exemplar.labels,
        exemplar.value,
        float(exemplar.timestamp or 0),
    )
    assert "seconds" == families["gpu_cuda_sync_wait_seconds"].unit


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_accepts_a_hostile_page() -> None:
    """promtool's own parser takes a page with every control character and invalid byte in a label."""
    hostile = "".join(map(chr, range(32))) + '"\\\x7f\u2028' + "\udcff" + "}{ 1\n# EOF\n"
    samples = [*page()[:-1], LAUNCHES.sample(1, {"comm": hostile, "pid": "7"})]

    done = subprocess.run(["promtool", "check", "metrics"], input=render(samples).text, capture_output=True, timeout=30)

    assert (0, b"", b"") == (done.returncode, done.stdout, done.stderr)


def test_ten_thousand_series() -> None:
    """10,000 series with eight labels are as many lines; `python -m bench exporter` measures the time."""
    labels = ["comm", "container_id", "pod", "namespace", "container", "gpu", "gpu_uuid"]
    process = [{"pid": str(pid), **{key: f"{key}-{pid:032x}" for key in labels}} for pid in range(64)]
    samples = [LAUNCHES.sample(n, {**process[n % 64], "api_layer": f"layer{n // 64}"}) for n in range(10_000)]

    assert 10_002 == render(samples).text.count(b"\n")


@pytest.mark.parametrize("form", [Format.TEXT, Format.OPENMETRICS])
def test_a_page_with_the_texts_of_the_one_before(form: Format) -> None:
    """The page is the same as without texts, whatever has changed, and only its own texts are kept for the next."""
    texts = LabelTexts()
    changed = [LAUNCHES.sample(24, {"pid": "12", "comm": 'a"b', "api_layer": "driver"}), wait((3, 2, 1))]
    for samples in (page(), page(), changed, [], page()):
        assert render(samples, form).text == render(samples, form, texts).text
    render(changed, form, texts)
    exemplars = int(form is Format.OPENMETRICS)
    assert 2 + exemplars == sum(len(shape.before) for shape in texts.take().values())


def test_pages_written_at_once_have_their_own_texts() -> None:
    """The second of two pages takes none from the first, and both are right."""
    texts = LabelTexts()
    outer = texts.take()
    assert render(page()).text == render(page(), texts=texts).text
    texts.leave(outer)
    assert render(page()).text == render(page(), texts=texts).text
