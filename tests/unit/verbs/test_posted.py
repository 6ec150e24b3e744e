"""Posted requests stay counted after the end of their process or queue pair."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from exporter.verbs.activity import Activity, QpId
from exporter.verbs.destroyed_qps import PostedRequests
from exporter.verbs.posted import PostedSums, RdmaPort
from exporter.verbs.samples import bytes_by_port

ONE, TWO = RdmaPort("mlx5_0", 1), RdmaPort("mlx5_0", 2)


def test_sums_stay() -> None:
    """A row that goes leaves what it had; one that takes back what was refused is followed down."""
    sums = PostedSums()
    posted = sums.see({"a": (ONE, 100), "b": (TWO, 7)}, ())
    assert posted and {ONE: 100, TWO: 7} == posted.bytes
    posted = sums.see({"a": (ONE, 90), "c": (ONE, 5)}, ())
    assert posted and {ONE: 95, TWO: 7} == posted.bytes


def test_a_row_that_is_missing_for_a_moment() -> None:
    """Counts on their way from the kernel to the exporter count once; a later row of the same name counts too."""
    now = 0
    sums = PostedSums(lambda: now)
    sums.see({"a": (ONE, 100)}, ())
    sums.see({}, ())
    posted = sums.see({"a": (ONE, 101)}, ())
    assert posted and {ONE: 101} == posted.bytes
    now = 301_000_000_000
    sums.see({}, ())
    posted = sums.see({"a": (ONE, 5)}, ())
    assert posted and {ONE: 106} == posted.bytes


def test_a_time_in_which_something_was_missed() -> None:
    """While it is not certain nothing is returned, and what is returned after a miss is of another time."""
    times = iter(range(10))
    sums = PostedSums(lambda: next(times))
    first, same = sums.see({}, (0, 0)), sums.see({}, (0, 0))
    assert first and same and first.since == same.since
    missed = sums.see({}, (0, 1))
    assert missed and missed.since != first.since
    assert sums.see({"a": (ONE, 3)}, None) is None
    again = sums.see({"a": (ONE, 3)}, (0, 1))
    assert again and {ONE: 3} == again.bytes and again.since != missed.since


def test_which_port() -> None:
    """The port that was set, else the kernel's of a queue pair from before; READs are sent by the peer."""
    activity, made, old, destroyed = Activity(), QpId("mlx5_0", 5, 9), QpId("mlx5_0", 6, 0), QpId("mlx5_0", 6, 4)
    activity.destroyed = {made: SimpleNamespace(port=1)}  # type: ignore[dict-item]
    for life, opcode, count in ((made, 2, 10), (made, 4, 1000), (old, 0, 20), (destroyed, 0, 30)):
        activity.add_posted(life, opcode, PostedRequests(1, count))
    peers: Any = SimpleNamespace(kernel=lambda _, number: SimpleNamespace(port=2) if number == 6 else None)
    process: Any = SimpleNamespace(pid=7, since=1.0, activity=activity)

    found = bytes_by_port(process, peers)
    assert [(ONE, 10), (TWO, 20), (RdmaPort("mlx5_0", 0), 30)] == list(found.values())
