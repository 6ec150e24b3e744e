"""The queue pairs that post most, from counts of two readings."""

from __future__ import annotations

from typing import Any

from exporter.ledger import Process
from exporter.verbs.activity import Activity, QpId
from exporter.verbs.busiest import LEAST_SECONDS, MOST, Busiest
from exporter.verbs.destroyed_qps import PostedRequests
from exporter.verbs.samples import PeerLabels
from tests.typical_node import PEERS


def process(pid: int, posted: dict[tuple[int, int], int], ended: bool = False) -> Process[Activity]:
    """A process that posted so many bytes by number and time of creation of a queue pair, in two operations."""
    activity = Activity()
    for (number, created_ns), count in posted.items():
        for opcode, part in ((0, count - count // 3), (2, count // 3)):
            activity.posted[QpId("d0", number, created_ns), opcode] = PostedRequests(1, part, 1)
    return Process(pid, {"pid": str(pid)}, activity, 1.0, ended)


def reader() -> tuple[Any, list[float]]:
    """A function that returns rates by process and queue pair, and the clock that it reads at."""
    now = [100.0]
    busiest = Busiest(lambda: now[0])

    def read(*processes: Process[Activity]) -> dict[tuple[str, str], float]:
        found = list(busiest.samples(processes, PeerLabels(PEERS)))
        return {(it.labels["pid"], it.labels["qp"]): it.value for it in found}  # type: ignore[misc]

    return read, now


def test_the_ones_that_posted_most() -> None:
    """Bytes a second of all operations since the reading before, of the ten with most; not what was posted earlier."""
    read, now = reader()
    first = {(number, 1): 1_000_000 * (40 - number) for number in range(40)}
    assert {} == read(process(7, first))
    now[0] += 10
    second = {pair: count + 50 * pair[0] for pair, count in first.items()}
    assert MOST == 10
    assert {("7", str(number)): 5.0 * number for number in range(30, 40)} == read(process(7, second))


def test_readings_that_follow_each_other() -> None:
    """Within five seconds the rates are those of before; a queue pair that did not post is not among them."""
    read, now = reader()
    read(process(7, {(1, 1): 100, (2, 1): 100}))
    now[0] += LEAST_SECONDS
    assert {("7", "1"): 20.0} == read(process(7, {(1, 1): 200, (2, 1): 100}))
    now[0] += LEAST_SECONDS / 2
    assert {("7", "1"): 20.0} == read(process(7, {(1, 1): 9000, (2, 1): 9000}))
    now[0] += LEAST_SECONDS / 2
    assert {("7", "1"): 1760.0, ("7", "2"): 1780.0} == read(process(7, {(1, 1): 9000, (2, 1): 9000}))


def test_processes_and_queue_pairs_that_come_and_go() -> None:
    """A new one has all its bytes counted, two with one number in turn are one, and an ended process has none."""
    read, now = reader()
    read(process(7, {(1, 1): 100}))
    now[0] += 10
    assert {("7", "1"): 20.0, ("8", "1"): 3.0} == read(process(7, {(1, 1): 100, (1, 2): 200}), process(8, {(1, 1): 30}))
    now[0] += 10
    assert {} == read(process(8, {(1, 1): 3000}, ended=True))
