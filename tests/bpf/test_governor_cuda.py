"""Launches without pause: the governor keeps what the probes take to its bound, and counts stay right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from exporter.bpf import process_links
from exporter.governor import files
from exporter.governor.governor import Governor
from exporter.stack_profiles.model import StackSample
from exporter.stack_profiles.published import StackProfiles
from tests.bpf.cuda_node import observe
from tests.bpf.observed import Observed
from tests.bpf.working_job import CUDA, Job, Stretch, background
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="cost of probes", on="stand-in"),
]

BOUND = 0.01
LAUNCHES_EVERY = 1000
"""The default of --collector.cuda.profile-launches-every."""
OWN = 10_000
"""Turns of a loop between two launches: some microseconds, so that a wait after 100 launches is within the bound."""


@contextmanager
def job(folder: Path) -> Iterator[Job]:
    made = Job(CUDA, folder)
    try:
        yield made
    finally:
        made.end()


@contextmanager
def governed(running: Job, bound: float, profiles: StackProfiles | None = None) -> Iterator[Observed]:
    """The collector under this bound, once it counts the job and has prices."""
    with observe(governor=Governor(bound), layers="driver", stack_profiles=profiles) as observed:
        until(lambda: observed.attached(running.process.pid, {str(running.library)}), "attached")
        until(lambda: observed.value("accel_exporter_overhead_seconds_total") is not None, "prices")
        yield observed


def counted(observed: Observed, running: Job) -> int:
    launches: int | None = observed.value("gpu_cuda_kernel_launch_calls_total", running.process.pid)
    return launches or 0


def level(observed: Observed, running: Job) -> int | None:
    name = "accel_exporter_probe_throttle_level"
    found: int | None = observed.value(name, symbol="cuLaunchKernel", library=str(running.library))
    return found


def throttle(observed: Observed, running: Job, own: int, waits: bool) -> None:
    """Launches until they are in windows for some cycles."""
    for _ in range(60):
        if level(observed, running) == 1:
            break
        running.work(0.5, own, waits)
    else:  # not asserted after the loop: without work it falls again
        pytest.fail("launches are not in windows")
    running.work(3, own, waits)


def hits(observed: Observed) -> int:
    """Launches that were seen, of all processes of this machine."""
    seen: int = observed.value("accel_exporter_probe_hits_total", symbol="cuLaunchKernel")
    return seen


def test_a_job_that_only_launches_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of launches without pause a tenth is probed. The waits between them cost too much too, so that there is
    nothing by which launches could be estimated: they are unknown, and every launch counts again when the job
    launches little. Of a process that uses the same file and launches little every launch counts all the time."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with job(tmp_path) as running, job(tmp_path) as other:
        with governed(running, 0) as observed:
            traced = running.work(0.5, waits=True)
            assert traced.calls == counted(observed, running)
            assert level(observed, running) is None
        with governed(running, BOUND) as observed:
            until(lambda: observed.attached(other.process.pid, {str(other.library)}), "attached")
            with background(lambda: other.work(0.2, pause_us=100_000)) as its:
                throttle(observed, running, 0, waits=True)
                seen = hits(observed)
                stretch = running.work(4, waits=True)
                assert hits(observed) - seen < 0.1 * stretch.calls
                until(lambda: level(observed, running) == 0, "all launches are counted again")
            whole, all_seen = shown(observed, running)
            assert whole is not None and whole <= stretch.total - traced.total
            assert 0 == all_seen
            little = running.work(2, pause_us=100_000)
            assert (whole + little.calls, 0) == shown(observed, running)
            assert not process_links.supported() or its[-1].total == counted(observed, other)


def test_launches_are_estimated_by_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that were not seen are as many for each wait as those that were, if waits are so few that all count."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with job(tmp_path) as running, governed(running, BOUND) as observed:
        begun = running.work(0.1, OWN, waits=True).total
        throttle(observed, running, OWN, waits=True)
        running.work(4, OWN, waits=True)
        until(lambda: level(observed, running) == 0, "all launches are counted again")
        total = running.work(0.1, OWN, waits=True).total
        assert counted(observed, running) / total == pytest.approx(1, rel=0.1), begun


def test_profiles_have_the_launches_between_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of a profile of launches is the metric's, also after the process has ended."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with job(tmp_path) as running, governed(running, BOUND, StackProfiles(wanted=True)) as observed:
        pid = running.process.pid
        throttle(observed, running, OWN, waits=True)
        running.work(2, OWN, waits=True)
        until(lambda: level(observed, running) == 0, "all launches are counted again")
        rows, total = LAUNCHES_EVERY * (os.cpu_count() or 1), counted(observed, running)
        samples, comments = profile_of(observed, pid)
        assert sum(it.values[0] for it in samples if not it.stack) > 10 * rows
        assert sum(it.values[0] for it in samples) == pytest.approx(total, abs=rows)
        assert any(it.startswith(f"process {pid}: ") and "an estimate" in it for it in comments)
        running.end()
        until(lambda: pid not in observed.collector.ledger, "it has ended")
        samples, _ = profile_of(observed, pid)
        assert sum(it.values[0] for it in samples) == pytest.approx(total, abs=rows)


def profile_of(observed: Observed, pid: int) -> tuple[list[StackSample], tuple[str, ...]]:
    """Return the launches of a process in the profile, and the profile's comments."""
    profile = observed.collector.node.stack_profiles.source.launches()
    return [it for it in profile.samples if it.labels.get("pid") == str(pid)], profile.comments


def shown(observed: Observed, running: Job) -> tuple[int | None, int | None]:
    """Launches, None where they are not known, and whether all are among them."""
    pid = running.process.pid
    return observed.value("gpu_cuda_kernel_launch_calls_total", pid), observed.value("gpu_cuda_seen_from_start", pid)


@pytest.mark.parametrize("alone", [True, False], ids=["own links", "no own links"])
def test_a_job_that_starts_beside_one_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    """A job with no other calls, by which launches could be estimated. With a link of its own each launch counts from
    about its start, else they are estimated after some windows; and each one counts once windows have ended. Where some
    of the first are in no count that is marked."""
    if alone and not process_links.supported():
        pytest.skip("this kernel cannot attach to one process")
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    if not alone:
        monkeypatch.setattr(process_links, "supported", lambda: False)
    with job(tmp_path) as running, governed(running, BOUND) as observed, ExitStack() as jobs:
        throttle(observed, running, 0, waits=True)
        with background(lambda: running.work(0.2, waits=True)):
            late = jobs.enter_context(job(tmp_path))

            def launch() -> Stretch:
                return late.work(0.5, own=3000, pause_us=10_000)

            until(lambda: launch() and shown(observed, late)[0] is not None, "its launches are known")
            before = launch().total
            calls, whole = shown(observed, late)
            assert (before, 1) == (calls, whole) or 0 == whole
            if alone:
                made = launch().calls
                assert (calls + made, whole) == shown(observed, late)
            else:
                until(lambda: launch() and shown(observed, late)[0] != calls, "estimated, or unknown on a busy machine")
            assert level(observed, running) == 1
        until(lambda: level(observed, running) == 0, "all launches are counted again")
        calls, whole = shown(observed, late)
        assert calls is not None
        made = launch().calls
        assert (calls + made, whole) == shown(observed, late)
