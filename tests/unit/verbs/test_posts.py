"""Tallies of posts for the governor, and the counts that estimates add."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exporter.verbs.activity import Activity, QpId
from exporter.verbs.costs import VerbsCosts
from exporter.verbs.destroyed_qps import PostedRequests
from exporter.verbs.functions import HITS
from exporter.verbs.posts import UNKNOWN_QP, CountedPosts
from exporter.verbs.samples import PeerLabels, samples

QP = QpId("mlx5_0", 17, 1000)
UNKNOWN = QpId("mlx5_0", UNKNOWN_QP, 0)
PRICES = {"post_send": 2e-6, "post_recv": 1e-6, "poll_cq": 0.5e-6, "wr_start": 0.25e-6, "wr_complete": 0.75e-6}
PRICES |= {"wr_send": 0.125e-6, "wr_set_sge": 0.0625e-6}
HIT = 0.4e-6


class Rows:
    """The map process_hits."""

    def __init__(self, rows: dict[tuple[int, str], tuple[int, int]]) -> None:
        self._rows = rows

    def items(self) -> Any:
        for (pid, function), (calls, requests) in self._rows.items():
            yield (
                SimpleNamespace(tgid=pid, hit=HITS.index(function)),
                SimpleNamespace(calls=calls, requests=requests),
            )

    def take(self, pids: Any) -> Any:
        raise AssertionError


def costs(rows: dict[tuple[int, str], tuple[int, int]], known: bool = True) -> VerbsCosts:
    return VerbsCosts(lambda function: PRICES.get(function, 0.0) if known else None, Rows(rows), lambda: HIT)


def activity() -> Activity:
    made = Activity()
    made.calls[QP] = 10
    made.add_posted(QP, 2, PostedRequests(20, 2000, 20, 0))
    made.add_posted(QpId("mlx5_1", 3, 0), 0, PostedRequests(1, 5, 0, 1))
    return made


def test_costs_of_processes() -> None:
    rows = {(7, "post_send"): (10, 14), (7, "post_recv"): (3, 3), (7, "poll_cq"): (8, 0)}
    rows |= {(7, "wr_complete"): (2, 6), (8, "post_recv"): (1, 11)}
    found = costs(rows).of([7, 9])
    assert found[7].posts == pytest.approx(10 * 2e-6 + 4 * 0.5 * HIT + 3 * 1e-6)
    assert found[7].other == pytest.approx(8 * 0.5e-6 + 2 * 1e-6 + 6 * 0.1875e-6)
    assert (found[9].posts, found[9].other) == (0, 0) and 8 not in found
    assert costs(rows).all() == pytest.approx(found[7].posts + 1e-6 + 10 * 0.2 * HIT)


def test_tallies() -> None:
    """Counts are by device and opcode, those of all queue pairs together; nothing is a reference."""
    rows = {(7, "post_send"): (10, 10), (7, "poll_cq"): (2, 0)}

    def cpu(pid: int) -> float:
        if pid == 8:
            raise OSError
        return 1.5

    subject = CountedPosts(SimpleNamespace(sampled_files=dict), costs(rows), lambda: {7: activity()}, cpu)
    [(pid, tally)] = subject.tallies([7, 8]).items()
    assert pid == 7 and tally.reference == 0 and tally.cpu == 1.5
    assert tally.cost == pytest.approx(20e-6) and tally.other == pytest.approx(1e-6)
    assert tally.counts["calls", "mlx5_0", 0] == 10
    assert tally.counts["bytes", "mlx5_0", 2] == 2000 and tally.counts["unsized", "mlx5_1", 0] == 1
    assert subject.last(activity())(tally).counts == tally.counts
    assert subject.sampled_cost() == pytest.approx(20e-6)
    assert CountedPosts(SimpleNamespace(sampled_files=dict), costs(rows, known=False), dict).sampled_cost() is None


def test_what_was_missed_is_of_an_unknown_queue_pair() -> None:
    subject = CountedPosts(SimpleNamespace(sampled_files=dict), costs({}), dict)
    seen = activity()
    subject.add(seen, {})
    assert seen == activity()
    missed = {("calls", "mlx5_0", 0): 5, ("requests", "mlx5_0", 2): 6, ("bytes", "mlx5_0", 2): 600}
    subject.add(seen, missed | {("packets", "mlx5_0", 2): 6, ("requests", "mlx5_1", 0): 0})
    assert seen.calls == {QP: 10, UNKNOWN: 5}
    assert seen.posted[QP, 2] == activity().posted[QP, 2]
    assert seen.posted[UNKNOWN, 2] == PostedRequests(6, 600, 6, 0) and len(seen.posted) == 3
    process: Any = SimpleNamespace(pid=7, labels={"pid": "7"}, since=1.0, activity=seen)
    timed = dict.fromkeys(("timed_post_send", "timed_poll_cq", "timed_request", "timed_ack"), 0)
    peers: Any = SimpleNamespace(kernel=lambda device, number: None)
    found = {
        it.labels["qp"]: it.value
        for it in samples(process, timed, PeerLabels(peers))
        if it.metric.name == "rdma.post_send.calls"
    }
    assert found == {"17": 10, "unknown": 5}
    subject.add(seen, None)
    assert not seen.calls and not seen.posted
