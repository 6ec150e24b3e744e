"""Publication of profiles, and the frozen ones."""

from __future__ import annotations

import pytest

from exporter.stack_profiles.frozen import FailedAllocation, FrozenProfiles
from exporter.stack_profiles.model import ALLOC, INUSE, LAUNCHES, Frame, StackProfile
from exporter.stack_profiles.published import NOBODY, StackProfiles

SPACE = ("space", "bytes")
FAILED = FailedAllocation((Frame("cudaMalloc"),), {"pid": "23"}, 1 << 30)


class Source:
    def inuse(self) -> StackProfile:
        return StackProfile(INUSE, (), SPACE)

    def alloc(self) -> StackProfile:
        return StackProfile(ALLOC, (), SPACE)

    def launches(self) -> StackProfile:
        return StackProfile(LAUNCHES, (), ("launches", "count"))

    def problem(self) -> str:
        return ""


def test_without_a_source_there_is_a_reason() -> None:
    """Without a source no profile is made up: its problem is the reason, and so is the error."""
    published = StackProfiles()

    assert NOBODY == published.source.problem()
    for make in (published.source.inuse, published.source.alloc, published.source.launches):
        with pytest.raises(RuntimeError, match=NOBODY):
            make()


def test_a_source_is_withdrawn() -> None:
    """Only by itself: the collector that replaces another publishes before the other is closed, or after."""
    published, first, second = StackProfiles(), Source(), Source()
    published.publish(first)
    assert first is published.source

    published.publish(second)
    published.withdraw(first)
    assert second is published.source

    published.withdraw(second)
    assert NOBODY == published.source.problem()


def test_the_last_eight_are_kept() -> None:
    """Of 23 frozen profiles the last 8 are kept, the newest first, by numbers that are never used again."""
    kept = FrozenProfiles()
    for at in range(23):
        kept.freeze(Source().inuse(), FAILED, 1000 + at)

    assert [*range(23, 15, -1)] == [it.number for it in kept.newest_first()]
    assert (None, 1022) == (kept.get(15), getattr(kept.get(23), "time_ns", 0))
