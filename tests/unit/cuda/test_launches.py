"""Cost of launches to a process, and estimates added to its counts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from exporter.cuda.activity import Activity, Counts, Launches
from exporter.cuda.functions import FUNCTIONS
from exporter.cuda.launches import CudaLaunches
from exporter.governor.estimates import ProcessTally
from tests.unit.cuda.fakes import FakeMap, empty_maps, row
from tests.unit.priced import Probes

NUMBERS = {it.name: number for number, it in enumerate(FUNCTIONS, 1)}
LAUNCH, GRAPH, COPY, WAIT, RUNTIME = (
    NUMBERS[name]
    for name in ("cuLaunchKernel", "cuGraphLaunch", "cuMemcpyHtoD_v2", "cuStreamSynchronize", "cudaLaunchKernel")
)
PRICES = {
    "cuLaunchKernel": 1e-6,
    "cuGraphLaunch": 2e-6,
    "cuMemcpyHtoD_v2": 3e-6,
    "cuStreamSynchronize": 4e-6,
    "cudaLaunchKernel": 5e-6,
}


def made(prices: Mapping[str, float] = PRICES, layer: str = "driver") -> CudaLaunches:
    """Process 1 has used two devices and the runtime, process 2 nothing; 9 has ended."""

    def cpu(pid: int) -> float:
        if pid == 9:
            raise OSError
        return 60.0 + pid

    launches = FakeMap(
        (row(tgid=1, api=LAUNCH), row(calls=100, last_ns=1)),
        (row(tgid=1, api=LAUNCH, device=2), row(calls=50, last_ns=1)),
        (row(tgid=1, api=GRAPH), row(calls=10, last_ns=1)),
        (row(tgid=1, api=RUNTIME), row(calls=7, last_ns=1)),
        (row(tgid=9, api=LAUNCH), row(calls=1000, last_ns=1)),
    )
    calls = FakeMap((row(tgid=1, api=COPY), 20), (row(tgid=1, api=WAIT), 30), (row(tgid=9, api=WAIT), 5))
    return CudaLaunches(Probes(prices), empty_maps() | {"launches": launches, "calls": calls}, layer, cpu)


def test_tallies() -> None:
    """Launches by device and function, apart from other calls, which they are estimated by; those of the other API
    layer are among these. Nothing of an ended process."""
    found = made().tallies([1, 2, 9])
    assert {1, 2} == found.keys()
    assert {(0, LAUNCH): 100, (2, LAUNCH): 50, (0, GRAPH): 10} == found[1].counts
    assert (20 + 30 + 7, 61.0) == (found[1].reference, found[1].cpu)
    assert pytest.approx(150e-6 + 20e-6) == found[1].cost
    assert pytest.approx(60e-6 + 120e-6 + 35e-6) == found[1].other
    assert ProcessTally({}, 0, 0, 0, 62.0, begun=False) == found[2]


def test_the_layer_that_is_probed_alone() -> None:
    """A launch of the runtime may be the first call of a process, as it makes the context."""
    found = made(layer="runtime").tallies([1, 2])
    assert {(0, RUNTIME): 7} == found[1].counts
    assert found[2].begun


def test_the_cost_of_all_launches() -> None:
    """Other calls are not in it; without prices it is not known."""
    assert pytest.approx(1150e-6 + 20e-6) == made().sampled_cost()
    assert made({}).sampled_cost() is None


def test_estimates_are_added() -> None:
    """To each device and function; the time of the newest launch stays."""
    activity = Activity(devices={0: Counts(launches={LAUNCH: Launches(100, 77)}, calls={COPY: 20})})
    made().add(activity, {(0, LAUNCH): 900, (0, GRAPH): 3})
    assert {LAUNCH: Launches(1000, 77), GRAPH: Launches(3, 0)} == activity.devices[0].launches
    assert {COPY: 20} == activity.devices[0].calls


def test_counts_that_are_not_known() -> None:
    """Of launches probed in windows only the time of the newest one is known; the runtime's and other calls count."""
    counts = Counts(launches={LAUNCH: Launches(100, 77), RUNTIME: Launches(7, 7)}, calls={COPY: 20})
    made().add(Activity(devices={0: counts}), None)
    assert {LAUNCH: Launches(0, 77), RUNTIME: Launches(7, 7)} == counts.launches
    assert {COPY: 20} == counts.calls


def test_the_last_tally_is_of_what_was_counted() -> None:
    counts = Counts(launches={LAUNCH: Launches(100, 77)}, calls={COPY: 20, WAIT: 1})
    last = made().last(1, Activity(devices={3: counts}))(ProcessTally({}, 0, 0, 0, 33.0))
    assert ({(3, LAUNCH): 100}, 21, 33.0) == (last.counts, last.reference, last.cpu)
