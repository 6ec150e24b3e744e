"""The number of log lines that were not written."""

from __future__ import annotations

from exporter.counters import Tally
from exporter.model import Kind, Metric

DROPPED = Metric(
    "accel_exporter.log.lines_dropped",
    "Log lines that were not written: repeated within a minute or beyond the rate of their place in the code "
    "(`rate_limit`), because standard error was not read fast enough (`queue_full`), or because writing failed "
    "(`write_error`).",
    Kind.COUNTER,
    labels=("reason",),
)
dropped = Tally(DROPPED, ("rate_limit", "queue_full", "write_error"))
