"""The slots for requests that are being answered: a limit in all, and a share of it for each peer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class RequestSlots:
    """At most `most` requests at once (0: no limit), half of them of one peer.

    The last quarter goes only to peers that hold no slot, so that a few busy peers leave one to each other peer.
    """

    def __init__(self, most: int) -> None:
        self._most, self._share, self._kept = most, max(1, most // 2), most // 4
        self.of_peer: Counter[str] = Counter()

    def __len__(self) -> int:
        return self.of_peer.total()

    @contextmanager
    def take(self, peer: str) -> Iterator[bool]:
        """Hold a slot for a request of `peer`. Yields False when there is none for this peer."""
        free = self._free(peer)
        self.of_peer[peer] += free
        try:
            yield free
        finally:
            self.of_peer[peer] -= free
            if not self.of_peer[peer]:
                del self.of_peer[peer]

    def _free(self, peer: str) -> bool:
        held = self.of_peer[peer]
        return not self._most or (held < self._share and len(self) < self._most - (self._kept if held else 0))
