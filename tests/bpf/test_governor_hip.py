"""Launches of HIP without pause: the governor keeps what the probes take to its bound, and counts stay right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.bpf import process_links
from exporter.governor import files
from exporter.governor.governor import Governor
from exporter.hip.records import LAUNCHES as LAUNCH_ROWS
from tests.bpf.hip_node import CALLS, LAUNCHES, observe
from tests.bpf.observed import Observed
from tests.bpf.working_job import HIP, Job, background
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="cost of probes", on="stand-in"),
]

BOUND = 0.01
TURNS = replace(
    HIP,
    declarations=HIP.declarations + " int hipSetDevice(int);",
    wait=f"{{ static int at; hipSetDevice(at ^= 1); }} {HIP.wait}",
)
"""Launches on two devices in turns."""


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


def in_windows(observed: Observed, running: Job) -> None:
    """Work until launches are in windows; they are while it works on."""
    for _ in range(60):
        if level(observed, running) == 1:
            return
        running.work(0.5, waits=True)
    pytest.fail("launches are not in windows")  # not asserted after the loop: without work the level falls again


def by_device(observed: Observed, running: Job) -> dict[int, int]:
    """Launches by the device in keys, with those estimated."""
    [process] = [it for it in observed.collector.ledger.processes() if it.pid == running.process.pid]
    return {key.device: value.calls for key, value in process.activity.of(LAUNCH_ROWS)}


def test_windows_of_two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches between windows are estimated for the device of those within: half of them each."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with Job(TURNS, tmp_path) as running, governed(running, BOUND) as observed:
        running.work(0.5, waits=True)
        in_windows(observed, running)
        before = by_device(observed, running)
        stretch = running.work(4, waits=True)
        until(lambda: level(observed, running) == 0, "all launches are counted again")
        after = by_device(observed, running)
        assert {1, 2} == after.keys() - {0} and after.get(0, 0) == before.get(0, 0)
        for device in (1, 2):
            assert after[device] - before[device] == pytest.approx(stretch.calls / 2, rel=0.15)


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
            in_windows(observed, running)
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


@pytest.mark.skipif(not process_links.supported(), reason="this kernel cannot attach to one process")
def test_jobs_beside_one_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch counts of a job that launches little, and of one that starts later: from when it was found."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with Job(HIP, tmp_path) as running, Job(HIP, tmp_path) as other, governed(running, BOUND) as observed:
        until(lambda: observed.attached(other.process.pid, {str(other.library)}), "attached")
        in_windows(observed, running)
        with background(lambda: running.work(0.2, waits=True)), Job(HIP, tmp_path) as late:
            little = other.work(2, pause_us=100_000)
            assert little.total == counted(observed, other)
            late.work(0.5, pause_us=100_000)
            begun = until(lambda: counted(observed, late), "its launches are known")
            assert 0 == observed.value("gpu_hip_seen_from_start", late.process.pid)
            little = late.work(2, pause_us=100_000)
            assert begun + little.calls == counted(observed, late)
            assert level(observed, running) == 1
