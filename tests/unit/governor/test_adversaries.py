"""Processes that are busy and idle in turns: over any 10 s probes take what they may, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.governor.weights import FLOOR
from tests.unit.governor.adversaries import BOUND, Adversary, Simulation, phases, random_phases

PEAK = 1.25
"""Parts of the bound that any 10 s may cost: an offence is noticed at the next look, and detaching takes some time."""
LENGTHS = (0.1, 0.3, 0.5, 1, 2, 3, 5, 11)
own_links = pytest.mark.parametrize("alone", [True, False], ids=["own links", "no own links"])
idle_or_not = pytest.mark.parametrize("spins", [False, True], ids=["idle", "working"])


@pytest.mark.parametrize("length", LENGTHS)
@idle_or_not
@own_links
def test_phases_of_one_length(length: float, spins: bool, alone: bool) -> None:
    for seed in (1, 2):
        it = Adversary(phases(length, length), spins=spins)
        Simulation({1: it}, alone, seed).run(300)
        assert it.worst(FLOOR) <= PEAK * BOUND
        assert it.share() <= BOUND


@pytest.mark.parametrize(("busy", "idle"), [(1, 20), (11, 5), (30, 30), (70, 70), (0.2, 9), (1e9, 1)])
@own_links
def test_other_phases(busy: float, idle: float, alone: bool) -> None:
    """Also longer than it takes until all calls are counted again. One that was busy for so long that it is taken for
    one that never stops may have been probed just before it does."""
    it = Adversary(phases(busy, idle))
    Simulation({1: it}, alone).run(600)
    assert it.worst(FLOOR) <= 2 * BOUND


@given(st.lists(st.floats(0.02, 11), min_size=2, max_size=12), st.booleans(), st.booleans(), st.integers(0, 9))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_phases(lengths: list[float], spins: bool, alone: bool, seed: int) -> None:
    it = Adversary(chain([3.0], cycle(lengths)), spins=spins)
    Simulation({1: it}, alone, seed).run(120)
    assert it.worst(FLOOR) <= 1.5 * BOUND


@pytest.mark.parametrize("own", [1e-6, 5e-6, 50e-6])
@idle_or_not
def test_calls_that_take_longer(own: float, spins: bool) -> None:
    """Probes take a part of their time only, and windows are longer."""
    it = Adversary(random_phases(1, 0.1, 5), own=own, spins=spins)
    Simulation({1: it}, alone=True).run(300)
    assert it.worst(FLOOR) <= PEAK * BOUND


@pytest.mark.parametrize("length", [0.1, 1, 11])
@idle_or_not
@own_links
def test_all_calls_are_counted_again_when_it_calms_down(length: float, spins: bool, alone: bool) -> None:
    """Within a minute, and they stay so. Its CPU time does not matter."""

    def lengths() -> Iterator[float]:
        return islice(phases(length, length), round(120 / length))

    it = Adversary(lengths(), spins=spins)
    simulation = Simulation({1: it}, alone)
    simulation.run(121)
    assert it.calm and it.seen < it.sent / 2
    simulation.run(59)
    seen, sent = it.seen, it.sent
    simulation.run(120)
    assert it.seen - seen == pytest.approx(it.sent - sent)


def test_many_processes_in_turns_and_a_polite_one() -> None:
    """Each keeps its CPU time, and of the polite one each call counts."""
    its = {pid: Adversary(random_phases(pid, 0.1, 5), spins=pid % 2 == 0) for pid in range(1, 51)}
    polite = Adversary(iter(()), spins=True, calm=True)
    simulation = Simulation({**its, 99: polite}, alone=True)
    simulation.run(120)
    assert polite.seen == polite.sent
    assert max(it.worst(FLOOR) for it in its.values()) <= 2.5 * BOUND
    assert sum(it.share() for it in its.values()) / len(its) <= BOUND


def test_a_process_of_many_threads() -> None:
    it = Adversary(phases(1, 1), threads=32)
    Simulation({1: it}, alone=True).run(300)
    assert it.worst(FLOOR) <= 2 * BOUND


def test_an_idle_process_is_not_read() -> None:
    """One that cost too much is looked at often, but by its CPU clock alone."""
    it = Adversary(islice(phases(3, 1), 3))
    simulation = Simulation({1: it}, alone=True)
    simulation.run(60)
    before = simulation.subject.reads
    it.calm, it.busy = False, False
    simulation.run(60)
    assert simulation.subject.reads - before < 150
