"""Faults counted, and bounded for each category."""

from __future__ import annotations

from exporter.faults import categories
from exporter.faults.counts import MOST_OF_GROUP
from exporter.faults.ledger import Fault, FaultLedger
from exporter.views import prometheus


def test_crashes_take_no_place_of_hardware() -> None:
    """Thousands of crashes under as many names, as anybody can make: faults of hardware still name their component."""
    ledger = FaultLedger()
    for number in range(3000):
        ledger.add(Fault(categories.SOFTWARE, f"spam{number}", "process_sigsegv", 1.0))
    ledger.add(Fault(categories.MEMORY, "DIMM_A1", "ecc_uncorrected", 2.0))

    found = {
        (it.labels["category"], it.labels["component"], it.labels["overflow"]): it.value
        for it in ledger.samples()
        if prometheus.name(it.metric) == "node_fault_total"
    }
    assert 1 == found["system_memory", "DIMM_A1", ""]
    assert MOST_OF_GROUP + 2 == len(found)
    assert 3000 - MOST_OF_GROUP == found[categories.SOFTWARE, "", "true"]
