"""What probing verbs costs a program that polls without pause, and one that posts: without the exporter, and with it.

Usage: python -m bench.verbs. Takes about a minute.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tests.bpf.verbs_node import Job, attached, build_standins, observe

TURNS, POLLS = 3_000, 1_000_000
SECONDS = 20.0
"""Two windows' intervals."""


def polls_per_second(job: Job) -> float:
    """Polls that find nothing, in a second of the program's CPU time: what else runs on the machine does not matter."""
    polls, before, until = 0, cpu_seconds(job.pid), time.monotonic() + SECONDS
    while time.monotonic() < until:
        job.step("idle", POLLS)
        polls += POLLS
    return polls / (cpu_seconds(job.pid) - before)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    build_standins()
    cases: list[tuple[str, AbstractContextManager[Any]]] = [
        ("without the exporter", nullcontext()),
        ("windows of 0.1 s in 10 s", observe(poll_window_seconds=0.1, poll_interval_seconds=10.0)),
        ("poll_cq probed all the time", observe()),
    ]
    for name, exporter in cases:
        with exporter as observed, Job() as job:
            if observed is not None:
                attached(observed, job)
            polled = polls_per_second(job)
            share = observed.value("rdma_poll_cq_sampled_ratio") if observed is not None else 0.0
            turn = job.step("spin", TURNS)
            print(
                f"{name:<28} {polled:>12.0f} empty polls/s {turn:>8.0f} ns for 1 post_send and 21 polls,"
                f" poll_cq probed {share:.1%} of the time"
            )


if __name__ == "__main__":
    main()
