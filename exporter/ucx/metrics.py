"""The metrics of the probes of UCX."""

from __future__ import annotations

from exporter.model import Kind, Metric

CALLS = Metric(
    "ucx.calls",
    "Calls of UCX's protocol layer, by function (api) and result: completed (at once), pending (a request was "
    "returned), error. The result is unknown where return probes may not be used.",
    Kind.COUNTER,
    labels=("api", "result"),
    process=True,
)
IO = Metric(
    "ucx.io",
    "Bytes of sends, remote writes (transmit) and remote reads (receive) that UCX accepted, by function (api). "
    "Pending requests may fail later. Headers of active messages, and received messages, are not included. Absent "
    "where return probes may not be used.",
    Kind.COUNTER,
    "By",
    labels=("api", "direction"),
    process=True,
)
UNSIZED = Metric(
    "ucx.calls.unsized",
    "Accepted sends, remote reads and remote writes with an unknown number of bytes: generic and strided data types, "
    "lists of more than 65536 elements, and lists with elements that could not be read.",
    Kind.COUNTER,
    labels=("api",),
    process=True,
)
ERRORS = Metric(
    "ucx.errors",
    "UCX calls that failed at once, by function (api), number (code) and ucs_status_t (error; absent where there is "
    "none). Requests that fail later are not counted.",
    Kind.COUNTER,
    labels=("api", "code", "error"),
    process=True,
)
LAST_ERROR = Metric(
    "ucx.last_error.timestamp",
    "Unix time of the newest UCX call that failed with this error.",
    Kind.GAUGE,
    "s",
    labels=("api", "code", "error"),
    process=True,
)
