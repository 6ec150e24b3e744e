"""poll_cq is probed all the time where it is called seldom, and in windows where that would cost too much."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.bpf.observed import Observed
from tests.bpf.verbs_node import PROVIDER, Job, attached, build_standins, observe
from tests.support import until

pytestmark = pytest.mark.needs_bpf

LENGTH, INTERVAL = 0.1, 1.0
DONE, LATENCY = "rdma_completions_total", "rdma_work_request_latency_seconds"


@contextmanager
def windows() -> Iterator[Observed]:
    build_standins()
    with observe(poll_window_seconds=LENGTH, poll_interval_seconds=INTERVAL) as observed:
        yield observed


def files(observed: Observed) -> list[Any]:
    """The stand-in provider: others use providers on this machine, too."""
    return [it for it in observed.collector.windows.files.values() if it.library.path == str(PROVIDER)]


def stays(observed: Observed) -> bool:
    found = files(observed)
    return bool(found) and all(it.stays for it in found)


def spin(observed: Observed, job: Job, seconds: float) -> list[tuple[float, float]]:
    """Polls without pause for so long, also where this process is late: many steps are sent ahead. Return how long the
    provider had been probed at times meanwhile.
    """
    ahead, polls, deadline = 300, 20_000, time.monotonic() + seconds
    assert job.process.stdin and job.process.stdout
    job.process.stdin.write(f"idle {polls}\n" * ahead)
    begun = time.monotonic()
    while time.monotonic() < deadline:
        job.step("idle", polls)
    assert not stays(observed)
    [file] = files(observed)
    times = [(at, probed) for at, probed in file.history if begun < at <= deadline]
    for _ in range(ahead):
        job.process.stdout.readline()
    return times


def test_seldom_polled_is_seen_whole() -> None:
    """A program that polls when there is something: after one window every completion is counted, with its latency,
    also where all requests have the same wr_id."""
    with windows() as observed, attached(observed, Job()) as job:
        until(lambda: stays(observed), "stays")
        job.create()
        for _ in range(150):
            job.post(8, 1, same=1)
            job.step("complete", 1, 0)
            assert 1 == job.step("poll", 1)
            job.step("sleep", 10_000)
        assert 150 == observed.value(DONE, job.pid, status="SUCCESS")
        assert 150 == sum(observed.value(LATENCY, job.pid, opcode="RDMA_WRITE").counts)
        assert stays(observed)


def test_a_thread_that_polls_without_pause_is_left_alone() -> None:
    """As soon as it begins the probes go, and come back in windows: it loses little more than their share of its time.
    When it calms down it is seen whole again."""
    with windows() as observed, attached(observed, Job()) as job:
        until(lambda: stays(observed), "stays")
        hits = observed.value("accel_exporter_probe_hits_total", symbol="poll_cq")
        until(lambda: (job.step("idle", 20_000), not stays(observed))[1], "detached")
        times = spin(observed, job, 5 * INTERVAL)
        assert (times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0]) < 3 * LENGTH / INTERVAL
        assert observed.value("accel_exporter_probe_hits_total", symbol="poll_cq") > hits
        until(lambda: stays(observed), "stays again")


def test_extended_polls_are_left_alone_as_well() -> None:
    """A thread that spins in ibv_start_poll loses those probes, and no others, until it calms down."""

    def extended(observed: Observed) -> Any:
        return next((it for it in files(observed) if "start_poll" in it.library.functions), None)

    with windows() as observed, attached(observed, Job()) as job:
        job.step("extend")
        job.create(extended=2)
        job.connect()
        until(lambda: extended(observed) and stays(observed), "stays")
        until(lambda: (job.step("idlex", 20_000), not extended(observed).stays)[1], "detached")
        assert [True] == [it.stays for it in files(observed) if it is not extended(observed)]
        until(lambda: stays(observed), "stays again")
        for _ in range(20):
            job.build(8, 1)
            job.step("complete", 1, 0)
            assert 1 == job.step("pollex", 1, 3)
            job.step("sleep", 10_000)
        assert 20 == observed.value(DONE, job.pid, status="SUCCESS")
        assert 20 == sum(observed.value(LATENCY, job.pid, opcode="RDMA_WRITE").counts)


def test_nodes_look_at_the_same_time() -> None:
    """Windows begin with whole multiples of the interval by the clock, whenever the exporter was started."""
    time.sleep(1.5 * INTERVAL - time.time() % INTERVAL)  # in the middle of one
    with windows() as observed:
        begun: list[float] = []
        before = observed.collector.windows.tick
        observed.collector.windows.tick = lambda: (begun.append(time.time()), before())

        def aligned() -> bool:
            """Return whether the last three began in time: on a busy machine one may begin late."""
            last = begun[-3:]
            steps = [round(after - at) for at, after in pairwise(last)]
            return [INTERVAL] * 2 == steps and all(at % INTERVAL < 0.3 for at in last)

        until(aligned, lambda: begun)


def test_the_share_that_is_seen() -> None:
    """Completions outside of windows are not counted; the share of time that was probed shows how many are."""
    with windows() as observed, attached(observed, Job()) as job:
        done, deadline = 0, time.monotonic() + 4 * INTERVAL
        while time.monotonic() < deadline or done < 400:
            job.post(0, 1)
            job.step("complete", 1, 0)
            done += job.step("poll", 1)
            job.step("idle", 5000)
        share = observed.value("rdma_poll_cq_sampled_ratio", library=str(PROVIDER))
        assert 0.01 < share < 0.5
        assert 1 <= observed.value(DONE, job.pid, status="SUCCESS") <= done / 2


def test_polls_are_in_the_overhead() -> None:
    """The cost of probed polls is in the overhead, though their probes are attached separately."""
    build_standins()
    with observe() as observed, attached(observed, Job()) as job:
        until(lambda: observed.value("accel_exporter_overhead_seconds_total") is not None, "prices")
        before = observed.value("accel_exporter_overhead_seconds_total")
        cost = observed.collector.node.trial.costs.of("emulated", returns=True)
        job.step("idle", 10_000)
        assert observed.value("accel_exporter_overhead_seconds_total") - before >= 10_000 * cost
