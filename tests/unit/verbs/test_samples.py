"""From what RDMA did in a process to samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from exporter.verbs.activity import Activity, QpId
from exporter.verbs.destroyed_qps import PostedRequests
from exporter.verbs.samples import PeerLabels, samples

FIRST, SECOND, UNSEEN = QpId("rxe0", 17, 1000), QpId("rxe0", 17, 2000), QpId("rxe0", 18, 0)
QPS: dict[QpId, Any] = {
    FIRST: SimpleNamespace(peer=23, peer_gid="fe80::2", peer_lid=5),
    UNSEEN: SimpleNamespace(peer=None, peer_gid="", peer_lid=5),
}
KERNEL = SimpleNamespace(remote=42, pid=7)
PEERS: Any = SimpleNamespace(kernel=lambda device, number: KERNEL if number == 18 else None)


def test_ends_are_remembered() -> None:
    """A queue pair that is gone keeps its other end, so its counters stay the same series; a later one has none."""
    peer_labels = PeerLabels(PEERS)
    first = {"peer_qp": "23", "peer_gid": "fe80::2", "peer_lid": ""}

    assert first == peer_labels.of(7, QPS, FIRST)
    assert {"peer_qp": "42", "peer_gid": "", "peer_lid": "5"} == peer_labels.of(7, QPS, UNSEEN)
    peer_labels.turn()
    assert first == peer_labels.of(7, {}, FIRST)
    assert {} == peer_labels.of(8, {}, FIRST) == peer_labels.of(7, {}, SECOND) == peer_labels.of(8, {}, UNSEEN)
    peer_labels.turn()
    peer_labels.turn()
    assert {} == peer_labels.of(7, {}, FIRST)


def test_queue_pairs_of_one_number() -> None:
    """Queue pairs with one peer are summed up, one with another peer is another series; calls are by number alone."""
    activity = Activity()
    activity.destroyed = {FIRST: QPS[FIRST], SECOND: QPS[FIRST]}
    for life, count in ((FIRST, 100), (SECOND, 20), (QpId("rxe0", 17, 3000), 3)):
        activity.add_posted(life, 2, PostedRequests(count, 10 * count, count, 0))
        activity.calls[life] = count
    process: Any = SimpleNamespace(pid=7, labels={"pid": "7"}, since=1.0, activity=activity)
    timed = dict.fromkeys(("timed_post_send", "timed_poll_cq", "timed_request", "timed_ack"), 0)

    found = [(it.metric.name, it.labels.get("peer_qp"), it.value) for it in samples(process, timed, PeerLabels(PEERS))]
    assert [
        ("rdma.post_send.calls", None, 123),
        ("rdma.send", "23", 1200),
        ("rdma.send.work_requests", "23", 120),
        ("rdma.send.packets.estimated", "23", 120),
        ("rdma.send", None, 30),
        ("rdma.send.work_requests", None, 3),
        ("rdma.send.packets.estimated", None, 3),
    ] == found
