"""Counters as they would be with 64 bits: what a device begins at 0 again after 32 bits goes on."""

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


class Widened:
    """Values of many counters, kept from reading to reading. One thread at a time."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Known] = {}

    def see(self, key: Hashable, read: int, narrow: bool, identity: int) -> int:
        """The counter's value, given what was read. `narrow`: it has 32 bits.

        A narrow one that fell has wrapped, unless `identity` says that its device was registered anew, or it would
        have gone more than half of its way since: no port does that within seconds, so it was set back. What was set
        back is shown as read, which Prometheus takes for a new beginning.
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


class Ratio:
    """Of some counts to another one, over about the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, Mapping[str, int]]] = deque()

    def see(self, at: float, counts: Mapping[str, int], whole: int) -> dict[str, float]:
        """The ratios now, at a monotonic time in seconds; none when `whole` did not rise. Falling counts begin anew."""
        if self._seen:
            _, before, parts = self._seen[-1]
            if whole < before or parts.keys() != counts.keys() or any(counts[it] < parts[it] for it in counts):
                self._seen.clear()
        self._seen.append((at, whole, dict(counts)))
        while len(self._seen) > 2 and self._seen[1][0] <= at - WINDOW_SECONDS:
            self._seen.popleft()
        _, first, parts = self._seen[0]
        if whole == first:
            return {}
        return {kind: (count - parts[kind]) / (whole - first) for kind, count in counts.items()}


class Excess:
    """How far a port's bytes are ahead of those posted, while all posts are seen. It never falls."""

    def __init__(self) -> None:
        self._since = self._last = self._value = 0
        self._from = (0, 0, 0)
        """Bytes sent, bytes posted and the excess when the posts began to be seen."""

    def see(self, sent: int, posted: int, since: int) -> int:
        """The excess. `since` is another number whenever the posts were not all seen in between."""
        if since != self._since or sent < self._last:
            self._since, self._from = since, (sent, posted, self._value)
        self._last = sent
        sent_from, posted_from, value_from = self._from
        self._value = max(self._value, value_from + (sent - sent_from) - (posted - posted_from))
        return self._value
