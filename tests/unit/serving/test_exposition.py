"""The numbers of inference engines, from the texts of their /metrics and from texts of no form."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import PROCESS_LABELS, Distribution, Kind, Metric
from exporter.serving.exposition import MOST_SERIES, EngineSeries, joined, samples, series
from exporter.values import count
from tests.unit.serving import engine_texts as texts

MODEL = {"model_name": "llama"}
FIRST_TOKENS = Distribution((0.5,), (3, 2), 4.5)


def test_vllm() -> None:
    """Gauges, counters and histograms of the engine are there; Python's own numbers and times of creation are not."""
    found = {it.name: it for it in series(texts.VLLM)}

    assert {
        "vllm:num_requests_running": (Kind.GAUGE, 7),
        "vllm:num_requests_waiting": (Kind.GAUGE, 23),
        "vllm:kv_cache_usage_perc": (Kind.GAUGE, 0.875),
        "vllm:prompt_tokens_total": (Kind.COUNTER, 1_234_567),
        "vllm:time_to_first_token_seconds": (Kind.HISTOGRAM, Distribution((0.001, 0.5), (0, 3, 2), 4.5)),
    } == {name: (it.kind, it.value) for name, it in found.items()}
    assert {("engine", "0"), ("model_name", "meta-llama/Llama-3.1-8B")} == {
        pair for it in found.values() for pair in it.labels.items()
    }
    assert "Number of requests waiting to be processed." == found["vllm:num_requests_waiting"].help


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (texts.SGLANG, {"sglang:num_running_reqs": 7, "sglang:num_queue_reqs": 23, "sglang:token_usage": 0.875}),
        (texts.TENSORRT_LLM, {"trtllm_time_to_first_token_seconds": FIRST_TOKENS}),
        (texts.TRITON, {"nv_inference_request_success": 23, "nv_inference_pending_request_count": 7}),
        (
            texts.DYNAMO,
            {"dynamo_frontend_inflight_requests": 7, "dynamo_frontend_time_to_first_token_seconds": FIRST_TOKENS},
        ),
        (
            texts.LLAMA_CPP,
            {"llamacpp:prompt_tokens_total": 54, "llamacpp:requests_processing": 7, "llamacpp:requests_deferred": 23},
        ),
        (texts.TGI, {"tgi_queue_size": 23, "tgi_request_success": 7}),
    ],
    ids=["SGLang", "TensorRT-LLM", "Triton", "Dynamo", "llama.cpp", "TGI"],
)
def test_engines(text: str, expected: dict[str, object]) -> None:
    """Series of each engine are there under the engine's own names."""
    assert expected == {it.name: it.value for it in series(text)}


@pytest.mark.parametrize(
    "line",
    [
        "vllm:n",
        "vllm:n NaN",
        "vllm:n +Inf",
        "vllm:n one",
        'vllm:n{a="b} 1',
        "vllm:n{a=b} 1",
        'vllm:n{a="b" c="d"} 1',
        "vllm:n{{{}}} 1".format(",".join(f'l{number}="x"' for number in range(17))),
        "other 1",
    ],
)
def test_malformed_lines(line: str) -> None:
    """A line that is no number of the engine is left out, and the others are not."""
    found = list(series(f'# TYPE vllm:n gauge\n{line}\nvllm:n{{of="1"}} 2\n'))

    assert [({"of": "1"}, 2)] == [(it.labels, it.value) for it in found]


@pytest.mark.parametrize(
    "buckets",
    [
        (("0.5", 3), ("+Inf", 2)),
        (("0.5", 3),),
        (("0.5", 3), ("+Inf", 4.5)),
        (("0.5", 3), ("+Inf", 1e300)),
        (("0.5", 1e19), ("+Inf", 1e19)),
        (("0.5", -3), ("+Inf", 2)),
    ],
)
def test_contradicting_histograms(buckets: tuple[tuple[str, float], ...]) -> None:
    """A histogram that counts down, has no last bucket, parts of observations or more than 2^53 of them is left out."""
    lines = [f'vllm:h_bucket{{le="{bound}"}} {count}' for bound, count in buckets]
    assert [] == list(series("\n".join(["# TYPE vllm:h histogram", *lines, "vllm:h_sum 1", ""])))


