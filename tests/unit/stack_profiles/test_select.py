"""Difference of two profiles, also where the source added up processes that have ended."""

from __future__ import annotations

import pytest

from exporter.stack_profiles.model import ALLOC, Frame, Stack, StackProfile, StackSample
from exporter.stack_profiles.select import delta

STACK = (Frame("cuMemAlloc_v2"), Frame("main"))


def profile(*samples: tuple[Stack, dict[str, str], int]) -> StackProfile:
    made = tuple(StackSample(stack, labels, (value, value // 10)) for stack, labels, value in samples)
    return StackProfile(ALLOC, made, ("space", "bytes"))


@pytest.mark.parametrize("stack", [STACK, ()])
def test_what_was_added_up_did_not_happen_again(stack: Stack) -> None:
    """A process of 1,000 bytes is now among others without a pid, where 70 bytes more came."""
    rest = {"kind": "device"}
    before = profile((STACK, rest | {"pid": "8"}, 1000), (stack, rest, 500))
    changed = delta(before, profile((stack, rest, 1570)), falls=False)
    assert [(it.labels, it.values[0]) for it in changed.samples] == [(rest, 70)]


def test_a_process_that_ended_is_left_out() -> None:
    before = profile((STACK, {"pid": "8"}, 1000), (STACK, {"pid": "9"}, 500))
    changed = delta(before, profile((STACK, {"pid": "9"}, 570)), falls=False)
    assert [it.values for it in changed.samples] == [(70, 7)]
