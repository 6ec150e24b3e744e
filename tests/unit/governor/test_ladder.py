"""Level and share of time of a function, by what its probes cost."""

from __future__ import annotations

import pytest

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
    assert [(False, 1.0), (True, 0.25)] == looks(Ladder(), 10, 4)


def test_the_share_follows_the_pressure_by_a_factor_of_two_at_most() -> None:
    ladder = Ladder()
    looks(ladder, 4, 4)
    assert [(True, 0.2), (True, 0.1), (True, 0.2), (True, 0.4)] == looks(ladder, 1.25, 100, 0.01, 0)


def test_a_window_stays_whatever_the_pressure_is() -> None:
    ladder = Ladder()
    looks(ladder, 1e9, 1e9)
    assert (True, LEAST) == looks(ladder, *[1e9] * 20)[-1]


@pytest.mark.parametrize(("pressure", "back"), [(0.5, True), (0.6, False), (1.0, False)])
def test_all_calls_are_counted_again_when_it_is_calm_for_some_looks(pressure: float, back: bool) -> None:
    """Half of the bound, all calls probed: what is just within the bound stays in windows, of all the time."""
    ladder = Ladder()
    looks(ladder, 2, 2, 0)
    assert (True, 1.0) == (ladder.throttled, ladder.share)
    assert [not back, not back] == [it for it, _ in looks(ladder, *[pressure] * 4)][2:]
    assert 1.0 == ladder.share
    if back:
        assert [False, True] == [it for it, _ in looks(ladder, 3, 3)], "as patient as at first"


def test_calm_is_counted_from_the_beginning_after_an_interruption() -> None:
    ladder = Ladder()
    looks(ladder, 2, 2, 0)
    assert [True] * 5 == [it for it, _ in looks(ladder, 0.1, 0.1, 0.7, 0.1, 0.1)]
    assert not looks(ladder, 0.1)[0][0]


def test_cycles_are_longer_where_the_least_share_costs_too_much() -> None:
    """Twice at most; and as long as usual as soon as half of the bound is enough."""
    ladder = Ladder()
    looks(ladder, 1000, 1000)
    seen = []
    for pressure in (1.5, 1.2, 4, 0.8, 0.9, 1.1, 0.5, 0.2):
        ladder.look(pressure)
        seen.append((round(ladder.stretch, 2), round(ladder.share, 4)))
    at_least = [1.5, 1.8, 2.0, 1.6, 1.44, 1.58]
    assert [*((it, 0.002) for it in at_least), (1.0, 0.004), (1.0, 0.008)] == seen
