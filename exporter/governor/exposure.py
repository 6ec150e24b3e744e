"""Times in which the functions of one file were probed, for all processes that use it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_RECENT_SECONDS = 60.0


class Exposure:
    """Times are of a monotonic clock, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.on = True
        self._since, self._seconds = clock(), 0.0
        """Time of the last change, and seconds probed before."""
        self._looked, self._probed_before, self._turned = self._since, 0.0, 0.0
        """Time of the last look, seconds probed before, and seconds of attaching and detaching since."""
        self._history = deque([(self._since, 0.0)])

    def turn(self, on: bool, probe: Callable[[bool], None]) -> None:
        """Attach or detach by `probe`, where that is not so already."""
        if on != self.on:
            began = self._clock()
            probe(on)
            self._turned += self._clock() - began
            self.set(on, self._clock() if on else began)  # the last calls are seen when detaching begins

    def set(self, on: bool, now: float) -> None:
        """Take note that the functions are probed, or not, from this time on."""
        self._seconds, self._since, self.on = self._probed(now), now, on

    def look(self) -> tuple[float, float]:
        """Return the seconds since the last look, and the share of them in which calls were, or may have been, seen."""
        time = self._clock()
        seconds, probed = time - self._looked, self._probed(time)
        share = (probed - self._probed_before + self._turned) / seconds if seconds else 1.0
        self._looked, self._probed_before, self._turned = time, probed, 0.0
        self._history.append((time, probed))
        while len(self._history) > 2 and self._history[1][0] <= time - _RECENT_SECONDS:
            self._history.popleft()
        return seconds, share

    def sampled(self) -> float:
        """Return the share of the last minute for which the functions were probed."""
        now, (since, before) = self._clock(), self._history[0]
        return min(1.0, (self._probed(now) - before) / (now - since)) if now > since else float(self.on)

    def _probed(self, now: float) -> float:
        return self._seconds + (now - self._since if self.on else 0.0)
