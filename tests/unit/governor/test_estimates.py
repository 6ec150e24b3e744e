"""Counts of what was not probed."""

from __future__ import annotations

import pytest

from exporter.governor.estimates import ENOUGH, Estimates, ProcessTally

OWNER, OTHER = object(), object()
START = ProcessTally({}, 0, 0, 0, 0)


def at(calls: int, groups: float, cpu: float = 0.0, cost: float = 0.0) -> ProcessTally:
    return ProcessTally({"calls": calls, "bytes": 10 * calls}, groups, cost, 0, cpu)


def begun(estimates: Estimates, pid: int = 1) -> None:
    """A first window of 100 groups of 8 calls."""
    estimates.begin(OWNER, {pid: START}, {pid: at(800, 100)})


def test_nothing_is_estimated_while_all_is_seen() -> None:
    estimates = Estimates()
    begun(estimates)
    estimates.advance(OWNER, {1: at(8000, 1000)}, probed=True)
    estimates.settle(OWNER)
    assert not any(estimates.missed(1).values())
    assert {} == estimates.missed(2)


def test_a_gap_counts_by_the_reference() -> None:
    """400 groups of 8 calls, also where windows before and after are slower: time is nowhere in it."""
    estimates = Estimates()
    begun(estimates)
    estimates.advance(OWNER, {1: at(800, 500)}, probed=False)
    estimates.advance(OWNER, {1: at(1600, 600)}, probed=True)
    estimates.settle(OWNER)
    assert {"calls": 3200, "bytes": 32000} == estimates.missed(1)


def test_both_windows_beside_a_gap_count() -> None:
    """8 calls a group before, 16 after: 12 between."""
    estimates = Estimates()
    begun(estimates)
    estimates.advance(OWNER, {1: at(800, 500)}, probed=False)
    estimates.advance(OWNER, {1: at(2400, 600)}, probed=True)
    estimates.settle(OWNER)
    assert 4800 == estimates.missed(1)["calls"]


def test_calls_that_were_seen_in_a_gap_are_not_counted_twice() -> None:
    """As while probes come and go; also where more were seen than were expected: counts never fall."""
    estimates = Estimates()
    begun(estimates)
    estimates.advance(OWNER, {1: at(900, 500)}, probed=False)
    estimates.settle(OWNER)
    assert 3100 == estimates.missed(1)["calls"]
    estimates.advance(OWNER, {1: at(990_000, 501)}, probed=False)
    estimates.settle(OWNER)
    assert 3100 == estimates.missed(1)["calls"]


def test_without_a_reference_the_processors_time_counts() -> None:
    """Without what probes took: 1,000 calls in 1 s less 0.2 s, so 5,000 in 4 s."""
    estimates = Estimates()
    few = ENOUGH - 1
    estimates.begin(OWNER, {1: START}, {1: at(1000, few, 1.0, 0.2)})
    estimates.advance(OWNER, {1: at(1000, 9000, 5.0, 0.2)}, probed=False)
    estimates.settle(OWNER)
    assert 5000 == estimates.missed(1)["calls"]


def by_time(estimates: Estimates, pieces: list[tuple[float, bool, int]]) -> None:
    """Add pieces of CPU time without another reference, each probed or not, with so many calls that are seen.

    A probe takes 4 µs of a call.
    """
    now = estimates._by_pid[1].at if estimates.knows(1) else START
    for cpu, probed, calls in pieces:
        seen = now.counts.get("calls", 0) + calls
        now = ProcessTally({"calls": seen}, 0, seen * 4e-6, 0, now.cpu + cpu)
        if estimates.knows(1):
            estimates.advance(OWNER, {1: now}, probed)
        else:
            estimates.begin(OWNER, {1: START}, {1: now})
        if probed:
            estimates.settle(OWNER)


def test_a_process_that_gets_no_processor_in_a_window() -> None:
    """The gaps beside such a window go by others: 100,000 calls in a second without probes, so 200,000 in two."""
    estimates = Estimates()
    by_time(estimates, [(1.0, True, 71_429), (1.0, False, 0), (0.0, True, 0), (1.0, False, 0), (0.1, True, 7143)])
    missed = estimates.missed(1)
    assert missed and missed["calls"] == pytest.approx(200_000, rel=0.001)


