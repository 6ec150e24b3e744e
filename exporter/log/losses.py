"""The number of log lines that were not written."""

from __future__ import annotations

from exporter.counters import Tally
from exporter.model import Kind, Metric

DROPPED = Metric(
    "accel_exporter.log.lines_dropped",
    "Log lines that were not written, by reason: rate_limit (repeated within a minute, or beyond the rate of their "
    "place in the code), queue_full (standard error was not read fast enough), write_error (writing failed).",
    Kind.COUNTER,
    labels=("reason",),
)
dropped = Tally(DROPPED, ("rate_limit", "queue_full", "write_error"))