def test_hostile_labels() -> None:
    """Values of labels are short and printable; those of the process stay what they are."""
    [found] = series('# TYPE vllm:n gauge\nvllm:n{pid="\\"\\n\\x1b",model_name="%s"} 1\n' % ("m" * 5000))

    assert ("m" * 128, '"?\\x1b') == (found.labels["model_name"], found.labels["pid"])
    assert {"pid": "7", "exported_pid": '"?\\x1b'}.items() <= joined({"pid": "7"}, found.labels).items()


@pytest.mark.parametrize("text", ["1e308", "-1e20", "1_000", "nan", "+Inf", "1e400", "0x10", ""])
def test_values_that_are_none(text: str) -> None:
    """Beyond 64 bits, not finite, or a number to Python alone: the line is left out, and no sum becomes infinite."""
    assert [] == list(series(f"# TYPE vllm:n counter\nvllm:n {text}\n"))


def test_labels_that_are_not_the_engines() -> None:
    """A label of a process or of the scraper stays theirs where the process has none; a reserved name is no label.

    For one named __name__ Prometheus refuses the page of the whole node: 'label name "__name__" is not unique'.
    """
    [found] = series('# TYPE vllm:n gauge\nvllm:n{__name__="up"} 1\nvllm:n{slurm_job_id="1",instance="other"} 2\n')

    assert 2 == found.value
    assert {"pid": "7", "exported_slurm_job_id": "1", "exported_instance": "other"} == joined(
        {"pid": "7"}, found.labels
    )


@pytest.mark.parametrize(("kind", "total"), [(Kind.COUNTER, 7), (Kind.GAUGE, 7), (Kind.HISTOGRAM, 7)])
def test_labels_of_a_series(kind: Kind, total: int) -> None:
    """A series has at most 20 label names, including its process's and le; series equal without the rest are summed."""
    metric = Metric("vllm:n", "", kind, process=True, literal=True)
    process = {name: "x" for name in PROCESS_LABELS if not name.startswith("gpu")}

    def series_of(number: int, labels: int, **more: str) -> EngineSeries:
        value = Distribution((1.0,), (number, 0), 1.0) if kind is Kind.HISTOGRAM else number
        own = {f"l{name:02}": "y" for name in range(labels)} | more
        return EngineSeries(metric.name, kind, "", own, value)

    page = [series_of(3, 16, z="1"), series_of(4, 16, z="2"), series_of(9, 2)]
    short, long = samples(process, page, lambda _: metric)
    assert (9, 9) == (len(short.labels), count(short.value))
    assert (19, total) == (len(long.labels), count(long.value))
    assert process.keys() | {"l00", "l11"} < long.labels.keys()


def test_bounds() -> None:
    """No more than MOST_SERIES are taken, and no text takes long."""
    text = "# TYPE vllm:n gauge\n" + "".join(f'vllm:n{{a="{number}"}} 1\n' for number in range(MOST_SERIES + 100))
    assert MOST_SERIES == len(list(series(text)))
    started = time.monotonic()
    for text in ("vllm:n{" + 'a="' * 500_000, "vllm:n{" + 'a="\\' * 500_000 + "} 1", "vllm:" + "n" * 2_000_000):
        assert [] == list(series("# TYPE vllm:n gauge\n" + text))
    assert 20 > time.monotonic() - started


@given(
    st.lists(st.sampled_from(["# TYPE ", "vllm:n", " gauge", "histogram", "_bucket", '{le="1"}', " 1", "\n", "{", '"']))
)
def test_texts_of_no_form(pieces: list[str]) -> None:
    """Whatever a text has, what is taken from it are finite numbers of an engine."""
    for it in series("".join(pieces)):
        assert it.name.startswith("vllm:")
        assert isinstance(it.value, Distribution) or math.isfinite(it.value)
