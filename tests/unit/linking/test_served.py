"""The other requests of a request's thread."""

from __future__ import annotations

import pytest

from exporter.linking.served import MOST, PROCESSES, REQUESTS, RecentRequests
from exporter.model import Served

ONE, TWO = 11, 12


def request(read: int, end: int, tid: int = ONE, others: int = 0, pid: int = 1) -> Served:
    return Served(pid, tid, read, end, others, end + 10)


def known(*requests: Served) -> RecentRequests:
    recent = RecentRequests()
    for it in requests:
        recent.add(it)
    return recent


@pytest.mark.parametrize(
    ("others", "alone"),
    [
        ((), True),
        ((request(0, 90), request(210, 300)), True),
        ((request(90, 120),), True),
        ((request(90, 150),), False),
        ((request(145, 400),), False),
        ((request(0, 400, TWO),), True),
        ((request(0, 400, 0),), False),
        ((request(0, 400, pid=2),), True),
    ],
)
def test_work_between_140_and_160(others: tuple[Served, ...], alone: bool) -> None:
    """Exclude requests of other threads and times, and none of which the thread is unknown."""
    own = request(100, 200)
    assert alone == known(own, *others).others(own).exclude(140, 160)


def test_requests_that_are_still_in_flight() -> None:
    """As long as those that were in flight at the end have not ended, any of them may have had the thread."""
    own = request(100, 200, others=2)
    recent = known(own, request(150, 300, TWO))
    assert not recent.others(own).exclude(140, 160)
    recent.add(request(220, 400))  # it began later
    assert not recent.others(own).exclude(140, 160)
    recent.add(request(205, 400))  # in flight when they were counted
    assert recent.others(own).exclude(140, 160)


def test_too_many_requests() -> None:
    """Exclude nothing where some requests of the time are not kept any more."""
    own = request(100, 200)
    recent = known(own, request(100, 150))
    for _ in range(REQUESTS):
        recent.add(request(200, 300))
    assert not recent.others(own).exclude(160, 170)


def test_too_many_servers() -> None:
    """Keep those that served last, and so many requests of all."""
    recent = known(*(request(1, 2, pid=pid) for pid in range(PROCESSES + 1)))
    assert set(range(1, PROCESSES + 1)) == set(recent.servers())
    recent = known(*(request(1, 2, pid=pid) for pid in range(MOST // REQUESTS + 1) for _ in range(REQUESTS)))
    assert set(range(1, MOST // REQUESTS + 1)) == set(recent.servers())
