"""Of which processes all calls are seen, while those that allocate are left out of others."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.cuda.functions import MEMORY, TRANSFERS
from exporter.cuda.sight import Sight

LIBRARY: Any = SimpleNamespace(path="/lib/libcuda.so.1")


class Covered(dict[int, int]):
    set = dict.__setitem__

    def take(self, pids: Collection[int]) -> None:
        for pid in pids:
            self.pop(pid, None)


class Scene:
    """`called` are processes with counted calls, `linked` those with links of their own while calls are left out."""

    def __init__(self) -> None:
        self.covered, self.called, self.linked = Covered(), set[int](), set[int]()
        self.detached, self.lost = False, list[bytes]()
        calls = SimpleNamespace(sums=lambda by: self.called)
        maps = {"covered": self.covered, "calls": calls, "processes": {}}
        programs = {"lose_allocations": SimpleNamespace(run=self.lost.append)}
        self.sight = Sight(SimpleNamespace(maps=maps, programs=programs))  # type: ignore[arg-type]
        self.sight.memory = SimpleNamespace(  # type: ignore[assignment]
            is_detached=lambda library: self.detached, has_links=self.linked.__contains__, forget=lambda pids: None
        )

    def start(self, pid: int, from_first_call: bool = True) -> None:
        self.sight.start(pid, LIBRARY, from_first_call, lambda pid: set())

    def state(self, pid: int) -> tuple[bool, bool, bool]:
        """Return whether all calls are seen, memory in use is known, and all contexts were seen."""
        return pid in self.covered, pid not in self.sight.unknown, self.sight.sees_contexts(pid)


def test_a_process_that_is_seen_from_its_first_call() -> None:
    scene = Scene()
    scene.start(1)
    scene.start(2, from_first_call=False)
    assert ((True, True, True), (False, True, False)) == (scene.state(1), scene.state(2))


def test_a_process_that_is_left_out() -> None:
    """Contexts are seen all the time. Nothing is known of the next process with its pid."""
    scene = Scene()
    scene.start(1)
    scene.sight.lose_allocations([1])
    assert (False, False, True) == scene.state(1) and 1 == len(scene.lost)
    scene.start(1)
    assert (False, False, True) == scene.state(1)
    scene.sight.forget([1])
    assert (False, True, False) == scene.state(1)


@pytest.mark.parametrize("called", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_a_process_that_starts_meanwhile(called: bool, early: bool) -> None:
    """All its calls are seen if it made none before it got links of its own, even before its start is announced."""
    scene = Scene()
    scene.detached = True
    scene.called |= {1} if called else set()
    scene.linked |= {1} if early else set()
    scene.start(1)
    if not early:
        assert (False, False, True) == scene.state(1)
        scene.sight.meet(1)
    assert (not called, not called, True) == scene.state(1)
    scene.sight.meet(2)
    assert 2 not in scene.covered


def test_returns_that_are_not_seen() -> None:
    """Memory in use is unknown after one of an allocation, not after one of a copy or a wait."""
    scene = Scene()
    for pid, group in ((1, MEMORY), (2, TRANSFERS)):
        scene.start(pid)
        scene.sight.miss_returns(group, [pid])
    assert ((False, False, False), False) == (scene.state(1), scene.sight.is_partial(1))
    assert ((True, True, True), True) == (scene.state(2), scene.sight.is_partial(2))
