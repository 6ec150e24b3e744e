"""Counts of the maps, and total calls of each function."""

from __future__ import annotations

from exporter.cuda.activity import Activity, Counted
from exporter.model import Labels
from tests.unit.cuda.fakes import FakeMap, empty_maps, row

API = 1


class World:
    """Maps that a test fills."""

    def __init__(self) -> None:
        self.maps = empty_maps()
        self.forgotten: list[int] = []
        self.counted = Counted(self.maps, self.forgotten.extend, self._gpus)

    def _gpus(self, pid: int, activity: Activity) -> dict[int, Labels]:
        return {device: {"gpu": str(pid)} for device in activity.devices}

    def count(self, pid: int, calls: int) -> None:
        """The kernel has counted so many calls of a process."""
        self.maps["calls"].rows = [(key, value) for key, value in self.maps["calls"].rows if key.tgid != pid]
        self.maps["calls"].rows.append((row(tgid=pid, api=API), calls))


def test_read() -> None:
    """Each process with what was counted of it, and the GPUs of its devices."""
    world = World()
    world.count(7, 23)
    world.maps["used_devices"] = FakeMap((7, row(used=0b101, first=2, since_ns=23)))

    [(pid, activity)] = world.counted.read().items()

    assert (7, {API: 23}, {0: {"gpu": "7"}}) == (pid, activity.whole().calls, activity.gpus)
    assert (frozenset({0, 2}), 2, 23) == (activity.used, activity.first, activity.since_ns)


def test_hits_never_fall() -> None:
    """Calls by function outlive their processes."""
    world, seen = World(), []
    for pid in (1, 2):
        world.count(pid, 10)
        world.counted.read()
        seen.append(world.counted.hits()[API])
        assert {API: 10} == world.counted.take([pid])[pid].whole().calls
        world.counted.read()
        seen.append(world.counted.hits()[API])

    assert [10, 10, 20, 20] == seen
    assert ([1, 2], []) == (world.forgotten, world.maps["calls"].rows)


def test_memory_of_an_ended_process() -> None:
    """Memory not freed was freed implicitly, except untracked memory, which calls may have freed."""
    world = World()
    total = row(allocated=100, freed=30, implicit=20, untracked=10, unmatched_frees=0, doubtful=5)
    world.maps["totals"].rows.append((row(tgid=7, layer=0, memory=0), total))
    activity = world.counted.read()[7]
    activity.ended()

    [memory] = activity.whole().memory.values()
    assert 0 == memory.doubtful
    assert (100, 30, 60, 10) == (memory.allocated, memory.freed, memory.implicit, memory.untracked)