def test_a_process_that_did_nothing_before_its_first_window() -> None:
    """A gap goes on until there is a window in which the process did something."""
    estimates = Estimates()
    by_time(estimates, [(0.0, True, 0), (1.0, False, 0), (0.0, True, 0)])
    assert estimates.missed(1) == {}
    by_time(estimates, [(1.0, False, 0), (0.14, True, 10_000)])
    missed = estimates.missed(1)
    assert missed and missed["calls"] == pytest.approx(200_000, rel=0.001)


def test_short_windows_decide_nothing_alone() -> None:
    """Counts and CPU time may be a tick apart, which in a short window looks as if probes took most of it."""
    estimates = Estimates()
    window, short = [(1.0, False, 0), (0.02, True, 1429)], [(1.0, False, 0), (0.002, True, 400)]
    by_time(estimates, [(1.0, True, 71_429), *3 * window, *2 * short, *window])
    missed = estimates.missed(1)
    assert missed and missed["calls"] == pytest.approx(600_000, rel=0.1)


def test_a_process_that_calls_no_more() -> None:
    """Windows that hold plenty of CPU time replace those before."""
    estimates = Estimates()
    by_time(estimates, [(1.0, True, 71_429), (1.0, False, 0), (0.06, True, 0), (1.0, False, 0), (0.06, True, 0)])
    missed = estimates.missed(1)
    assert missed and missed["calls"] < 100_000


@pytest.mark.parametrize("cost", [0.99, 1.1])
def test_a_price_too_high_makes_no_number_up(cost: float) -> None:
    """Probes seem to take all of the time, or nearly all, which leaves a small part of it to divide by: then the number
    of calls is not known, nor at the end. When all calls are counted again it rises by these; and it is marked that
    some are in no count."""
    estimates = Estimates()
    estimates.begin(OWNER, {1: START}, {1: at(1000, 0, 1.0, cost)})
    estimates.advance(OWNER, {1: at(1000, 0, 2.0, cost)}, probed=False)
    estimates.settle(OWNER)
    assert estimates.missed(1) is None
    assert not estimates.is_late(1)
    estimates.end(OWNER)
    missed = estimates.missed(1)
    assert missed is not None and not any(missed.values())
    assert estimates.is_late(1)
    estimates.begin(OWNER, {1: at(1000, 0, 2.0, cost)}, {1: at(2000, 0, 3.0, 1 + cost)})
    estimates.advance(OWNER, {1: at(2000, 0, 4.0, 1 + cost)}, probed=False)
    estimates.settle(OWNER)
    assert estimates.missed(1) is None
    assert estimates.is_late(1)
    assert estimates.finish(1, lambda tally: tally) is None


def test_an_idle_process_has_no_calls() -> None:
    estimates = Estimates()
    begun(estimates)
    estimates.advance(OWNER, {1: at(800, 100)}, probed=False)
    estimates.settle(OWNER)
    estimates.advance(OWNER, {1: at(800, 100)}, probed=True)
    estimates.settle(OWNER)
    assert not any(estimates.missed(1).values())


def test_a_process_that_starts_between_windows() -> None:
    """The process's groups so far count, at the rate of its windows once these hold enough; CPU time does not."""
    estimates = Estimates()
    estimates.advance(OWNER, {7: at(0, 200, 50.0)}, probed=False)
    assert estimates.missed(7) is None
    estimates.advance(OWNER, {7: at(400, 250, 51.0)}, probed=True)
    estimates.settle(OWNER)
    assert estimates.missed(7) is None
    estimates.advance(OWNER, {7: at(400, 300, 52.0)}, probed=False)
    estimates.advance(OWNER, {7: at(1200, 400, 53.0)}, probed=True)
    estimates.settle(OWNER)
    assert 8 * 250 == estimates.missed(7)["calls"]
    estimates.advance(OWNER, {8: at(0, 0, 50.0)}, probed=False)
    estimates.advance(OWNER, {8: at(400, 0, 51.0)}, probed=True)
    estimates.settle(OWNER)
    assert estimates.missed(8) is None is estimates.finish(8, lambda before: before)


