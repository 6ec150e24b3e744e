"""The status of the search as metrics."""

from __future__ import annotations

from exporter.bpf.status import LIBRARIES, PROCESSES, Status


def test_libraries_of_one_name_are_one_series() -> None:
    """Files of one name add up, so that no two samples are the same series."""
    status = Status("iterator", libraries=(("/a/libx.so", 2), ("/b/libx.so", 3), ("/b/liby.so", 0)))
    found = {
        (sample.metric.name, sample.labels["library"]): sample.value
        for sample in status.samples()
        if sample.metric in (LIBRARIES, PROCESSES)
    }
    assert {
        (LIBRARIES.name, "libx.so"): 2,
        (LIBRARIES.name, "liby.so"): 1,
        (PROCESSES.name, "libx.so"): 5,
        (PROCESSES.name, "liby.so"): 0,
    } == found
