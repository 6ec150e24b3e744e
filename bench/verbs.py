"""Cost of probing verbs: each post and completion, and a program that polls without pause."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from bench.result import Result
from exporter.bpf.libbpf import run_time_statistics
from tests.bpf.verbs_node import PROVIDER, Job, attached, build_standins, observe
from tests.support import until

WINDOW, INTERVAL = 0.1, 10.0
INTERVALS = 2
"""For which a program polls."""
REQUESTS = 5000
BRIEF = {"INTERVAL": 2.0, "REQUESTS": 1000}
ATTACHED = "accel_exporter_probe_attached"
NEVER = {"poll_window_seconds": 0.01, "poll_interval_seconds": 1000.0}
POST_BUDGET_NS, BUILT_BUDGET_NS = 2000, 4000


def run() -> list[Result]:
    """Takes about a minute."""
    build_standins()
    post, both = _run_time(**NEVER), _run_time()
    built = _run_time(extended=True, **NEVER)
    without, _ = _polls(nullcontext(), 1_000_000)
    windows, share = _polls(observe(poll_window_seconds=WINDOW, poll_interval_seconds=INTERVAL), 1_000_000)
    always, _ = _polls(observe(), 20_000)
    by = "empty polls in a second of the program's CPU time"
    clock = f"mean of {REQUESTS}, by the kernel's clock"
    return [
        Result(
            "programs run at a post_send of one request", post, "ns", POST_BUDGET_NS, f"its return included; {clock}"
        ),
        Result("programs run at ibv_wr_start to ibv_wr_complete of one", built, "ns", BUILT_BUDGET_NS, clock),
        Result("programs run at a poll_cq that returns its completion", both - post, "ns", None, clock),
        Result("polls without the exporter", without, "/s", None, by),
        Result(
            f"polls with windows of {WINDOW:g} s in {INTERVAL:g} s",
            windows,
            "/s",
            None,
            f"poll_cq probed {share:.1%} of the time",
        ),
        Result("time lost to windows", (1 - windows / without) * 100, "%", 5, "of a thread that only polls"),
        Result(
            "polls while always probed", always, "/s", None, "--collector.verbs.poll-window-seconds as its interval"
        ),
    ]


def _run_time(extended: bool = False, **settings: float) -> float:
    """Nanoseconds in BPF programs for a request that is posted, completed and polled for."""
    with observe(**settings) as observed, Job() as job:
        attached(observed, job)
        job.create(extended=2 * extended)
        job.connect()
        post = job.build if extended else job.post
        until(lambda: not extended or observed.values(ATTACHED, symbol="wr_complete"), "the extended calls probed")
        post(8, 1)  # what is met for the first time costs more
        statistics = run_time_statistics()
        before = observed.value("accel_exporter_probe_run_seconds_total") or 0
        for _ in range(REQUESTS):
            post(8, 1)
            job.step("complete", 1, 0)
            job.step("poll", 1)
        after = observed.value("accel_exporter_probe_run_seconds_total")
        statistics.close()
        return float(after - before) / REQUESTS * 1e9


def _polls(exporter: AbstractContextManager[Any], at_once: int) -> tuple[float, float]:
    """Polls that find nothing, in a second of CPU time, for what else runs here does not matter; the share probed."""
    with exporter as observed, Job() as job:
        if observed is not None:
            attached(observed, job)
        polls, before, until = 0, _cpu_seconds(job.pid), time.monotonic() + INTERVALS * INTERVAL
        while time.monotonic() < until:
            job.step("idle", at_once)
            polls += at_once
        share = observed.value("rdma_poll_cq_sampled_ratio", library=str(PROVIDER)) if observed is not None else 0.0
        return polls / (_cpu_seconds(job.pid) - before), share


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
