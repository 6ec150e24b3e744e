"""Processes that are probed all the time while others are in windows."""

from __future__ import annotations

from exporter.governor.standings import Standings


def test_those_that_cost_little_are_kept_at_once() -> None:
    """At the looks before windows begin all calls are counted, so one look is enough."""
    standings = Standings()
    standings.look({1: 50.0, 2: 1.0, 3: 0.0}, 1.0)
    assert {2, 3} == standings.polite()


def test_one_in_windows_has_to_be_calm_for_some_looks() -> None:
    """By what it would cost with all calls probed."""
    standings = Standings()
    seen = []
    for pressure in (0.1, 0.04, 0.04, 0.2, 0.05, 0.05, 0.05):
        standings.look({1: pressure}, 0.1)
        seen.append(standings.polite())
    assert [set()] * 6 + [{1}] == seen


def test_one_in_windows_has_to_be_seen_for_some_time() -> None:
    """On a busy node it may get no processor in windows. One that needs no processor costs nothing."""
    standings = Standings()
    looks = 0
    while not standings.polite():
        standings.look({1: 0.0}, 0.01, {1: 0.4})
        looks += 1
    assert 13 == looks
    standings.look({1: 0.0, 2: 0.0}, 0.01, {1: 0.5})
    standings.look({1: 1.0, 2: 0.0}, 0.01, {1: 0.5})
    assert not standings.polite()
    standings.look({1: 0.0, 2: 0.0}, 0.01, {1: 0.5})
    assert {2} == standings.polite()


def test_one_that_is_kept_goes_when_it_exceeds_the_bound_or_ends() -> None:
    standings = Standings()
    standings.look({1: 0.9, 2: 0.1}, 1.0)
    standings.kept = standings.polite()
    standings.look({1: 1.0, 2: 0.1}, 0.002)
    assert {1, 2} == standings.polite()
    standings.look({1: 1.1}, 0.002)
    assert not standings.polite()
