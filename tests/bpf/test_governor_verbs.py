"""Posts without pause: the governor keeps what the probes take to its bound, and counts stay right or are absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from exporter.bpf import process_links
from exporter.governor import files
from exporter.governor.governor import Governor
from exporter.governor.processes import cpu_seconds
from tests.bpf.observed import Observed
from tests.bpf.verbs_node import PROVIDER, Job, attached, build_standins, observe
from tests.bpf.working_job import background
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="cost of probes", on="stand-in"),
]

BOUND, BYTES, TRIED = 0.01, 1000, 10_000
NEVER = {"poll_window_seconds": 0.01, "poll_interval_seconds": 1000.0}


@dataclass(frozen=True)
class Stretch:
    """Some time of the job: calls in it, and its CPU time in seconds."""

    calls: int
    cpu: float

    @property
    def each(self) -> float:
        """Seconds of a call."""
        return self.cpu / self.calls


def storm(
    job: Job, seconds: float, turns: int = 0, receives: bool = False, pause_us: int = 0, bare: bool = False
) -> Stretch:
    """Posts for so long, after so many turns of a loop each; `bare`: by a function that nothing probes."""
    before = cpu_seconds(job.pid)
    calls = job.step("storm", 8, round(seconds * 1000), turns, receives + 2 * bare, pause_us)
    assert calls > 0
    return Stretch(calls, cpu_seconds(job.pid) - before)


@contextmanager
def governed(*jobs: Job, bound: float = BOUND) -> Iterator[Observed]:
    """The collector under this bound, once it counts the jobs and has prices."""
    build_standins()
    with observe(governor=Governor(bound), **NEVER) as observed:
        for job in jobs:
            attached(observed, job).create()
            job.connect()
        until(lambda: observed.value("accel_exporter_overhead_seconds_total") is not None, "prices")
        yield observed


def level(observed: Observed) -> int | None:
    name = "accel_exporter_probe_throttle_level"
    found: int | None = observed.value(name, symbol="post_send", library=str(PROVIDER))
    return found


def throttle(observed: Observed, job: Job, turns: int, receives: bool = False) -> int:
    """Posts until they are in windows for some cycles; how often."""
    calls = 0
    for _ in range(60):
        if level(observed) == 1:
            break
        calls += storm(job, 0.5, turns, receives).calls
    else:  # not asserted after the loop: without work it falls again
        pytest.fail("posts are not in windows")
    return calls + storm(job, 3, turns, receives).calls


def posts(observed: Observed, job: Job) -> dict[str, int]:
    return {dict(key)["qp"]: value for key, value in observed.values("rdma_post_send_calls_total", job.pid).items()}


def total(observed: Observed, metric: str, job: Job) -> int:
    return sum(observed.values(metric, job.pid).values())


def hits(observed: Observed, symbol: str) -> int:
    """Calls that were seen, of all processes of this machine."""
    seen: int = observed.value("accel_exporter_probe_hits_total", symbol=symbol) or 0
    return seen


def test_a_job_that_posts_without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that does nothing but post a tenth of the calls is probed, and how often it posts is not known:
    its counts are absent. Of a process that uses the same provider and posts little each post counts, in its queue
    pair. When the first one calms down all its posts are probed again within a minute."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with Job() as job, Job() as other:
        with governed(job, bound=0) as observed:
            traced = storm(job, 0.5)
            assert posts(observed, job).popitem()[1] == traced.calls
            assert level(observed) is None
        with governed(job, other) as observed:
            with background(lambda: storm(other, 0.2, pause_us=10_000)) as its:
                throttle(observed, job, 0)
                seen, stretch = hits(observed, "post_send"), storm(job, 4)
                assert hits(observed, "post_send") - seen < 0.1 * stretch.calls
                assert {} == posts(observed, job) and 0 == total(observed, "rdma_send_bytes_total", job)
                until(lambda: level(observed) == 0, "all posts are probed again")
                kept = hits(observed, "post_send")
                little = storm(job, 1, pause_us=10_000)
                assert little.calls <= hits(observed, "post_send") - kept
            if process_links.supported():
                [(qp, calls)] = posts(observed, other).items()
                assert qp != "unknown" and calls == sum(it.calls for it in its)
                assert total(observed, "rdma_send_bytes_total", other) == calls * BYTES


@pytest.mark.parametrize(("work", "within"), [(1.3, 0.2), (3.0, 0.1)])
def test_posts_of_a_job_that_works_are_estimated(monkeypatch: pytest.MonkeyPatch, work: float, within: float) -> None:
    """The probes take the permitted share of the CPU time of a job that also works, in parts of their time for a post.
    Posts that were not seen are estimated by CPU time, for an unknown queue pair: the known queue pair has the posts
    that were seen. Nothing is lost when the job ends. Other work on the machine changes the time that the probes take:
    the estimate has the same error, which is greater if the job works less."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 1.0)
    with Job() as job, governed(job) as observed:
        price = observed.collector.probes.price("post_send")
        turns = round(work * price * TRIED / storm(job, 0.2, TRIED, bare=True).each)
        bare, probed = storm(job, 0.2, turns, bare=True), storm(job, 0.2, turns)
        within += abs(probed.each - bare.each - price) / bare.each
        before = probed.calls + throttle(observed, job, turns)
        seen = hits(observed, "post_send")
        stretch = storm(job, 10, turns)
        assert stretch.calls * price / stretch.cpu > 10 * BOUND, "the job posts enough for this test"
        # Windows are by the clock: on a busy machine the job gets more or less of them than of the time between.
        assert (hits(observed, "post_send") - seen) * price / stretch.cpu < 2 * BOUND
        until(lambda: level(observed) == 0, "all posts are probed again")
        now = posts(observed, job)
        assert sum(now.values()) / (before + stretch.calls) == pytest.approx(1, rel=within)
        [known] = now.keys() - {"unknown"}
        assert 0 < now[known] < now["unknown"]
        ratio = total(observed, "rdma_send_bytes_total", job) / BYTES / sum(now.values())
        assert ratio == pytest.approx(1, rel=0.02)
        little = storm(job, 1, pause_us=10_000)
        assert little.calls == posts(observed, job)[known] - now[known]
        assert posts(observed, job)["unknown"] == now["unknown"]
        last = posts(observed, job)
        job.process.kill()
        until(lambda: job.pid not in observed.collector.ledger, "its end is known")
        assert last == posts(observed, job)


def test_receives_without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receives are bounded with sends, in the same windows."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with Job() as job, governed(job) as observed:
        throttle(observed, job, 0, receives=True)
        seen, stretch = hits(observed, "post_recv"), storm(job, 3, receives=True)
        assert hits(observed, "post_recv") - seen < 0.1 * stretch.calls


def test_requests_before_a_gap_are_not_taken_for_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was posted in a window and one in a gap may have one wr_id: the completion is of neither."""
    with Job() as job, observe() as observed:
        attached(observed, job).create()
        job.connect()
        [file] = observed.collector.probes.sampled_files("posts").values()

        def completed() -> int:
            job.step("complete", 1, 0)
            job.step("poll", 1)
            return int(observed.value("rdma_completions_unmatched_total") or 0)

        before = completed()
        job.post(8, 1, same=1)
        assert before == completed()
        job.post(8, 1, same=1)
        file.probe(False)
        assert before + 1 == completed()
        job.post(8, 1, same=1)
        file.probe(True)
        assert before + 2 == completed()
        job.post(8, 1, same=1)
        assert before + 2 == completed()
