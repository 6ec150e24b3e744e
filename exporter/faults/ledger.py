"""The faults of the node, counted by category, component and signal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from exporter.faults import metrics
from exporter.faults.counts import MOST_OF_GROUP, FaultCounts
from exporter.model import Sample
from exporter.series import FOLDED


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the node. `time` is wall time in seconds; a `replayed` fault is older than the exporter's start."""

    category: str
    component: str
    signal: str
    time: float
    replayed: bool = False


class FaultLedger:
    """The counts of all faults of the node, whichever collector has found them. Safe from any thread.

    A category has a quarter of the series at most: processes, which choose their names and may crash at will, leave
    the series of hardware faults alone. Beyond that the series of a signal has no component.
    """

    def __init__(self) -> None:
        self._counts = FaultCounts[tuple[str, str, str]](
            lambda key: (key[0], MOST_OF_GROUP), lambda key: (key[0], "", key[2])
        )
        self._counted: dict[tuple[str, str], int] = {}

    def add(self, fault: Fault, times: int = 1) -> None:
        """Count a fault `times` times; 0 only updates the time at which the fault was last seen."""
        self._counts.add((fault.category, fault.component, fault.signal), fault.time, fault.replayed, times)

    def reading(self, collector: str, log: str) -> Callable[[int, Fault], None]:
        """Return a function that counts the faults that a collector finds in one reading of the log at `log`.

        The function takes the sequence number of the fault's record. After a reload of the settings the log is read
        again, and its records are replayed: those up to the highest sequence number of the reading before are left out,
        and later ones are newer than the exporter's start.
        """
        counted, key = self._counted, (collector, log)
        begun = False
        before: int | None = None

        def add(sequence: int, fault: Fault) -> None:
            nonlocal begun, before
            if not begun:  # the reading before this one has ended
                begun, before = True, counted.get(key)
            if fault.replayed and before is not None:
                if sequence <= before:
                    return
                fault = replace(fault, replayed=False)
            counted[key] = sequence
            self.add(fault)

        return add

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self._counts)

    def samples(self) -> Iterator[Sample]:
        """Yield all series, and the number of those folded into others."""
        for (category, component, signal), count in self._counts.rows():
            overflow = "" if component else "true"
            labels = {"category": category, "component": component, "signal": signal, "overflow": overflow}
            yield metrics.FAULTS.sample(count.live, labels)
            yield metrics.FAULTS_REPLAYED.sample(count.replayed, labels)
            yield metrics.FAULT_LAST.sample(count.last, labels)
        yield FOLDED.sample(self._counts.folded, {"collector": "faults"})