def test_a_window_in_which_a_process_is_first_seen() -> None:
    """The process may have run before: 300 groups so far, of which 23 calls were seen, go by the next window."""
    estimates = Estimates()
    estimates.advance(OWNER, {7: at(23, 300)}, probed=True)
    estimates.settle(OWNER)
    assert estimates.missed(7) is None
    estimates.advance(OWNER, {7: at(23 + 1600, 500)}, probed=True)
    estimates.settle(OWNER)
    assert 2400 - 23 == estimates.missed(7)["calls"]


def test_windows_without_the_calls_of_a_gap() -> None:
    """Idle in the windows, busy between them: the calls are not known before a window has seen some."""
    estimates = Estimates()
    estimates.begin(OWNER, {1: START}, {1: START})
    estimates.advance(OWNER, {1: at(5, 300)}, probed=False)
    estimates.settle(OWNER)
    assert estimates.missed(1) is None
    estimates.advance(OWNER, {1: at(805, 400)}, probed=True)
    estimates.settle(OWNER)
    assert 2400 - 5 == estimates.missed(1)["calls"]


@pytest.mark.parametrize("alone", [True, False])
def test_a_new_process_that_leaves_the_windows(alone: bool) -> None:
    """A process counts from now on; that calls before are in no count is marked for as long as it runs."""
    estimates = Estimates()
    estimates.advance(OWNER, {7: at(0, 300)}, probed=False)
    assert estimates.missed(7) is None
    if alone:
        estimates.release(OWNER, {7})
    else:
        estimates.end(OWNER)
    assert {} == estimates.missed(7)
    assert estimates.is_late(7)
    estimates.begin(OWNER, {7: at(80_000, 10_000)}, {7: at(80_800, 10_100)})
    estimates.advance(OWNER, {7: at(80_800, 10_200)}, probed=False)
    estimates.settle(OWNER)
    assert 800 == estimates.missed(7)["calls"]
    assert estimates.is_late(7)
    assert 800 == estimates.finish(7, lambda before: before)["calls"]
    assert not estimates.is_late(7)


def test_a_new_process_that_makes_few_other_calls() -> None:
    """A first gap is left out after three windows, and the next goes by CPU time: 800 calls in a second, so 1,600 in
    two."""
    estimates = Estimates()
    estimates.advance(OWNER, {7: at(0, 0, 50.0)}, probed=False)
    calls, cpu = 0, 50.0
    for _ in range(3):
        assert estimates.missed(7) is None
        estimates.advance(OWNER, {7: at(calls, 1, cpu + 2.0)}, probed=False)
        calls, cpu = calls + 800, cpu + 3.0
        estimates.advance(OWNER, {7: at(calls, 1, cpu)}, probed=True)
        estimates.settle(OWNER)
    assert not any(estimates.missed(7).values())
    assert estimates.is_late(7)
    estimates.advance(OWNER, {7: at(calls, 1, cpu + 2.0)}, probed=False)
    estimates.advance(OWNER, {7: at(calls + 800, 1, cpu + 3.0)}, probed=True)
    estimates.settle(OWNER)
    assert 1600 == estimates.missed(7)["calls"]


def test_windows_without_the_calls_of_any_gap() -> None:
    """A gap is left out after a minute of such windows; the counts are shown again, and it is marked that they lack
    some."""
    estimates = Estimates()
    begun(estimates)
    estimates.end(OWNER)
    estimates.begin(OWNER, {1: at(800, 100)}, {1: at(800, 100)})
    groups, windows = 100, 0
    while estimates.missed(1) is None or not windows:
        windows += 1
        groups += 100
        estimates.advance(OWNER, {1: at(800, groups)}, probed=False)
        estimates.settle(OWNER)
    assert 12 == windows
    assert estimates.is_late(1)


