"""The collector: the processes that are queried, the samples of their answers, and for how long these count."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.collectors import ras as module
from exporter.collectors.ras import FLAGS, Ras
from exporter.loopback import Endpoint
from exporter.resolve.communicators import Communicators, Member
from exporter.views import prometheus
from tests.nodes import make_node
from tests.standins import ras
from tests.support import PATIENCE, until

HASH = f"{0xC0FFEE:016x}"


@pytest.fixture
def server() -> Iterator[ras.RasServer]:
    made = ras.RasServer(ras.report(ras.communicator(0xC0FFEE, [ras.rank(0, 23), ras.rank(1, 20, error=3)])))
    yield made
    made.close()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, server: ras.RasServer) -> Iterator[Callable[..., Ras]]:
    """Makes and starts a collector with the stand-in at every endpoint."""
    namespace = Path("/proc/self/ns/net").stat().st_ino
    monkeypatch.setattr(module, "endpoint", lambda proc, pid: Endpoint(namespace, server.port))
    made: list[Ras] = []

    def start(*members: Member, **settings: Any) -> Ras:
        communicators = Communicators()
        communicators.replace(members)
        chosen = {flag.name: flag.default for flag in FLAGS} | {"interval": 1.0, "timeout": PATIENCE} | settings
        made.append(Ras(make_node(chosen, None, None, None, communicators=communicators)))
        made[-1].start()
        return made[-1]

    yield start
    for it in made:
        it.close()


def values(collector: Ras) -> dict[tuple[str, ...], object]:
    """Return the values of the collector's samples, by name and label values."""
    found = {(prometheus.name(it.metric), *it.labels.values()): it.value for it in collector.collect()}
    return {key: value for key, value in found.items() if key[0].startswith("nccl_")}


def member(rank: int, nranks: int = 2, pid: int = 0) -> Member:
    return Member(pid or os.getpid(), HASH, rank, nranks)


def test_answers_are_shown(make: Callable[..., Ras], server: ras.RasServer) -> None:
    """Counts, lag and errors by rank; missing ranks by state, 0 where all answered."""
    collector = make(member(0))
    until(lambda: server.queries)
    until(lambda: values(collector).get(("nccl_ras_communicators",)))
    found = values(collector)

    assert 23 == found["nccl_ras_rank_collectives_total", HASH, "0", "10.0.0.1", "AllReduce"]
    assert (0, 3) == tuple(found["nccl_ras_rank_lag", HASH, rank, "10.0.0.1"] for rank in "01")
    assert 1 == found["nccl_ras_ranks_failed", HASH, "async", "3"]
    assert 2 == found["nccl_ras_communicator_ranks", HASH]
    assert [0, 0, 0] == [found["nccl_ras_ranks_missing", HASH, it] for it in ("dead", "unresponsive", "absent")]
    assert 1 <= int(str(found["nccl_ras_queries_total", "answered"]))


def test_missing_ranks(make: Callable[..., Ras], server: ras.RasServer) -> None:
    """A rank that stopped is named, with its host."""
    server.answer = ras.report(ras.communicator(0xC0FFEE, [ras.rank(0, 23)], [ras.missing(1, dead=True)]))
    collector = make(member(0))
    until(lambda: ("nccl_ras_rank_missing", HASH, "1", "10.0.0.2", "dead") in values(collector))

    found = values(collector)
    assert (1, 1) == (found["nccl_ras_ranks_missing", HASH, "dead"], found["nccl_ras_processes_dead",])


def test_a_job_is_queried_once(make: Callable[..., Ras], server: ras.RasServer) -> None:
    """Several processes behind one endpoint are one query a round, and other ranks than 0 are not queried at all."""
    collector = make(member(0), member(0, pid=os.getppid()), member(1, pid=1), interval=3600.0)
    collector._poller.poll()

    assert 1 == server.queries


def test_no_rank_zero(make: Callable[..., Ras], server: ras.RasServer) -> None:
    """Without a rank 0 here nothing is queried, and there is no sample of any job."""
    collector = make(member(1))
    time.sleep(1.3)

    assert 0 == server.queries
    assert {("nccl_ras_queries_total", "answered"): 0, ("nccl_ras_queries_total", "failed"): 0} == values(collector)


def test_silence(make: Callable[..., Ras], server: ras.RasServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that hangs is counted and logged; its last answer is shown for a while, then no more."""
    intervals = module.KEPT
    monkeypatch.setattr(module, "KEPT", 1000)  # for a busy machine: until that was seen
    collector = make(member(0), timeout=1.0)
    until(lambda: ("nccl_ras_communicators",) in values(collector))
    server.hang.set()
    until(lambda: list(collector.problems()))

    assert ["did not answer within 1 s" in it for it in collector.problems()] == [True]
    assert ("nccl_ras_communicators",) in values(collector)
    monkeypatch.setattr(module, "KEPT", intervals)
    until(lambda: ("nccl_ras_communicators",) not in values(collector))


def test_garbage(make: Callable[..., Ras], server: ras.RasServer) -> None:
    """An answer that is no report is counted and logged."""
    server.answer = "{}"
    collector = make(member(0))
    until(lambda: list(collector.problems()))

    assert "no RAS report" in next(collector.problems())
    assert 1 <= int(str(values(collector)["nccl_ras_queries_total", "failed"]))


def test_speakers() -> None:
    """Queried is rank 0 of its largest communicator: of a job split into groups, the rank 0 of the whole."""
    communicators = Communicators()
    whole = [Member(pid, "a" * 16, pid, 4) for pid in range(4)]
    halves = [Member(pid, "b" * 16, pid % 2, 2) for pid in range(4)]
    communicators.replace([*halves, *whole, Member(9, "c" * 16, 0, 1)])

    assert [0, 9] == communicators.rank_zero_pids()
