"""Groups of messages without pause: the governor keeps what the probes take to its bound, and counts stay right."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exporter.governor import files
from exporter.governor.governor import Governor
from tests.bpf.nccl_node import NcclNode, observe
from tests.bpf.working_job import Api, Job, Stretch
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="cost of probes", on="stand-in"),
]

PEERS, COUNT, BOUND = 64, 1000, 0.01
NCCL = Api(
    "libnccl.so.2",
    "struct id { char bytes[128]; };"
    "int ncclCommInitRank(void **, int, struct id, int), ncclGroupStart(void), ncclGroupEnd(void);"
    "int ncclSend(const void *, unsigned long, int, int, void *, void *);"
    "int ncclRecv(const void *, unsigned long, int, int, void *, void *);",
    'void *comm; struct id id = {"governor"}; ncclCommInitRank(&comm, 64, id, 0);',
    f"ncclGroupStart(); for (int peer = 0; peer < {PEERS}; peer++) {{"
    f" ncclSend(0, {COUNT}, 7, peer, comm, 0); ncclRecv(0, {COUNT}, 7, peer, comm, 0); }} ncclGroupEnd();",
    at_once=1,
)


def job(folder: Path) -> Job:
    return Job(NCCL, folder)


@contextmanager
def governed(running: Job, bound: float) -> Iterator[NcclNode]:
    """The collector under this bound, once it counts the job and has prices."""
    with observe(governor=Governor(bound)) as observed:
        until(lambda: observed.attached(running.process.pid, {str(running.library)}), "attached")
        until(lambda: observed.value("accel_exporter_overhead_seconds_total") is not None, "prices")
        yield observed


def counted(observed: NcclNode, running: Job) -> dict[str, int]:
    """Messages and their bytes, by collective."""
    found = {}
    for name in ("calls", "bytes", "bus_bytes"):
        for collective in ("Send", "Recv"):
            value = observed.value(f"nccl_collective_{name}_total", running.process.pid, collective=collective)
            found[f"{collective} {name}"] = value or 0
    return found


def levels(observed: NcclNode, running: Job) -> set[Any]:
    symbols = ("ncclSend", "ncclRecv")
    name = "accel_exporter_probe_throttle_level"
    return {observed.value(name, symbol=symbol, library=str(running.library)) for symbol in symbols}


def share(observed: NcclNode, running: Job) -> float | None:
    """The share of the time in which messages are probed."""
    name = "accel_exporter_probe_sampled_ratio"
    found: float | None = observed.value(name, symbol="ncclSend", library=str(running.library))
    return found


def hits(observed: NcclNode) -> int:
    """Of messages; of all processes of this machine."""
    return sum(
        observed.value("accel_exporter_probe_hits_total", symbol=running) for running in ("ncclSend", "ncclRecv")
    )


def throttle(observed: NcclNode, running: Job, own: int) -> Stretch:
    """Groups until they are in windows for some cycles; the last stretch."""
    running.work(1, own)
    for _ in range(60):
        if levels(observed, running) == {1}:
            break
        running.work(1, own)
    else:  # not asserted after the loop: without work they fall again
        pytest.fail("messages are not in windows")
    return running.work(5, own)


def test_a_job_that_only_sends_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of messages without pause a tenth is probed. Their groups are in windows, too, so nothing is left to estimate
    messages by: counts are absent until each message counts again.
    """
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with job(tmp_path) as running:
        with governed(running, 0) as observed:
            exact = running.work(1)
            assert {"Send calls": exact.calls * PEERS} == {"Send calls": counted(observed, running)["Send calls"]}
            assert {None} == levels(observed, running)
        with governed(running, BOUND) as observed:
            throttle(observed, running, 0)
            seen, stretches = hits(observed), [running.work(4) for _ in range(3)]
            assert hits(observed) - seen < 0.1 * sum(it.calls for it in stretches) * 2 * PEERS
            assert {0} == set(counted(observed, running).values()), "absent"
            until(lambda: levels(observed, running) == {0}, "all calls are counted again")
            begun, little = counted(observed, running), running.work(1, pause_us=60_000).calls * PEERS
            each = {"calls": 1, "bytes": 4 * COUNT, "bus_bytes": 4 * COUNT}
            now = counted(observed, running)
            assert {key: little * each[key.split()[1]] for key in now} == {key: now[key] - begun[key] for key in now}


def test_large_groups_are_bounded_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that could bear it by its CPU time loses no more of each group than allowed: 10 µs are a fraction of
    what a trap at each message takes. Counts are within 5 %."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 1.0)
    own, allowed = 200_000, 10e-6
    with job(tmp_path) as running, governed(running, bound=0.9) as observed:
        throttle(observed, running, own)
        price = observed.collector.probes.price("ncclSend")
        assert price and 2 * PEERS * price > 2 * allowed, "messages of a group cost enough for this test"
        seen, stretch = hits(observed), running.work(20, own)
        assert (hits(observed) - seen) * price / stretch.calls < 1.3 * allowed
        until(lambda: levels(observed, running) == {0}, "all calls are counted again")
        now = counted(observed, running)
        assert now["Send calls"] / (stretch.total * PEERS) == pytest.approx(1, rel=0.05)
        assert now["Recv bytes"] / (stretch.total * PEERS * 4 * COUNT) == pytest.approx(1, rel=0.05)


def test_the_bound_is_kept_and_calls_are_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that also works: traps take what is allowed of its CPU time, counts are within 5 %, and every call counts
    when it sends little. Of a process that ends then, what was estimated stays."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 1.0)
    own = 1_000_000  # groups cost little of that, so they are counted all the time
    with job(tmp_path) as running, governed(running, BOUND) as observed:
        throttle(observed, running, own)
        seen = hits(observed)
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(running.work, 10, own)
            until(lambda: 0 < (share(observed, running) or 0) < 1, "in windows")
            stretch = working.result()
        price = observed.collector.probes.price("ncclSend")
        assert price
        assert (hits(observed) - seen) * price / stretch.cpu < 3 * BOUND
        assert stretch.calls * 2 * PEERS * price / stretch.cpu > 6 * BOUND, "the job sends enough for this test"
        until(lambda: levels(observed, running) == {0}, "all calls are counted again")
        now = counted(observed, running)
        assert now["Send calls"] / (stretch.total * PEERS) == pytest.approx(1, rel=0.05)
        assert now["Recv bytes"] / (stretch.total * PEERS * 4 * COUNT) == pytest.approx(1, rel=0.05)
        little = running.work(4, pause_us=500_000)
        assert little.calls * PEERS == counted(observed, running)["Send calls"] - now["Send calls"]
        last = counted(observed, running)
        running.end()
        until(lambda: running.process.pid not in observed.collector.ledger, "its end is known")
        assert last == counted(observed, running)
