"""Number of polls that a thread may make while observed."""

from __future__ import annotations

import pytest

from exporter.verbs.poll_sampling import polls_allowed


@pytest.mark.parametrize(
    ("length", "interval", "hit", "expected"),
    [
        (0.1, 10.0, 2e-6, 167),  # 1 % of 0.1 s is 1 ms, a poll costs three times as much as a small probe
        (0.1, 10.0, 0.0, 1000),  # a cost that cannot be is taken for 1 us
        (0.1, 10.0, None, 20),  # one that is not known for 50 us
        (0.01, 3600.0, 1.0, 1),
        (1.0, 1.0, 2e-6, 0),  # any number: the probes are to stay
    ],
)
def test_polls_allowed(length: float, interval: float, hit: float | None, expected: int) -> None:
    """So many take the window's share of the time, at least one; without windows it does not matter."""
    assert expected == polls_allowed(length, interval, hit)
