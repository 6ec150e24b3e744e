"""Copies, waits and allocations of which calls are left out: their cost, and what is shown."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from exporter.bpf.process_links import MOST
from exporter.bpf.sampled_file import SampledFile
from exporter.cuda.activity import Activity, Counts, Errors, Launches, MemoryTotals, Waits
from exporter.cuda.functions import FUNCTIONS, MEMORY, TRANSFERS
from exporter.cuda.group_calls import Allocations, GroupCalls
from exporter.cuda.launches import CudaLaunches
from tests.unit.cuda.fakes import FakeMap, empty_maps, row
from tests.unit.priced import Probes

NUMBERS = {it.name: number for number, it in enumerate(FUNCTIONS, 1)}
LAUNCH, COPY, WAIT, ALLOCATE, FREE, CREATE, CONTEXT = (
    NUMBERS[name]
    for name in (
        "cuLaunchKernel",
        "cuMemcpyHtoD_v2",
        "cuStreamSynchronize",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemCreate",
        "cuCtxCreate_v2",
    )
)
PRICES = {"cuMemcpy": 1e-6, "cuMemcpyHtoD_v2": 3e-6, "cuStreamSynchronize": 4e-6, "cuMemAlloc_v2": 5e-6}
PRICES |= {"cuMemFree_v2": 6e-6, "cuLaunchKernel": 1e-6, "cuCtxCreate_v2": 7e-6}
WINDOW_PRICE, DEVICE, VMM = 1e-6, (0, 0), (0, 2)


def maps() -> dict[str, FakeMap]:
    """Process 1 copied in windows too, process 2 only has a context."""
    calls = FakeMap(
        (row(tgid=1, api=CONTEXT), 1),
        (row(tgid=1, api=COPY), 20),
        (row(tgid=1, api=COPY, device=2), 10),
        (row(tgid=1, api=WAIT), 30),
        (row(tgid=1, api=ALLOCATE), 4),
        (row(tgid=2, api=CONTEXT), 1),
    )
    windows = FakeMap((row(tgid=1, api=COPY), 12), (row(tgid=3, api=WAIT), 7))
    return empty_maps() | {"calls": calls, "window_calls": windows}


def made(group: str = TRANSFERS, layer: str = "driver") -> GroupCalls:
    return GroupCalls(group, layer, Probes(PRICES), maps(), lambda: WINDOW_PRICE, lambda pid: 60.0 + pid)


def test_tallies() -> None:
    """Calls of the group by device and function, at the price of all programs; what windows saved is apart."""
    found = made().tallies([1, 2, 3])
    assert {(0, COPY): 20, (2, COPY): 10, (0, WAIT): 30} == found[1].counts
    assert pytest.approx(30 * 3e-6 + 30 * 4e-6) == found[1].cost
    assert pytest.approx(12 * 2e-6) == found[1].saved
    assert (0.0, 0.0, 61.0, True) == (found[1].reference, found[1].other, found[1].cpu, found[1].begun)
    assert ({}, 0.0, True) == (found[2].counts, found[2].cost, found[2].begun)
    assert not found[3].begun
    assert made(layer="runtime").tallies([3])[3].begun, "a call of the runtime may be the first one"
    assert {(0, ALLOCATE): 4} == made(MEMORY).tallies([1])[1].counts


def test_the_cost_of_all_calls() -> None:
    assert pytest.approx(30 * 3e-6 + 30 * 4e-6 - 12 * 2e-6 - 7 * 3e-6) == made().sampled_cost()
    assert GroupCalls(TRANSFERS, "driver", Probes({}), maps(), lambda: 0.0).sampled_cost() is None


def activity() -> Activity:
    counts = Counts(
        launches={LAUNCH: Launches(100, 77)},
        calls={COPY: 20, WAIT: 30, ALLOCATE: 4, CONTEXT: 1},
        errors={(COPY, 1): Errors(2, 3), (ALLOCATE, 2): Errors(1, 4), (CONTEXT, 9): Errors(1, 5)},
        waits={WAIT: Waits(5, (1, 2))},
        copies={(1, 2): 4096},
        memory={DEVICE: MemoryTotals(10, 5, 0, 0, 0), VMM: MemoryTotals(7, 0, 0, 0, 0)},
    )
    made = Activity()
    made.devices[0] = counts
    return made


def test_what_is_shown_of_a_process_that_is_left_out() -> None:
    """Calls are estimated; what they did is absent, of the group's functions only."""
    shown = activity()
    made().add(shown, {(0, COPY): 5, (3, WAIT): 2}, absent=True)
    counts = shown.devices[0]
    assert ({COPY: 25, WAIT: 30, ALLOCATE: 4, CONTEXT: 1}, {WAIT: 2}) == (counts.calls, shown.devices[3].calls)
    assert ({}, {}, {(ALLOCATE, 2), (CONTEXT, 9)}) == (counts.waits, counts.copies, counts.errors.keys())
    assert {DEVICE, VMM} == counts.memory.keys() and counts.launches


