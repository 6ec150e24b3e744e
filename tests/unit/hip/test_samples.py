"""The label `runtime` of the series of HIP processes, in each profile and over OTLP."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exporter.call_collector import ERRORS, Rows
from exporter.hip import metrics
from exporter.hip.records import CALLS, COPIES, LAUNCHES, TOTALS, WAITS
from exporter.hip.samples import Names, samples
from exporter.ledger import Process
from exporter.model import Metric, Sample
from exporter.profile import Profile
from exporter.reduction import Reduction
from exporter.views import otlp

OF_PROCESSES = {it for it in vars(metrics).values() if isinstance(it, Metric) and it.process}
LAUNCH, GRAPH = 1, 2
FUNCTIONS = {LAUNCH: "hipLaunchKernel", GRAPH: "hipGraphLaunch"}
COUNTED = SimpleNamespace(calls=23, last_ns=1_000_000_000)
TOTAL = SimpleNamespace(allocated=40, freed=10, implicit=0, untracked=0, unmatched_frees=3, resets=0)
OVERFLOWED = SimpleNamespace(allocated=40, freed=10, implicit=0, untracked=20, unmatched_frees=0, resets=0)


def key(**fields: int) -> SimpleNamespace:
    return SimpleNamespace(tgid=7, device=0, **fields)


def made(**gpu: str) -> list[Sample]:
    """Return the samples of process 7, which has rows in each map and its memory on this GPU."""
    maps: dict[str, list[tuple[Any, Any]]] = {
        LAUNCHES: [(key(api=LAUNCH), COUNTED), (key(api=GRAPH), COUNTED)],
        CALLS: [(key(api=LAUNCH), 23)],
        ERRORS: [(key(api=LAUNCH, code=2), COUNTED)],
        WAITS: [(key(api=LAUNCH), SimpleNamespace(sum_ns=5, slots=(1, 2)))],
        TOTALS: [(key(memory=0), TOTAL), (key(memory=1), OVERFLOWED)],
        COPIES: [(key(direction=0), 23)],
    }
    rows = {name: {bytes([at]): row for at, row in enumerate(held)} for name, held in maps.items()}
    process = Process(7, {"pid": "7", "comm": "train", "pod": "p"}, Rows(rows, {0: gpu}), 0.0)
    names = Names(FUNCTIONS.__getitem__, {0: "device", 1: "pool"}, {0: "h2d"})
    return list(samples(process, names, lambda ns: ns, False))


def test_each_series_of_a_process_has_the_runtime() -> None:
    """All metrics of processes have samples with the label, and with those of the GPU if it is known."""
    for gpu in ({}, {"card": "card1", "pci_bus_id": "0000:c1:00.0"}):
        found = made(**gpu)
        assert OF_PROCESSES - {metrics.SEEN_FROM_START} == {it.metric for it in found}
        assert all({"runtime": "hip", "pid": "7", **gpu}.items() <= it.labels.items() for it in found)
        assert all(set(it.labels) - {"pid", "comm", "pod"} <= set(it.metric.labels) for it in found)
    assert all("runtime" in it.labels for it in OF_PROCESSES)


@pytest.mark.parametrize("profile", [Profile.FLEET, Profile.NODE])
def test_profiles_keep_the_runtime(profile: Profile) -> None:
    """Each series of a profile has the label, whatever other labels the profile leaves out."""
    found = Reduction(profile).apply(made())
    assert len({it.metric for it in found}) > 5
    assert {"hip"} == {it.labels.get("runtime") for it in found}


def test_otlp_has_the_runtime() -> None:
    """The label is an attribute of each point."""
    assert {"hip"} == {otlp.attributes(it.labels).get("runtime") for it in made()}
