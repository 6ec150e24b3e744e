"""Trials on this kernel before the first probe: cost of a hit, and survival of processes with return probes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from functools import cached_property

from exporter.bpf.calibrate import Costs, calibrate
from exporter.bpf.safety import Protection, Survival, returns_allowed, try_return_probes
from exporter.model import Sample, Unavailable

_log = logging.getLogger(__name__)


class Trial:
    """The trial of a node. Each part is tried when it is first used, in about 60 ms; the result stays.

    `returns` is whether return probes are wanted at all.
    """

    def __init__(self, returns: bool = True) -> None:
        self._returns = returns
        self._trying = threading.Lock()

    @cached_property
    def survival(self) -> Survival:
        return try_return_probes()

    @property
    def costs(self) -> Costs | None:
        """Return what a probe costs here; None, logged once, where that cannot be measured. Safe from any thread."""
        with self._trying:
            return self._costs

    @cached_property
    def _costs(self) -> Costs | None:
        try:
            return calibrate()
        except Unavailable as error:
            _log.warning("the overhead of the probes is not known: %s", error)
            return None

    def returns_allowed(self, users: Collection[Protection]) -> tuple[bool, str]:
        """Return whether a library that these use may get return probes; if not, why and what to do."""
        if not self._returns:
            return False, "they are switched off (--no-bpf.return-probes)"
        return returns_allowed(self.survival, users)

    def collect(self) -> Iterator[Sample]:
        """The cost of a hit; nothing while no probe has used it."""
        costs: Costs | None = vars(self).get("_costs")
        if costs:
            yield from costs.samples()
