"""What the CUDA collector declares."""

from __future__ import annotations

import pytest

from exporter.collectors.cuda import FLAGS, METRICS, create
from exporter.model import Unavailable
from exporter.node import Node
from exporter.views.prometheus import name
from tests.nodes import make_node
from tests.unit.cuda.fakes import FakeProcesses

FIXED = {
    "gpu_cuda_memory_allocations_bytes_total": {"api_layer", "memory"},
    "gpu_cuda_memory_frees_bytes_total": {"api_layer", "memory", "implicit"},
    "gpu_cuda_memory_usage_bytes": {"api_layer", "memory"},
    "gpu_cuda_api_calls_total": {"api_layer", "api"},
    "gpu_cuda_api_errors_total": {"api_layer", "api", "code", "error"},
    "gpu_cuda_kernel_launch_calls_total": {"api_layer"},
    "gpu_cuda_graph_launch_calls_total": {"api_layer"},
    "gpu_cuda_memory_copies_bytes_total": {"direction", "host_memory"},
    "gpu_cuda_sync_wait_seconds": {"api"},
    "gpu_cuda_last_launch_timestamp_seconds": set(),
}


def test_the_names_that_are_fixed() -> None:
    """The metrics dashboards and rules rely on have these names and labels, and those of a process."""
    declared = {name(metric): metric for metric in METRICS}
    assert FIXED == {known: set(declared[known].labels) for known in FIXED}
    assert all(declared[known].process for known in FIXED)


def node(**settings: object) -> Node:
    defaults = {flag.name: flag.default for flag in FLAGS}
    chosen = {key.replace("_", "-"): value for key, value in settings.items()}
    return make_node(defaults | chosen, FakeProcesses(), None, lambda _: None)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("live_allocations", 0), ("spans_per_second", -1), ("series_limit", 0), ("wait_span_seconds", -0.5)],
)
def test_settings_that_cannot_be(setting: str, value: float) -> None:
    """A setting out of its range is refused in a sentence that names it, before anything is loaded."""
    with pytest.raises(
        Unavailable, match=f"--collector.cuda.{setting.replace('_', '-')} is {value}: it has to be from"
    ):
        create(node(**{setting: value})).start()
