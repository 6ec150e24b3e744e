"""Counts of destroyed queue pairs are kept for five minutes, and late ones are added."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.ledger import RETENTION
from exporter.verbs.activity import MAPS, Activity, QpId, Times, read, take
from exporter.verbs.control import MAPS as CONTROL_MAPS
from exporter.verbs.destroyed_qps import MOST, NO_OPCODE, DestroyedQps, PostedRequests, QpLife


def end(number: int, opcode: int = NO_OPCODE, requests: int = 0, calls: int = 0, tgid: int = 7) -> Any:
    """A struct qp_end of a queue pair of which nothing else is known."""
    life = SimpleNamespace(qp=SimpleNamespace(tgid=tgid, context=0x1000, number=number), created_ns=5)
    posted = SimpleNamespace(requests=requests, bytes=10 * requests, packets=0, unsized=requests)
    return SimpleNamespace(life=life, qp=SimpleNamespace(number=0), opcode=opcode, posted=posted, calls=calls)


def control(device: str, number: int) -> Any:
    """A struct qp_control of which nothing is known but the device and the number."""
    names = ("type", "state", "created_ns", "resets", "known", "routed", "port", "lid", "path_mtu", "gid_index", "peer")
    rest = ("timeout", "retries", "rnr_retries", "send_psn", "receive_psn")
    zeros = dict.fromkeys((*names, *rest), 0)
    return SimpleNamespace(device=SimpleNamespace(name=device.encode()), number=number, peer_gid=b"", **zeros)


def test_one_queue_pair_in_several_records() -> None:
    """Calls and each opcode come apart; the queue pair is forgotten five minutes after the first of them."""
    now = 100.0
    destroyed = DestroyedQps(lambda: now)
    for record in (end(3, 2, 4), end(3, 0, 1), end(3, calls=2)):
        destroyed.add(record)
    [(place, it)] = destroyed.now().items()
    assert (QpLife(7, 0x1000, 3, 5), 2) == (place, it.calls)
    assert {2: PostedRequests(4, 40, 0, 4), 0: PostedRequests(1, 10, 0, 1)} == it.posted
    now += RETENTION + 1
    assert [place] == destroyed.expire(())
    assert {} == destroyed.now()


def test_bounds() -> None:
    """The oldest go first when there are too many, and those of a process when it ended."""
    destroyed = DestroyedQps(lambda: 1.0)
    for number in range(MOST + 10):
        destroyed.add(end(number, tgid=7 + number % 2))
    assert {*range(MOST // 8, MOST + 10)} == {place.number for place in destroyed.now()}
    assert {7} == {place.tgid for place in destroyed.take({7})}
    assert {8} == {place.tgid for place in destroyed.now()}


def test_queue_pairs_of_a_number_that_is_used_again() -> None:
    """Counts stay while a living one has the number, however many others come and go, and else go together."""
    now = 100.0
    destroyed = DestroyedQps(lambda: now)
    for created in (5, 6):
        record = end(7, 2, 50)
        record.life.created_ns = created
        destroyed.add(record)
        now += RETENTION - 1
    first, second = destroyed.now()
    assert [] == destroyed.expire(())
    now += 2
    assert [] == destroyed.expire({first.place})
    for number in range(100, 100 + 2 * MOST):
        destroyed.add(end(number))
    assert MOST >= len(destroyed.now())
    assert {first, second} <= destroyed.now().keys()
    assert {first, second} == {*destroyed.expire(())}
    assert first not in destroyed.now()


def kernel_rows(calls: int = 0, requests: int = 0, context: bool = True) -> Any:
    """The maps of a process with one queue pair, which has posted this."""
    rows: dict[str, list[tuple[Any, Any]]] = {name: [] for name in (*CONTROL_MAPS, *MAPS)}
    life = end(3).life
    if context:
        rows["contexts"] = [(SimpleNamespace(tgid=7, context=0x1000), SimpleNamespace(name=b"rxe0\0"))]
    if calls:
        rows["calls"] = [(life, SimpleNamespace(count=calls))]
        posted = SimpleNamespace(requests=requests, bytes=2 * requests, packets=0, unsized=requests)
        rows["posted"] = [(SimpleNamespace(life=life, opcode=2), posted)]
    return {
        name: SimpleNamespace(items=lambda found=found: iter(found), take=lambda _, found=found: iter(found))
        for name, found in rows.items()
    }


def test_what_is_destroyed_is_read_with_what_there_is() -> None:
    """Rows of the kernel and those that it dropped are of one queue pair, on the device that its context is of."""
    destroyed = DestroyedQps(lambda: 1.0)
    destroyed.add(end(3, 2, 4, calls=1))
    activity, here = read(kernel_rows(calls=5, requests=1), destroyed, lambda: None)[7], QpId("rxe0", 3, 5)
    assert {here: 6} == activity.calls
    assert {(here, 2): PostedRequests(5, 42, 0, 5)} == activity.posted


@pytest.mark.parametrize("drained", [1, 2])
def test_records_in_the_ring_buffer_are_counted_once(drained: int) -> None:
    """A queue pair destroyed before the maps are read, or while they are, is neither missing nor there twice."""
    destroyed, calls = DestroyedQps(lambda: 1.0), itertools.count(1)

    def drain() -> None:
        if next(calls) == drained:
            destroyed.add(end(3, 2, 4))
            destroyed.add(end(3, calls=4))

    rows = kernel_rows(calls=4, requests=4) if drained == 2 else kernel_rows()
    activity, here = read(rows, destroyed, drain)[7], QpId("rxe0", 3, 5)
    assert {here: 4} == activity.calls
    assert {2: 4} == {opcode: posted.requests for (_, opcode), posted in activity.posted.items()}


def test_records_in_the_ring_buffer_when_the_process_ends() -> None:
    """Records are taken with the rows; one that comes later still has its device, from the queue pair itself."""
    destroyed, here = DestroyedQps(lambda: 1.0), QpId("rxe0", 3, 5)
    taken = take(kernel_rows(), destroyed, lambda: destroyed.add(end(3, 2, 4)), [7])[7]
    assert {(here, 2): PostedRequests(4, 40, 0, 4)} == taken.posted
    late = end(3, 0, 1)
    late.qp = control("rxe0", 3)
    destroyed.add(late)
    assert {(here, 0): PostedRequests(1, 10, 0, 1)} == read(kernel_rows(context=False), destroyed, int)[7].posted


def test_late_counts_are_added_beside_readers() -> None:
    """Counts after the end of a process are added to new tables: readers of the old ones are not disturbed."""
    one, late, life = Activity(), Activity(), QpId("rxe0", 3, 5)
    for activity in (one, late):
        activity.calls[life] = 2
        activity.add_posted(life, 2, PostedRequests(3, 30, 3, 0))
        activity.add_times((1, "rxe0", 2), Times(100, (1, 0)))
    reading = one.posted
    late.add_posted(life, 4, PostedRequests(1))
    one.absorb(late)
    assert {(life, 2): PostedRequests(3, 30, 3, 0)} == reading
    assert {(life, 2): PostedRequests(6, 60, 6, 0), (life, 4): PostedRequests(1)} == one.posted
    assert ({life: 4}, {(1, "rxe0", 2): Times(200, (2, 0))}) == (one.calls, one.times)
