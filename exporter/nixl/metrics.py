"""The metrics of the probes of NIXL."""

from __future__ import annotations

from exporter.model import Kind, Metric

_TRANSFER = ("operation", "backend", "peer")
_UNKNOWN = "backend is the plugin that NIXL chose; backend and operation are unknown for backends that are not probed."

TRANSFERS = Metric(
    "nixl.transfers",
    "Transfers that ended, by operation (read, write), backend, remote agent (peer, the first 63 bytes of its name) "
    "and status: success, error, released (before the process saw the end), unseen (posted again before the process "
    "saw the end). " + _UNKNOWN,
    Kind.COUNTER,
    labels=(*_TRANSFER, "status"),
    process=True,
)
BYTES = Metric(
    "nixl.transfer",
    "Bytes of successful transfers: the sum of their local descriptors. Without the transfers in "
    "nixl_transfers_unsized_total.",
    Kind.COUNTER,
    "By",
    labels=_TRANSFER,
    process=True,
)
UNSIZED = Metric(
    "nixl.transfers.unsized",
    "Successful transfers with an unknown number of bytes: of backends that are not probed, of more than 65536 "
    "descriptors, or with descriptors that could not be read.",
    Kind.COUNTER,
    labels=_TRANSFER,
    process=True,
)
DURATION = Metric(
    "nixl.transfer.duration",
    "Time from the postXferReq call until a call reported success to the process. This is later than the end of the "
    "transfer, by up to the interval between the process's getXferStatus calls.",
    Kind.HISTOGRAM,
    "s",
    labels=("operation", "backend"),
    process=True,
)
IN_FLIGHT = Metric(
    "nixl.transfers.in_flight",
    "Posted transfers with an end that the process has not seen yet. Without transfers from before the exporter "
    "observed the process.",
    Kind.GAUGE,
    labels=_TRANSFER,
    process=True,
)
ERRORS = Metric(
    "nixl.errors",
    "NIXL calls that failed, by function (api), number (code) and nixl_status_t (error; absent where there is none). "
    "Each getXferStatus call for a failed transfer counts.",
    Kind.COUNTER,
    labels=("api", "code", "error"),
    process=True,
)
LAST_ERROR = Metric(
    "nixl.last_error.timestamp",
    "Unix time of the newest NIXL call that failed with this error.",
    Kind.GAUGE,
    "s",
    labels=("api", "code", "error"),
    process=True,
)
