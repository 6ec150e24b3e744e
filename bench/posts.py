"""Speed lost by a job that posts RDMA requests, within the bound on overhead: by CPU time, beside one without probes.

Two processes post in turn, in the same loop: one calls the stand-in's functions, the other one copies of them that
nothing probes, so that both see the same noise.
"""

from __future__ import annotations

import time
from statistics import median
from unittest.mock import patch

from bench.result import Result
from exporter.governor import files
from exporter.governor.governor import Governor
from exporter.governor.processes import cpu_seconds
from tests.bpf.observed import Observed
from tests.bpf.verbs_node import Job, attached, build_standins, observe
from tests.support import until

BOUND, ROUNDS, SECONDS, WITHIN, SETTLED = 0.01, 9, 5.0, 60.0, 20.0
CYCLE_SECONDS = files.CYCLE_SECONDS
BRIEF = {"ROUNDS": 3, "SECONDS": 0.5, "SETTLED": 1.0, "CYCLE_SECONDS": 0.5}
PATTERNS = {
    "an empty loop of post_send": (0, 0.0),
    "an empty loop of post_recv": (1, 0.0),
    "post_send after 2 µs of work": (0, 2e-6),
}
BARE = 2
"""Added to a call: the same one where nothing probes it."""
TRIED = 10_000
"""Turns of a loop that is timed."""
NEVER = {"poll_window_seconds": 0.01, "poll_interval_seconds": 1000.0}
BUDGET, NOISE = 1.0, 5.0
"""Percent that probes may take by calls and price, and that the clock may show: on a busy machine it is off by some."""


def run() -> list[Result]:
    """Takes five minutes; needs root and BPF."""
    build_standins()
    return [result for what, pattern in PATTERNS.items() for result in _measure(what, *pattern)]


def _measure(what: str, call: int, work: float) -> list[Result]:
    with Job() as bare, Job() as probed:
        for job in (bare, probed):
            job.create()
            job.connect()
        turns = round(work * TRIED / _storm(bare, 0.2, TRIED, BARE))
        unlike = median(a / b for a, b in _pairs(bare, probed, turns, call, SECONDS / 5))
        cycles = patch.object(files, "CYCLE_SECONDS", CYCLE_SECONDS)
        with cycles, observe(governor=Governor(BOUND), **NEVER) as observed:
            attached(observed, probed)
            until(lambda: observed.value("accel_exporter_overhead_seconds_total") is not None, "prices")
            every = _storm(probed, 0.5, turns, call)
            _throttle(observed, probed, turns, call)
            spent, cpu = _spent(observed), cpu_seconds(probed.pid)
            pairs = _pairs(bare, probed, turns, call, SECONDS)
            share = 100 * (_spent(observed) - spent) / (cpu_seconds(probed.pid) - cpu)
    lost = 100 * (1 - median(a / b for a, b in pairs) / unlike)
    each = median(it for it, _ in pairs)
    note = f"median of {ROUNDS} interleaved rounds of {SECONDS:g} s by CPU time, against as many before; a call takes"
    note += f" {each * 1e9:.0f} ns without probes, {every * 1e9:.0f} with one at each call"
    return [
        Result(f"{what}: probes", share, "%", BUDGET, "of the CPU time of the job, by calls and price"),
        Result(f"{what}: speed lost", lost, "%", NOISE, note),
    ]


def _spent(observed: Observed) -> float:
    return float(observed.value("accel_exporter_overhead_seconds_total"))


def _pairs(bare: Job, probed: Job, turns: int, call: int, seconds: float) -> list[tuple[float, float]]:
    return [
        (_storm(bare, seconds / 5, turns, call + BARE), _storm(probed, seconds, turns, call)) for _ in range(ROUNDS)
    ]


def _storm(job: Job, seconds: float, turns: int, call: int) -> float:
    """Return the seconds of CPU time of a call."""
    before = cpu_seconds(job.pid)
    calls = job.step("storm", 8, round(seconds * 1000), turns, call, 0)
    return (cpu_seconds(job.pid) - before) / calls


def _throttle(observed: Observed, job: Job, turns: int, call: int) -> None:
    """Post until posts are in windows, and for some cycles more. Raises RuntimeError if they never are."""
    end = time.monotonic() + WITHIN
    while not any(observed.values("accel_exporter_probe_throttle_level").values()):
        if time.monotonic() > end:
            raise RuntimeError("posts were never probed in windows")
        _storm(job, 0.5, turns, call)
    _storm(job, SETTLED, turns, call)
