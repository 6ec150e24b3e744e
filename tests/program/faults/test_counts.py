"""Faults counted by series, in a bounded number of them."""

from __future__ import annotations

import threading

from exporter.faults.counts import MOST_SERIES, SILENCE, FaultCounts


def made(most: int = MOST_SERIES) -> FaultCounts[tuple[str, int]]:
    """Counts in which a group has `most` series and is folded into its series 0."""
    return FaultCounts(lambda key: (key[0], most), lambda key: (key[0], 0))


def test_live_and_replayed() -> None:
    """Live and replayed faults count apart; the newest time stays though an older one comes later."""
    counts = made()
    for time, replayed, times in ((5.0, True, 1), (9.0, False, 3), (7.0, False, 1), (11.0, False, 0)):
        counts.add(("a", 1), time, replayed, times)
    [(key, count)] = counts.rows()

    assert (("a", 1), 11.0, 4, 1) == (key, count.last, count.live, count.replayed)


def test_bursts() -> None:
    """A burst begins after silence, with a live fault alone; one under way at the start is not another one."""
    counts = made()
    begun = [
        counts.add(("a", 1), time, replayed, times)
        for time, replayed, times in (
            (0.0, True, 1),
            (SILENCE, False, 1),
            (3 * SILENCE, False, 0),
            (3 * SILENCE + 1, False, 1),
            (5 * SILENCE, False, 1),
            (9 * SILENCE, True, 1),
        )
    ]

    assert [False, False, False, False, True, False] == begun
    assert [1] == [count.bursts for _, count in counts.rows()]


def test_groups_leave_room() -> None:
    """Of a group beyond its room the rest is one series; another group has its own room; no fault is lost."""
    counts = made(most=4)
    for number in range(1, 101):
        counts.add(("a", number), 1.0)
    counts.add(("b", 1), 1.0)
    counts.add(("a", 2), 2.0)
    found = {key: count.live for key, count in counts.rows()}

    assert {("a", 1): 1, ("a", 2): 2, ("a", 3): 1, ("a", 4): 1, ("a", 0): 96, ("b", 1): 1} == found
    assert (96, 6) == (counts.folded, len(counts))


def test_all_series_are_bounded() -> None:
    """The series of all groups together are bounded, but for one folded series of each group."""
    counts = made()
    for number in range(1, 3 * MOST_SERIES):
        counts.add((str(number % 2), number), 1.0)

    assert MOST_SERIES + 2 == len(counts)
    assert 3 * MOST_SERIES - 1 == sum(count.live for _, count in counts.rows())


def test_folded_series_are_remembered_up_to_a_bound() -> None:
    """The number of folded series is exact up to 4,096, which bounds the memory for it."""
    counts = made(most=1)
    for number in range(1, 6000):
        counts.add(("a", number), 1.0)
        counts.add(("a", number), 1.0)

    assert 4096 == counts.folded


def test_rows_are_of_one_moment() -> None:
    """Rows do not change while they are read, and faults added by several threads are all counted."""
    counts = made()
    counts.add(("a", 1), 1.0)
    [(_, before)] = counts.rows()

    def add() -> None:
        for number in range(2000):
            counts.add(("a", number % 50), float(number))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        counts.rows()
    assert 1 == before.live
    assert 8001 == sum(count.live for _, count in counts.rows())
