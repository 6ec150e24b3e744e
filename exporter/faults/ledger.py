"""The faults of the node, counted by category, component and signal."""

from __future__ import annotations

from collections.abc import Iterator
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

    def add_record(self, collector: str, log: str, sequence: int, fault: Fault) -> None:
        """Count a fault that a collector found in a record of the kernel log at the path `log`, each record once.

        After a reload of the settings the log is read again, and its records are replayed: those up to the highest
        sequence number counted before are left out, and later ones are newer than the exporter's start.
        """
        before = self._counted.get((collector, log))
        if fault.replayed and before is not None:
            if sequence <= before:
                return
            fault = replace(fault, replayed=False)
        self._counted[collector, log] = sequence
        self.add(fault)

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
