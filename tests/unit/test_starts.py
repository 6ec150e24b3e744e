"""Start times of counters that fall."""

from __future__ import annotations

from exporter import starts
from exporter.starts import Starts


def read(subject: Starts, now: float, **values: float) -> dict[str, float]:
    subject.read(now)
    return {name: subject.of(hash(name), value) for name, value in values.items()}


def test_counter_starts_with_the_exporter_until_it_falls() -> None:
    """A fall is a start after the reading before; it holds until the next fall, and for that series alone."""
    subject = Starts(100.0)

    assert {"a": 100.0, "b": 100.0} == read(subject, 110.0, a=5, b=5)
    assert {"a": 110.0, "b": 100.0} == read(subject, 120.0, a=4, b=5)
    assert {"a": 110.0, "b": 100.0} == read(subject, 130.0, a=9, b=6)
    assert {"a": 130.0, "b": 100.0} == read(subject, 140.0, a=0, b=7)


def test_counter_that_was_away_has_not_forgotten_its_value() -> None:
    """A series that was absent from a reading and returns smaller starts after the reading before its return."""
    subject = Starts(100.0)
    read(subject, 110.0, a=5)
    read(subject, 120.0)

    assert {"a": 120.0} == read(subject, 130.0, a=1)


def test_start_is_never_after_its_reading() -> None:
    """A wall clock that was set back makes no start that lies after the readings it is of."""
    subject = Starts(100.0)
    read(subject, 200.0, a=5)
    read(subject, 150.0, a=5)

    assert read(subject, 160.0, a=1)["a"] <= 160.0


def test_clock_that_was_set_back_gives_one_new_start() -> None:
    """Starts after a reading become the reading's time, and keep it when the clock passes the former start again."""
    subject = Starts(100.0)
    read(subject, 110.0, a=5)
    read(subject, 120.0, a=4)

    assert {"a": 50.0, "b": 50.0} == read(subject, 50.0, a=4, b=1)
    assert {"a": 50.0, "b": 50.0} == read(subject, 130.0, a=4, b=1)
    assert {"a": 40.0, "b": 40.0} == read(subject, 40.0, a=4, b=1)
    assert {"a": 40.0, "b": 40.0, "c": 40.0} == read(subject, 140.0, a=4, b=0, c=1)


def test_those_ended_longest_ago_are_forgotten() -> None:
    """However many series there were, those of the last readings are kept and the number is bounded."""
    subject = Starts(100.0)
    for reading in range(6):
        subject.read(110.0 + reading)
        subject.of(0, 10 - reading)
        for series in range(1, starts.MOST // 2):
            subject.of(reading * starts.MOST + series, 1)
    subject.read(200.0)

    assert starts.MOST == len(subject)
    assert 115.0 == subject.of(0, 1)