def test_a_process_that_is_counted_from_now_on() -> None:
    """One of which all calls were seen is not marked."""
    estimates = Estimates()
    begun(estimates, 1)
    estimates.join([1, 7])
    assert (False, True) == (estimates.is_late(1), estimates.is_late(7))
    assert {} == estimates.missed(7)


def test_a_process_that_ends_between_windows() -> None:
    """To its last group, by the window before; then it is forgotten."""
    estimates = Estimates()
    begun(estimates)
    assert 400 == estimates.finish(1, lambda before: before._replace(reference=150))["calls"]
    assert {} == estimates.finish(1, lambda before: before)
    assert {} == estimates.missed(1)


def test_the_end_of_windows_keeps_what_was_estimated() -> None:
    """Later windows add to it; what was counted between is not estimated."""
    estimates = Estimates()
    begun(estimates)
    estimates.advance(OWNER, {1: at(800, 200)}, probed=False)
    estimates.end(OWNER)
    assert 800 == estimates.missed(1)["calls"]
    assert 800 == estimates.finish(1, lambda before: at(80_000, 10_000))["calls"]
    begun(estimates)
    estimates.advance(OWNER, {1: at(800, 200)}, probed=False)
    estimates.end(OWNER)
    estimates.begin(OWNER, {1: at(8000, 1100)}, {1: at(8800, 1200)})
    assert 800 == estimates.missed(1)["calls"]
    estimates.advance(OWNER, {1: at(8800, 1300)}, probed=False)
    estimates.settle(OWNER)
    assert 1600 == estimates.missed(1)["calls"]


def test_a_process_of_two_files_goes_by_one() -> None:
    estimates = Estimates()
    begun(estimates)
    estimates.begin(OTHER, {1: START}, {1: at(800, 100)})
    estimates.advance(OTHER, {1: at(800, 900)}, probed=False)
    estimates.settle(OTHER)
    assert 0 == estimates.missed(1)["calls"]
    estimates.advance(OWNER, {1: at(800, 200)}, probed=False)
    estimates.settle(OWNER)
    assert 800 == estimates.missed(1)["calls"]


def test_a_reference_that_is_not_counted_any_more() -> None:
    """Calls are estimated by CPU time in the gap in which it changed, and by the new reference from the next one on."""
    estimates = Estimates()
    estimates.begin(OWNER, {1: START}, {1: at(800, 100, cpu=1.0)})
    estimates.advance(OWNER, {1: at(800, 10, cpu=5.0)._replace(measure=(3,))}, probed=False)
    estimates.advance(OWNER, {1: at(1600, 60, cpu=6.0)._replace(measure=(3,))}, probed=True)
    estimates.settle(OWNER)
    assert 3200 == estimates.missed(1)["calls"]
    estimates.advance(OWNER, {1: at(1600, 110, cpu=16.0)._replace(measure=(3,))}, probed=False)
    estimates.advance(OWNER, {1: at(2000, 360, cpu=17.0)._replace(measure=(3,))}, probed=True)
    estimates.settle(OWNER)
    before = estimates.missed(1)["calls"]
    estimates.advance(OWNER, {1: at(2000, 610, cpu=90.0)._replace(measure=(3,))}, probed=False)
    estimates.advance(OWNER, {1: at(2400, 860, cpu=91.0)._replace(measure=(3,))}, probed=True)
    estimates.settle(OWNER)
    assert 400 == estimates.missed(1)["calls"] - before


def test_windows_with_cheaper_probes() -> None:
    """Time that these saved is no time of probes: the process has it for itself."""
    assert pytest.approx(0.7) == at(100, 0, cpu=1.0, cost=0.9)._replace(saved=0.6).own
    estimates = Estimates()
    estimates.begin(OWNER, {1: START}, {1: at(100, 0, cpu=1.0)})
    estimates.advance(OWNER, {1: at(100, 0, cpu=3.0)}, probed=False)
    estimates.advance(OWNER, {1: at(200, 0, cpu=4.5, cost=2.0)._replace(saved=1.5)}, probed=True)
    estimates.settle(OWNER)
    assert 200 == estimates.missed(1)["calls"]
    assert {"calls": 200, "bytes": 2000} == estimates.finish(1, lambda before: at(200, 0))
