"""Declarations of the CUDA collector."""

from __future__ import annotations

import pytest

from exporter.collectors.cuda import METRICS
from exporter.cuda.flags import LIVE_LEAST, LIVE_MOST, live_rows
from exporter.views.prometheus import name

FIXED = {
    "gpu_cuda_memory_allocations_bytes_total": {"api_layer", "memory"},
    "gpu_cuda_memory_frees_bytes_total": {"api_layer", "memory", "implicit"},
    "gpu_cuda_memory_usage_bytes": {"api_layer", "memory"},
    "gpu_cuda_api_calls_total": {"api_layer", "api"},
    "gpu_cuda_api_errors_total": {"api_layer", "api", "code", "error"},
    "gpu_cuda_kernel_launch_calls_total": {"api_layer"},
    "gpu_cuda_graph_launch_calls_total": {"api_layer"},
    "gpu_cuda_memory_copies_bytes_total": {"direction", "host_memory"},
    "gpu_cuda_sync_wait_seconds": {"api_layer", "api"},
    "gpu_cuda_last_launch_timestamp_seconds": set(),
}


def test_the_names_that_are_fixed() -> None:
    """The metrics dashboards and rules rely on have these names and labels, and those of a process."""
    declared = {name(metric): metric for metric in METRICS}
    assert FIXED == {known: set(declared[known].labels) for known in FIXED}
    assert all(declared[known].process for known in FIXED)


@pytest.mark.parametrize(
    ("gib", "rows"),
    [(None, LIVE_LEAST), (24, LIVE_LEAST), (8 * 80, 491_520), (8 * 192, LIVE_MOST), (8 * 288, LIVE_MOST)],
)
def test_rows_of_live_allocations(gib: int | None, rows: int) -> None:
    """Below the maximum of rows, ranks that fill their GPUs with handles of 2 MiB stay within their share."""
    assert rows == live_rows(gib and gib << 30)
    if gib and rows < LIVE_MOST:
        handles = gib * 512
        assert handles <= rows and handles / 8 <= rows / 8
