"""Launches of HIP without pause: the governor keeps what the probes take to its bound, and counts stay right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.governor import files
from exporter.governor.governor import Governor
from tests.bpf.hip_node import CALLS, LAUNCHES, observe
from tests.bpf.observed import Observed
from tests.bpf.working_job import HIP, Job
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="cost of probes", on="stand-in"),
]

BOUND = 0.01


@contextmanager
def governed(running: Job, bound: float) -> Iterator[Observed]:
    """The collector under this bound, once it counts the job and has prices."""
    with observe(governor=Governor(bound)) as observed:
        until(lambda: observed.attached(running.process.pid, {str(running.library)}), "attached")
        until(lambda: observed.value("accel_exporter_overhead_seconds_total") is not None, "prices")
        yield observed


def counted(observed: Observed, running: Job) -> int:
    return observed.value(LAUNCHES, running.process.pid) or 0


def level(observed: Observed, running: Job) -> int | None:
    found: int | None = observed.value(
        "accel_exporter_probe_throttle_level", symbol="hipModuleLaunchKernel", library=str(running.library)
    )
    return found


def hits(observed: Observed) -> int:
    seen: int = observed.value("accel_exporter_probe_hits_total", symbol="hipModuleLaunchKernel")
    return seen


def test_launches_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few launches are probed, and the others estimated by the waits of the loop, each of which counts. When the job
    launches little each launch counts again, also at its end."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    running = Job(HIP, tmp_path)
    try:
        with governed(running, 0) as observed:
            every = running.work(0.5, waits=True)
            assert every.calls == counted(observed, running)
            assert level(observed, running) is None
        with governed(running, BOUND) as observed:
            for _ in range(60):
                if level(observed, running) == 1:
                    break
                running.work(0.5, waits=True)
            else:  # not asserted after the loop: without work it falls again
                pytest.fail("launches are not in windows")
            running.work(3, waits=True)
            seen = hits(observed)
            stretch = running.work(4, waits=True)
            assert hits(observed) - seen < 0.1 * stretch.calls
            until(lambda: level(observed, running) == 0, "all launches are counted again")
            whole = counted(observed, running)
            assert whole / (stretch.total - every.total) == pytest.approx(1, rel=0.1)
            waits = observed.value(CALLS, running.process.pid, api="hipStreamSynchronize")
            assert waits * 100 == stretch.total - every.total
            little = running.work(2, pause_us=100_000)
            assert little.calls == counted(observed, running) - whole
            running.end()
            until(lambda: running.process.pid not in observed.collector.ledger, "ended")
            assert whole + little.calls == counted(observed, running)
    finally:
        running.end()
