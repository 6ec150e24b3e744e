"""The status of the search as metrics."""

from __future__ import annotations

from exporter.bpf.status import LIBRARIES, PROCESSES, UNLISTED, SearchStatus


def test_libraries_of_one_name_are_one_series() -> None:
    """Files of one name add up, so that no two samples are the same series."""
    status = SearchStatus("iterator", libraries=(("/a/libx.so", 2), ("/b/libx.so", 3), ("/b/liby.so", 0)))
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


def test_processes_that_cannot_be_listed() -> None:
    """The number of those processes is known from the first listing on."""
    found = [
        [it.value for it in status.samples() if it.metric is UNLISTED]
        for status in (SearchStatus(), SearchStatus("proc", unlisted=2))
    ]
    assert [[], [2]] == found
