"""Stacks that grow."""

from __future__ import annotations

import json

import pytest

from exporter.stack_profiles import growth
from exporter.stack_profiles.growth import Growth
from exporter.stack_profiles.model import INUSE, Frame, StackProfile, StackSample
from exporter.stack_profiles.published import NOBODY, StackProfiles
from tests import made_up_profiles as made_up


class Course(made_up.Source):
    """A source that gives, at each look, the next bytes in use of each stack of a process."""

    def __init__(self, *looks: dict[str, int]) -> None:
        super().__init__()
        self.looks = iter(looks)

    def inuse(self) -> StackProfile:
        samples = (
            StackSample(
                (Frame(name.partition("/")[2], "/app/x.py", 23, "python"),), {"pid": name.partition("/")[0]}, (size, 1)
            )
            for name, size in next(self.looks).items()
        )
        return StackProfile(INUSE, tuple(samples), made_up.SPACE)


def grown(*looks: dict[str, int]) -> list[tuple[str, int, int]]:
    """Return the growing stacks after these looks: function, bytes before and now."""
    published = StackProfiles()
    published.publish(Course(*looks))
    made = Growth(published, 600)
    for _ in looks:
        made.look()
    return [(it.sample.stack[0].function, it.before, it.now) for it in made.growing()]


def test_a_leak_is_found() -> None:
    """Stacks that grow and never fall are shown, the fastest first; constant ones, or those allocated once, are not."""
    looks = [{"1/leak": 10 * at, "1/slow": at, "1/weights": 500, "1/once": 7 * (at > 2)} for at in range(1, 7)]

    assert [("leak", 10, 60), ("slow", 1, 6)] == grown(*looks)


def test_what_falls_begins_again() -> None:
    """A cache that is emptied is no leak, and after that it takes three increases again."""
    sizes = (10, 20, 30, 40, 5, 6, 7)

    assert [] == grown(*({"1/cache": size} for size in sizes))
    assert [("cache", 5, 8)] == grown(*({"1/cache": size} for size in (*sizes, 8)))


def test_a_stack_that_ended_is_forgotten() -> None:
    """A stack that is in use no more, or of a process that has ended, is not there."""
    assert [] == grown({"1/a": 1}, {"1/a": 2}, {"1/a": 3}, {"1/a": 4}, {"2/b": 1})


def test_memory_that_moves_within_a_process_is_no_leak() -> None:
    """A stack grows at the cost of another of its process, which has no more in use than before."""
    assert [] == grown(*({"1/a": 10 * at, "1/b": 100 - 10 * at} for at in range(1, 6)))


def test_stacks_of_one_name_are_added_up() -> None:
    """Two samples of one stack and process in a profile are one stack."""
    stack = (Frame("f"),)
    published = StackProfiles()

    class Twice(made_up.Source):
        def inuse(self) -> StackProfile:
            self.calls += 1
            pair = (StackSample(stack, {"pid": "1"}, (size * self.calls, 1)) for size in (100, 1))
            return StackProfile(INUSE, tuple(pair), made_up.SPACE)

    published.publish(Twice())
    made = Growth(published, 600)
    for _ in range(4):
        made.look()

    assert [(101, 404)] == [(it.before, it.now) for it in made.growing()]


def test_a_window_moves() -> None:
    """Growth before the window no longer counts."""
    rising = [*range(1, 12)]

    assert [("f", 1, 11)] == grown(*({"1/f": size} for size in rising))
    assert [("f", 8, 11)] == grown(*({"1/f": size} for size in [*rising, *[11] * 7]))
    assert [] == grown(*({"1/f": size} for size in [*rising, *[11] * 8]))


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest stacks are followed, and the fastest twenty shown."""
    monkeypatch.setattr(growth, "MOST_STACKS", 30)
    looks = [{f"1/f{number:02}": 1000 * number + at * number for number in range(50)} for at in range(5)]

    assert [f"f{number}" for number in range(49, 29, -1)] == [name for name, _, _ in grown(*looks)]


def test_without_profiles_there_is_the_reason() -> None:
    """Without a source nothing is known; the document has the reason, and what is hostile in it is escaped."""
    published = StackProfiles()
    made = Growth(published, 600)
    made.look()
    assert (NOBODY, []) == (made.document()["problem"], made.document()["stacks"])

    published.publish(Course(*({f"1/{made_up.HOSTILE}": at} for at in range(1, 6))))
    for _ in range(5):
        made.look()
    document = made.document()
    assert ("", 5, 1) == (document["problem"], document["profiles"], len(document["stacks"]))
    assert json.dumps(document).isprintable()
    assert len(document["stacks"][0]["stack"][0]["function"]) <= 512
