"""Arithmetic on counters over time: 32-bit counters without wraparound, ratios over a minute, an excess."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

_END = 1 << 32
WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class _Known:
    read: int
    value: int
    identity: int


class WideCounters:
    """64-bit values of many counters of 32 bits, kept from reading to reading. One thread at a time."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Known] = {}

    def update(self, key: Hashable, read: int, narrow: bool, identity: int) -> int:
        """Return the value of a counter that now reads `read`. A `narrow` counter has 32 bits.

        A narrow counter that fell has wrapped, with two exceptions: a new `identity` means that its device was
        registered again; and an increase of more than half the range within seconds is impossible, so the counter was
        reset. A reset counter is returned as read, which Prometheus takes for a counter reset.
        """
        known = self._known.get(key)
        if known is None or known.identity != identity:
            self._known[key] = _Known(read, read, identity)
            return read
        step = read - known.read
        if step < 0:
            forward = step + _END
            if narrow and 0 <= forward < _END // 2:
                step = forward
            else:
                known.value, step = 0, read
        known.read, known.value = read, known.value + step
        return known.value


class KeptCounters:
    """The wide counters of devices, which outlast the collector: a counter must not fall when settings are reloaded."""

    MOST_DEVICES = 1024

    def __init__(self) -> None:
        self._of: dict[str, WideCounters] = {}

    def of(self, device: str) -> WideCounters:
        """Return a device's counters. Those of the device that was first seen longest ago make room."""
        if device not in self._of and len(self._of) >= self.MOST_DEVICES:
            del self._of[next(iter(self._of))]
        return self._of.setdefault(device, WideCounters())


class WindowRatio:
    """The ratios of some counts to a total over about the last minute."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, int, Mapping[str, int]]] = deque()

    def update(self, at: float, counts: Mapping[str, int], whole: int) -> dict[str, float]:
        """Return the ratios of `counts` to `whole` at the monotonic time `at` in seconds.

        Empty when `whole` did not increase. A fall of any count restarts the window.
        """
        if self._window:
            _, before, parts = self._window[-1]
            if whole < before or parts.keys() != counts.keys() or any(counts[name] < parts[name] for name in counts):
                self._window.clear()
        self._window.append((at, whole, dict(counts)))
        while len(self._window) > 2 and self._window[1][0] <= at - WINDOW_SECONDS:
            self._window.popleft()
        _, first, parts = self._window[0]
        if whole == first:
            return {}
        return {kind: (count - parts[kind]) / (whole - first) for kind, count in counts.items()}


class Excess:
    """The bytes that a port sent beyond those posted, counted while all posts are seen. The excess never falls."""

    def __init__(self) -> None:
        self._since = self._last = self._value = 0
        self._from = (0, 0, 0)
        """Bytes sent, bytes posted and the excess when the posts began to be seen."""

    def update(self, sent: int, posted: int, since: int) -> int:
        """Return the excess in bytes. A new `since` means that some posts were not seen in between."""
        if since != self._since or sent < self._last:
            self._since, self._from = since, (sent, posted, self._value)
        self._last = sent
        sent_from, posted_from, value_from = self._from
        self._value = max(self._value, value_from + (sent - sent_from) - (posted - posted_from))
        return self._value
