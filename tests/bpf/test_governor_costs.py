"""The cost of probes of RDMA and cuFile counts for the process that makes the calls: calls times price."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from exporter.collectors.verbs import Verbs
from exporter.verbs.functions import HITS
from tests.bpf import test_cufile
from tests.bpf.observed import Observed
from tests.bpf.test_cufile import Storage, memory_file  # noqa: F401  # a fixture
from tests.bpf.verbs_node import Job, attached, build_standins, observe
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="cost of probes", on="stand-in")]


def hits(observed: Observed, pid: int) -> dict[str, tuple[int, int]]:
    rows = observed.collector.object.maps["process_hits"].items()
    return {HITS[key.hit]: (seen.calls, seen.requests) for key, seen in rows if key.tgid == pid}


def costs(observed: Observed) -> Callable[[int], float]:
    verbs = observed.collector
    assert isinstance(verbs, Verbs)
    until(lambda: verbs.probes.price("post_send") is not None, "prices")
    return lambda pid: sum((it.posts + it.other) for it in verbs.charged.of([pid]).values())


def test_posts_and_polls_of_a_process() -> None:
    build_standins()
    with observe() as observed, Job() as job, Job() as other:
        for it in (job, other):
            attached(observed, it).create()
            it.connect()
        cost = costs(observed)
        for _ in range(23):
            job.post(8, 1)
        for _ in range(3):
            job.post(8, 5)
        for _ in range(7):
            job.step("receive", 8, 2)
        for _ in range(11):
            job.step("poll", 1)
        expected = {"post_send": (26, 38), "post_recv": (7, 14), "poll_cq": (11, 0)}
        assert expected == hits(observed, job.pid)
        assert {} == hits(observed, other.pid) and cost(other.pid) == 0
        price, trial = observed.collector.probes.price, observed.collector.node.trial.costs
        assert trial
        least = 26 * price("post_send") + 7 * price("post_recv") + 11 * price("poll_cq")
        assert least < cost(job.pid) < least + (12 + 7) * trial.emulated
        assert price("post_send") > trial.of("emulated", returns=True), "the programs are part of the price"
        job.process.kill()
        until(lambda: not hits(observed, job.pid), "its rows are removed")


def test_extended_posts_of_a_process() -> None:
    build_standins()
    with observe() as observed, Job() as job:
        attached(observed, job).create(extended=2)
        job.connect()
        job.build(8, 1)
        until(lambda: observed.values("accel_exporter_probe_attached", symbol="wr_complete"), "the calls are probed")
        cost, before = costs(observed), hits(observed, job.pid).get("wr_complete", (0, 0))
        was = cost(job.pid)
        for _ in range(5):
            job.build(8, 3)
        calls, requests = hits(observed, job.pid)["wr_complete"]
        assert (calls - before[0], requests - before[1]) == (5, 15)
        price = observed.collector.probes.price
        each = 5 * (price("wr_start") + price("wr_complete")) + 15 * (price("wr_send") + price("wr_set_sge"))
        assert cost(job.pid) - was == pytest.approx(each)
        assert each > 0


def test_polls_that_may_be_many_count_once_a_span() -> None:
    """A poll adds nothing to a table of its process where threads are watched for how often they poll."""
    build_standins()
    with observe(poll_window_seconds=0.1, poll_interval_seconds=0.2) as observed, Job() as job:
        attached(observed, job)

        def polled() -> bool:
            job.step("idle", 10)
            return hits(observed, job.pid).get("poll_cq", (0, 0))[0] > 20

        until(polled, "polls are counted")


def test_calls_of_cufile(tmp_path: Path, memory_file: Path) -> None:  # noqa: F811
    build_standins()
    with test_cufile.observe() as observed, Storage() as job, Storage() as other:
        cufile = observed.collector
        for it in (job, other):
            until(partial(observed.attached, it.pid, it.libraries), "attached")
        job.run(f"handle = register({str(memory_file)!r})")
        for _ in range(23):
            job.run("read(handle, 10)")
        price = cufile.probes.price
        own = price("cuFileHandleRegister") + 23 * price("cuFileRead")
        assert own > 0
        assert {job.pid: pytest.approx(own), other.pid: 0.0} == cufile.costs([job.pid, other.pid])
        pid = job.pid
        job.process.kill()
        until(lambda: cufile.costs([pid]) == {pid: 0.0}, "its rows are removed")
