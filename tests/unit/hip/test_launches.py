"""Cost of HIP's launches to a process, and estimates added to its counts."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.call_collector import Rows
from exporter.governor.estimates import ProcessTally
from exporter.hip.launches import HipLaunches
from tests.unit.priced import Probes

LAUNCH, GRAPH, COPY, WAIT = range(1, 5)
NAMES = {LAUNCH: "hipLaunchKernel", GRAPH: "hipGraphLaunch", COPY: "hipMemcpyHtoD", WAIT: "hipStreamSynchronize"}
PRICES = {"hipLaunchKernel": 1e-6, "hipGraphLaunch": 2e-6, "hipMemcpyHtoD": 3e-6, "hipStreamSynchronize": 4e-6}


class Map:
    """Rows of a process and function; each reading of other calls finds `more` made since the one before."""

    def __init__(self, rows: Mapping[tuple[int, int], Any], more: tuple[int, ...] = ()) -> None:
        self._rows, self._more = dict(rows), list(more)

    def items(self) -> list[tuple[Any, Any]]:
        if self._more and (more := self._more.pop(0)):
            self._rows = {key: value + more for key, value in self._rows.items()}
        return [(SimpleNamespace(tgid=tgid, api=api, device=0), value) for (tgid, api), value in self._rows.items()]


def launched(calls: int) -> SimpleNamespace:
    return SimpleNamespace(calls=calls, last_ns=1, last_tick=1)


def made(prices: Mapping[str, float] = PRICES, calls: Map | None = None) -> HipLaunches:
    """Process 1 launches and makes other calls, process 2 does nothing; 9 has ended."""

    def cpu(pid: int) -> float:
        if pid == 9:
            raise OSError
        return 60.0 + pid

    maps = {
        "launches": Map({(1, LAUNCH): launched(100), (1, GRAPH): launched(10), (9, LAUNCH): launched(1000)}),
        "calls": calls or Map({(1, COPY): 20, (1, WAIT): 30, (9, WAIT): 5}),
        "process_hits": Map({(1, COPY): 21, (1, WAIT): 33, (9, WAIT): 5}),
    }
    return HipLaunches(Probes(prices), maps, NAMES, [LAUNCH, GRAPH], cpu)


def test_tallies() -> None:
    """Launches by function, the other calls as their reference, and hits of nested calls in the cost of the others."""
    found = made().tallies([1, 2, 9])
    assert {1, 2} == found.keys()
    assert {(0, LAUNCH): 100, (0, GRAPH): 10} == found[1].counts
    assert (50, 61.0) == (found[1].reference, found[1].cpu)
    assert pytest.approx(100e-6 + 20e-6) == found[1].cost
    assert pytest.approx(21 * 3e-6 + 33 * 4e-6) == found[1].other
    assert ProcessTally({}, 0, 0, 0, 62.0) == found[2]


def test_calls_while_it_reads() -> None:
    """Of two readings the one with fewer calls in between counts, with the mean of its calls."""
    calls = Map({(1, COPY): 20}, more=(0, 10, 0, 2))
    assert 31 == made(calls=calls).tallies([1])[1].reference


def test_the_cost_of_all_launches() -> None:
    """Other calls are not in it; without prices it is not known."""
    assert pytest.approx(1100e-6 + 20e-6) == made().sampled_cost()
    assert made({}).sampled_cost() is None


def rows_of(**maps: Mapping[int, Any]) -> Rows:
    """Rows of process 1 by map and function, each on the device with the function's number."""
    return Rows(
        {
            name: {bytes([api]): (SimpleNamespace(tgid=1, api=api, device=api), value) for api, value in rows.items()}
            for name, rows in maps.items()
        }
    )


def test_estimates_are_added() -> None:
    """To each function and device that was seen; what is not known has no number, and other calls stay."""
    rows = rows_of(launches={LAUNCH: launched(100), GRAPH: launched(2)}, calls={COPY: 20})
    subject = made()
    subject.add(rows, {(LAUNCH, LAUNCH): 900, (LAUNCH, GRAPH): 50})
    assert [(LAUNCH, 1000), (GRAPH, 2)] == [(key.api, value.calls) for key, value in rows.of("launches")]
    subject.add(rows, None)
    assert {(LAUNCH, 0), (GRAPH, 0)} == {(key.api, value.calls) for key, value in rows.of("launches")}
    assert [20] == [value for _, value in rows.of("calls")]


def test_the_last_tally() -> None:
    """Of a process that has ended counts are those that were removed, and CPU time is what was read last."""
    last = made().last(1, rows_of(launches={LAUNCH: launched(100)}, calls={COPY: 20, WAIT: 3}))
    found = last(ProcessTally({}, 0, 0, 0, 7.0))
    assert ({(LAUNCH, LAUNCH): 100}, 23, 7.0) == (found.counts, found.reference, found.cpu)
