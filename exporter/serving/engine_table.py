"""Numbers that several inference engines have under different names, under one name each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from exporter.model import Distribution, Labels, Metric, Sample, Value
from exporter.serving import metrics
from exporter.serving.exposition import EngineSeries

_MODEL = ("model_name", "model")
"""The labels that engines have for it."""


def _fullest(values: Sequence[float]) -> float:
    return max(values)


_GAUGES: dict[str, tuple[Metric, Callable[[Sequence[float]], float]]] = {
    **dict.fromkeys(
        ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred", "tgi_queue_size")
        + ("dynamo_frontend_queued_requests", "nv_inference_pending_request_count"),
        (metrics.ENGINE_WAITING, sum),
    ),
    **dict.fromkeys(
        ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
        + ("dynamo_frontend_inflight_requests",),
        (metrics.ENGINE_RUNNING, sum),
    ),
    **dict.fromkeys(
        ("vllm:kv_cache_usage_perc", "sglang:token_usage", "trtllm_kv_cache_utilization"),
        (metrics.ENGINE_CACHE, _fullest),
    ),
}
"""By an engine's name of it: the metric, and what several series of one model become."""
_FIRST_TOKENS = frozenset(
    f"{prefix}time_to_first_token_seconds" for prefix in ("vllm:", "sglang:", "trtllm_", "dynamo_frontend_")
)


def samples(page: Iterable[EngineSeries], engine: str, process: Labels) -> Iterator[Sample]:
    """Yield what an engine's page has of these numbers, with the labels of its process, by model."""
    gauges: dict[tuple[str, str], list[float]] = {}
    histograms: dict[str, list[Distribution]] = {}
    for one in page:
        model = next((one.labels[name] for name in _MODEL if name in one.labels), "")
        if one.name in _GAUGES and not isinstance(one.value, Distribution):
            gauges.setdefault((one.name, model), []).append(one.value)
        elif one.name in _FIRST_TOKENS and isinstance(one.value, Distribution):
            histograms.setdefault(model, []).append(one.value)
    for (name, model), values in gauges.items():
        metric, together = _GAUGES[name]
        yield _sample(metric, engine, model, process, together(values))
    for model, found in histograms.items():
        if len({it.bounds for it in found}) == 1:
            yield _sample(metrics.ENGINE_FIRST_TOKEN, engine, model, process, _added(found))


def _added(found: Sequence[Distribution]) -> Distribution:
    counts = tuple(map(sum, zip(*(it.counts for it in found), strict=True)))
    return Distribution(found[0].bounds, counts, sum(it.sum for it in found))


def _sample(metric: Metric, engine: str, model: str, process: Labels, value: Value) -> Sample:
    return Sample(metric, {**process, "model": model, "engine": engine}, value)