def test_calls_that_are_not_known() -> None:
    shown = activity()
    made().add(shown, None, absent=True)
    assert {ALLOCATE: 4, CONTEXT: 1} == shown.devices[0].calls


def test_estimates_stay_when_all_calls_are_probed_again() -> None:
    shown, whole = activity(), activity().devices[0]
    made().add(shown, {(0, COPY): 5}, absent=False)
    counts = shown.devices[0]
    assert (25, whole.copies, whole.waits, whole.errors) == (
        counts.calls[COPY],
        counts.copies,
        counts.waits,
        counts.errors,
    )


class File:
    """A file's functions that allocate, and what was done with them and with processes."""

    def __init__(self, *pids: int) -> None:
        self.pids, self.done = list(pids), list[Any]()
        self.kept: Collection[int] = ()
        maps = empty_maps() | {"calls": FakeMap(), "window_calls": FakeMap()}
        lost = lambda pids: self.done.append(("lose", *sorted(pids))) if pids else None  # noqa: E731
        met = lambda pid: self.done.append(("meet", pid))  # noqa: E731
        self.subject = Allocations("driver", self, maps, lambda: 0.0, [DEVICE], lost, met)

    def price(self, symbol: str) -> float | None:
        return None

    def sampled_files(self, group: str) -> dict[int, SampledFile]:
        probe = lambda on: self.done.append(("probe", on))  # noqa: E731
        return {id(self): SampledFile("libcuda.so.1", (), [*self.pids], probe, self._keep, lambda: None)}

    def _keep(self, pids: Collection[int]) -> Collection[int]:
        self.kept = sorted(pids)
        return self.kept

    @property
    def file(self) -> Any:
        return self.subject.sampled_files()[id(self)]

    def since(self) -> list[Any]:
        done, self.done[:] = [*self.done], []
        return done


def test_processes_that_are_left_out_are_lost_once() -> None:
    """After their probes are gone, and before windows; those with links of their own are not, until they lose them."""
    scene = File(1, 2, 3)
    scene.file.keep([2, 3])
    assert [] == scene.since() and not scene.subject.is_detached(scene)
    scene.file.probe(False)
    assert [("probe", False), ("lose", 1)] == scene.since() and scene.subject.is_detached(scene)
    scene.file.probe(True)
    scene.file.probe(False)
    assert [("probe", True), ("probe", False)] == scene.since()
    scene.file.keep([2])
    assert [("lose", 3)] == scene.since() and scene.subject.has_links(2) and not scene.subject.has_links(3)
    scene.file.keep([1, 2])
    assert [("meet", 1)] == scene.since()
    scene.file.keep([2])
    assert [("lose", 1)] == scene.since(), "what it allocated with links of its own"
    scene.file.restore()
    scene.file.keep([])
    assert [] == scene.since() and not scene.subject.is_detached(scene)


def test_a_process_that_starts_meanwhile() -> None:
    """A process is met once it has links, and another one under the pid of one that has ended is lost as any."""
    scene = File(1, 2)
    scene.file.keep([2])
    scene.file.probe(False)
    scene.pids.append(4)
    scene.since()
    scene.file.keep([2, 4])
    assert [("meet", 4)] == scene.since()
    scene.subject.forget([2, 1])
    scene.file.probe(False)
    assert [("probe", False), ("lose", 1, 2)] == scene.since()


def test_a_file_of_too_many_processes_is_never_left_out() -> None:
    """Not all could have links of their own: many would lose what they have in use because of one."""
    assert {} == File(*range(MOST + 1)).subject.sampled_files()
    scene = File(*range(MOST))
    scene.file.probe(False)
    scene.pids.append(MOST)
    assert scene.subject.sampled_files()


def test_memory_that_is_absent() -> None:
    """Not that of functions which are always probed."""
    shown = activity()
    File().subject.add(shown, {}, absent=True)
    assert [VMM] == [*shown.devices[0].memory] and {(COPY, 1), (CONTEXT, 9)} == shown.devices[0].errors.keys()


class Later:
    """Functions that are left out of process 1."""

    rank, apis = 3, (COPY, WAIT)

    def leaves_out(self, pid: int) -> bool:
        return pid == 1


def test_launches_go_by_what_is_still_counted() -> None:
    """Copies and waits that are left out are no reference, and their cost is their own subject's."""
    later = Later()
    launches = CudaLaunches(Probes(PRICES), maps(), "driver", lambda pid: 1.0, [later])
    found = launches.tallies([1, 2])
    assert (5, (3,)) == (found[1].reference, found[1].measure)
    assert (1, ()) == (found[2].reference, found[2].measure)
    assert pytest.approx(4 * 5e-6 + 7e-6) == found[1].other
