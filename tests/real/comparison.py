"""The exporter's series of a process against the soft GPU's own counts: equal, or the test fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from deploy.demo.summary import Scrape
from exporter.cuda.functions import FUNCTIONS
from exporter.cuda.functions import layer as function_layer
from tests.softgpu.counts import Counts

LAUNCHES = "gpu_cuda_kernel_launch_calls_total"
GRAPHS = "gpu_cuda_graph_launch_calls_total"
CALLS = "gpu_cuda_api_calls_total"
ERRORS = "gpu_cuda_api_errors_total"
USED = "gpu_cuda_memory_usage_bytes"
COPIED = "gpu_cuda_memory_copies_bytes_total"
WAITS = "gpu_cuda_sync_wait_seconds_count"

_KERNELS = {it.name for it in FUNCTIONS if it.launches == "kernel"}
_GRAPHS = {it.name for it in FUNCTIONS if it.launches == "graph"}
_COUNTED = {it.name for it in FUNCTIONS if it.program != "on_context"}
_WAITING = {it.name for it in FUNCTIONS if it.effect == "wait"}

Numbers = dict[str, dict[str, int]]
"""By subject and function, kind of memory or way of a copy; what is 0 is left out."""


def seen(page: Scrape, pid: int, layer: str = "driver") -> Numbers:
    """Return the exporter's numbers of a process: calls of an API layer, memory and copies."""
    of, at = {"pid": str(pid)}, {"pid": str(pid), "api_layer": layer}
    subjects: Mapping[str, Mapping[str, float]] = {
        "launches": page.by("api_layer", LAUNCHES, **at),
        "graph launches": page.by("api_layer", GRAPHS, **at),
        "calls": page.by("api", CALLS, **at),
        "errors": page.by("api", ERRORS, **at),
        "waits": {api: count for api, count in page.by("api", WAITS, **of).items() if function_layer(api) == layer},
        "memory": page.by("memory", USED, **of, api_layer="driver"),
        "copies": _routes(page, of),
    }
    return _without_zeros(subjects)


def counted(counts: Counts, layer: str = "driver", calls: Counts | None = None) -> Numbers:
    """The same by the soft GPU's own counts: memory and copies are the driver's, `calls` may be the runtime's.

    A copy that a capture records counts once, then.
    """
    functions = (calls or counts).functions
    subjects: Mapping[str, Mapping[str, float]] = {
        "launches": {layer: sum(row.calls for name, row in functions.items() if name in _KERNELS)},
        "graph launches": {layer: sum(row.calls for name, row in functions.items() if name in _GRAPHS)},
        "calls": {name: row.calls for name, row in functions.items() if name in _COUNTED},
        "errors": {name: row.failures for name, row in functions.items() if name in _COUNTED},
        "waits": {name: row.calls for name, row in functions.items() if name in _WAITING},
        "memory": counts.memory,
        "copies": Counter(counts.copied) + Counter(counts.recorded),
    }
    return _without_zeros(subjects)


def _without_zeros(subjects: Mapping[str, Mapping[str, float]]) -> Numbers:
    return {subject: {key: int(value) for key, value in rows.items() if value} for subject, rows in subjects.items()}


def in_words(found: Numbers) -> str:
    """Numbers that were equal, for the table: of calls the sum, and the number of functions."""
    words = [f"{sum(found[it].values()):,} {it}" for it in ("launches", "graph launches", "waits") if found[it]]
    words += [f"{sum(found['calls'].values()):,} calls of {len(found['calls'])} functions"]
    words += [f"{size:,} bytes {kind}" for kind, size in found["memory"].items()]
    words += [f"{size:,} bytes {route}" for route, size in found["copies"].items()]
    words += [f"{count} errors of {name}" for name, count in found["errors"].items()]
    return ", ".join(words)


def _routes(page: Scrape, of: dict[str, str]) -> dict[str, float]:
    routes: dict[str, float] = {}
    for labels, value in page.rows(COPIED, **of):
        route = f"{labels['direction']} {labels.get('host_memory', '')}".strip()
        routes[route] = routes.get(route, 0) + value
    return routes
