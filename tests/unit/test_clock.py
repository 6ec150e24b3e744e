"""Wall time of the kernel's monotonic times."""

from __future__ import annotations

import time

import pytest

from exporter.node import Clock

AHEAD = 1_700_000_000_000_000_000


class Clocks:
    """Both clocks, of which each reading takes 50 ns; the process is interrupted before and after some."""

    def __init__(self, interrupted: dict[int, int]) -> None:
        self._now, self._reading, self._interrupted = 1_000_000, 0, interrupted

    def monotonic_ns(self) -> int:
        self._reading += 1
        self._now += 50 + self._interrupted.get(self._reading, 0)
        return self._now

    def time_ns(self) -> int:
        return AHEAD + self.monotonic_ns()


@pytest.mark.parametrize("interrupted", [{}, {3: 10_000_000}, {4: 10_000_000}, {6: 9_000_000, 10: 2_000_000_000}])
def test_an_interruption(monkeypatch: pytest.MonkeyPatch, interrupted: dict[int, int]) -> None:
    """Wall time is right although another thread ran between two readings of the clocks."""
    clocks = Clocks(interrupted)
    monkeypatch.setattr(time, "monotonic_ns", clocks.monotonic_ns)
    monkeypatch.setattr(time, "time_ns", clocks.time_ns)
    assert 100 > abs(Clock().wall_ns(5) - AHEAD - 5)
