"""Level and share of time of a function, by what its probes cost."""

from __future__ import annotations

import random

import pytest

from exporter.governor.files import CYCLE_SECONDS
from exporter.governor.ladder import LEAST, Ladder


def looks(ladder: Ladder, *pressures: float) -> list[tuple[bool, float]]:
    seen = []
    for it in pressures:
        ladder.look(it)
        seen.append((ladder.throttled, round(ladder.share, 4)))
    return seen


def test_one_look_over_the_bound_changes_nothing() -> None:
    assert [(False, 1.0)] * 4 == looks(Ladder(), 5, 0.9, 5, 0)


def test_two_looks_in_a_row_begin_windows_with_the_share_that_fits() -> None:
    assert [(False, 1.0), (True, 0.225)] == looks(Ladder(), 10, 4)


def test_the_share_follows_the_pressure_by_a_factor_of_two_at_most() -> None:
    ladder = Ladder()
    looks(ladder, 9, 9)
    assert [(True, 0.05), (True, 0.025)] == looks(ladder, 100, 100)


def test_the_share_grows_faster_once_no_look_sees_a_cost() -> None:
    ladder = Ladder()
    looks(ladder, 90, 90)
    idle = [0.02, 0.04, 0.16, 0.64, 1.0]
    assert [(True, it) for it in idle] == looks(ladder, *[0] * 5)


@pytest.mark.parametrize("most", [1.5, 40, 1e6])
def test_calls_that_do_not_come_any_more_are_counted_again_within_a_minute(most: float) -> None:
    """Also after many windows in which they cost too much."""
    ladder, seconds = Ladder(), 0.0
    looks(ladder, most, most)
    for _ in range(20):
        looks(ladder, most * ladder.share / ladder.stretch)
    while ladder.throttled:
        seconds += CYCLE_SECONDS * ladder.stretch
        looks(ladder, 0)
    assert seconds <= 50


def test_one_look_without_a_cost_changes_little() -> None:
    """A window may fall into a pause of the job."""
    ladder = Ladder()
    looks(ladder, 9, 9, *[0.9] * 5)
    [(_, share)] = looks(ladder, 0)
    assert share == pytest.approx(0.1 * 5 / 4)


@pytest.mark.parametrize("noise", [0.02, 0.2, 0.4])
@pytest.mark.parametrize("pauses", [0.0, 1 / 6])
def test_the_bound_is_kept_on_average(noise: float, pauses: float) -> None:
    """Costs of windows vary, and shares follow the costs of earlier ones: on average they stay below the bound."""
    ladder, chance = Ladder(), random.Random(7)
    looks(ladder, 90, 90)
    seen = []
    for _ in range(2000):
        busy = chance.random() >= pauses
        pressure = ladder.share / ladder.stretch * 90 * busy * chance.lognormvariate(-(noise**2) / 2, noise)
        seen.append(pressure)
        ladder.look(pressure)
    assert 0.75 < sum(seen) / len(seen) < 0.95


def test_what_a_window_cost_too_much_is_made_up_for() -> None:
    ladder = Ladder()
    looks(ladder, 90, 90, 0.9, 0.9, 0.9, 0.9, 0.9)
    before = ladder.share
    [(_, once)] = looks(ladder, 1.2)
    assert once * 90 == pytest.approx(0.9 - 0.3, rel=0.1) and before * 90 == pytest.approx(0.9)


def test_a_window_stays_whatever_the_pressure_is() -> None:
    ladder = Ladder()
    looks(ladder, 1e9, 1e9)
    assert (True, LEAST) == looks(ladder, *[1e9] * 20)[-1]


@pytest.mark.parametrize(("pressure", "back"), [(0.5, True), (0.6, False), (1.0, False)])
def test_all_calls_are_counted_again_when_it_is_calm_for_some_looks(pressure: float, back: bool) -> None:
    """Half of the bound, all calls probed: what is just within the bound stays in windows, of all the time."""
    ladder = Ladder()
    looks(ladder, 2, 2, 0, 0)
    assert (True, 1.0) == (ladder.throttled, ladder.share)
    assert [not back, not back] == [it for it, _ in looks(ladder, *[pressure] * 4)][2:]
    assert 1.0 == ladder.share
    if back:
        assert [False, True] == [it for it, _ in looks(ladder, 3, 3)], "as patient as at first"


def test_calm_is_counted_from_the_beginning_after_an_interruption() -> None:
    ladder = Ladder()
    looks(ladder, 2, 2, 0, 0)
    assert [True] * 5 == [it for it, _ in looks(ladder, 0.1, 0.1, 0.7, 0.1, 0.1)]
    assert not looks(ladder, 0.1)[0][0]


def test_cycles_are_longer_where_the_least_share_costs_too_much() -> None:
    """Twice at most; and as long as usual as soon as less than the bound is needed."""
    ladder = Ladder()
    looks(ladder, 1000, 1000)
    assert (LEAST, 1.0) == (ladder.share, ladder.stretch)
    looks(ladder, 1.2)
    assert LEAST == ladder.share and 1.5 < ladder.stretch < 2
    looks(ladder, 4, 4)
    assert (LEAST, 2.0) == (ladder.share, ladder.stretch)
    for _ in range(10):
        looks(ladder, 0.2)
    assert LEAST < ladder.share and 1.0 == ladder.stretch
