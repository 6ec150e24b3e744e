"""Cost of the calls that a probe has seen, each at the price of its time."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from exporter.bpf.calibrate import Costs
from exporter.bpf.placement import Placement
from exporter.bpf.rehearsal import Rehearsal


class Charges:
    """Cost of calls by symbol. `timed` are symbols with a return probe, in libraries where those are allowed."""

    def __init__(self, costs: Costs, rehearsal: Rehearsal | None, timed: Collection[str]) -> None:
        self._costs, self._rehearsal, self._timed = costs, rehearsal, timed
        self._dearest: dict[str, tuple[float, Placement, bool]] = {}
        self._charged: dict[str, tuple[int, float]] = {}
        """Calls, and their cost in seconds."""
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        """False while prices are still measured."""
        return not (self._rehearsal and self._rehearsal.runs)

    def price(self, symbol: str, placement: Placement, returns: bool, hits: Mapping[str, int]) -> None:
        """Set the price of a symbol's calls from now on, unless calls of it are dearer elsewhere.

        `hits` are the calls so far, which keep their price.
        """
        cost = self._costs.of(placement.kind, returns) or self._costs.of(placement.kind, returns=False) or 0.0
        before = self._dearest.get(symbol)
        if before and cost > before[0]:
            self.charge(hits)
        if not before or cost > before[0]:
            self._dearest[symbol] = cost, placement, returns

    def charge(self, hits: Mapping[str, int]) -> float:
        """Value the calls since the last time at the present price. Returns the cost of all calls in seconds.

        Calls are not valued while prices are still measured.
        """
        with self._lock:
            for symbol, calls in hits.items() if self.known else ():
                before, seconds = self._charged.get(symbol, (0, 0.0))
                if calls > before:
                    self._charged[symbol] = calls, seconds + (calls - before) * self.each(symbol)
            return sum(seconds for _, seconds in self._charged.values())

    def each(self, symbol: str) -> float:
        """Return the seconds by which a call of the symbol takes longer."""
        if symbol not in self._dearest:
            return 0.0
        trap, _, returns = self._dearest[symbol]
        whole = self._rehearsal.costs.get(symbol) if self._rehearsal else None
        if whole is None or (not returns and symbol in self._timed):
            return trap
        return whole + trap - (self._costs.of("emulated", returns) or 0.0)
