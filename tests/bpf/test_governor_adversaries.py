"""Jobs that call without pause once all their calls are probed again: each time they are left alone at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exporter.governor import files
from exporter.governor.governor import Governor
from tests.bpf import test_governor as nccl
from tests.bpf.cuda_node import observe as observe_cuda
from tests.bpf.nccl_node import observe as observe_nccl
from tests.bpf.test_governor_cuda_memory import ALLOCATING
from tests.bpf.working_job import CUDA, Api, Job
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="cost of probes", on="stand-in"),
]

BOUND, TURNS, PAUSE_US = 0.01, 3, 20_000
REDUCING = Api(
    nccl.NCCL.library,
    nccl.NCCL.declarations + "int ncclAllReduce(const void *, void *, unsigned long, int,int, void *, void *);",
    nccl.NCCL.begin,
    "ncclAllReduce(0, 0, 1000, 7, 0, comm, 0);",
    at_once=10,
)


@contextmanager
def governed(api: Api, observe: Callable[..., Any], folder: Path) -> Iterator[tuple[Any, Job]]:
    """The collector under the bound, once it counts the job and has prices."""
    options = {} if api.library == nccl.NCCL.library else {"layers": "driver"}
    with Job(api, folder) as running, observe(governor=Governor(BOUND), **options) as observed:
        until(lambda: observed.attached(running.process.pid, {str(running.library)}), "attached")
        until(lambda: observed.value("accel_exporter_overhead_seconds_total") is not None, "prices")
        yield observed, running


@pytest.mark.parametrize(
    ("api", "observe", "symbols"),
    [
        (CUDA, observe_cuda, ["cuLaunchKernel"]),
        (ALLOCATING, observe_cuda, ["cuMemAlloc_v2", "cuMemFree_v2"]),
        (REDUCING, observe_nccl, ["ncclAllReduce"]),
    ],
    ids=["launches", "allocations", "collectives"],
)
def test_calls_without_pause_after_each_calm(
    api: Api, observe: Callable[..., Any], symbols: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job waits until all its calls are counted again. A few calls count, each one; then it calls without pause, and
    most of its CPU time is its own. Two looks in a row, a second each, would take all of it."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with governed(api, observe, tmp_path) as (observed, running):

        def level() -> Any:
            name, library = "accel_exporter_probe_throttle_level", str(running.library)
            return observed.value(name, symbol=symbols[0], library=library)

        def hits() -> int:
            return sum(observed.value("accel_exporter_probe_hits_total", symbol=it) or 0 for it in symbols)

        for _ in range(60):
            running.work(0.5)
            if level() == 1:
                break
        else:
            pytest.fail("calls are not in windows")
        cost = cpu = 0.0
        for _ in range(TURNS):
            until(lambda: level() == 0, "all calls are counted again")
            seen, few = hits(), running.work(0.2, pause_us=PAUSE_US)
            assert hits() - seen == few.calls * len(symbols)
            seen, many = hits(), running.work(1)
            price = sum(observed.collector.probes.price(it) for it in symbols) / len(symbols)
            cost, cpu = cost + (hits() - seen) * price, cpu + many.cpu
        assert cost / cpu < 0.5, (cost, cpu)
