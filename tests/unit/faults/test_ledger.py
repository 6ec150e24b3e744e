"""Faults counted, and bounded for each category."""

from __future__ import annotations

from dataclasses import replace

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
        if prometheus.name(it.metric) == "accel_node_fault_total"
    }
    assert 1 == found["system_memory", "DIMM_A1", ""]
    assert MOST_OF_GROUP + 2 == len(found)
    assert 3000 - MOST_OF_GROUP == found[categories.SOFTWARE, "", "true"]


def counted(ledger: FaultLedger, metric: str) -> float:
    """The number of faults over all series."""
    return sum(it.value for it in ledger.samples() if prometheus.name(it.metric) == metric)


def test_a_log_that_is_read_again() -> None:
    """A record counts once for each collector and log, however often the log is replayed. All records from before the
    first reading are replayed; one that was written while the log was not read is live.
    """
    ledger = FaultLedger()
    old = Fault(categories.NIC, "0000:5e:00.0", "nic_unrecoverable", 1.0, replayed=True)
    live = replace(old, replayed=False)
    first, second = ledger.reading("faults", "/dev/kmsg"), ledger.reading("faults", "/dev/kmsg")
    for sequence in (3, 4, 5):
        first(sequence, old)
    first(6, live)
    assert (3, 1) == (counted(ledger, "accel_node_fault_replayed"), counted(ledger, "accel_node_fault_total"))
    for sequence in (4, 5, 6, 7, 8):
        second(sequence, old)
    assert (3, 3) == (counted(ledger, "accel_node_fault_replayed"), counted(ledger, "accel_node_fault_total"))
    ledger.reading("xid", "/dev/kmsg")(5, old)
    ledger.reading("faults", "/run/kmsg")(5, old)
    assert (5, 3) == (counted(ledger, "accel_node_fault_replayed"), counted(ledger, "accel_node_fault_total"))
    second(1, live)  # a file that begins again
    assert (5, 4) == (counted(ledger, "accel_node_fault_replayed"), counted(ledger, "accel_node_fault_total"))
