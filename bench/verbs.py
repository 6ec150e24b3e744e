"""What probing verbs costs a program that polls without pause, and one that posts: without the exporter, and with it.

Usage: python -m bench.verbs. Takes about a minute.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tests.bpf.verbs_node import Job, attached, build_standins, observe

TURNS, POLLS = 3_000, 100_000
SECONDS = 20.0
"""Two windows' intervals."""


def poll_ns(job: Job) -> float:
    """The mean nanoseconds of a poll that finds nothing."""
    spent = polls = 0.0
    while spent < SECONDS * 1e9:
        spent += job.step("idle", POLLS) / 1000 * POLLS
        polls += POLLS
    return spent / polls


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
            polled = poll_ns(job)
            share = observed.value("rdma_poll_cq_sampled_ratio") if observed is not None else 0.0
            turn = job.step("spin", TURNS)
            print(
                f"{name:<28} {1e9 / polled:>12.0f} empty polls/s {turn:>8.0f} ns for 1 post_send and 21 polls,"
                f" poll_cq probed {share:.1%} of the time"
            )


if __name__ == "__main__":
    main()
