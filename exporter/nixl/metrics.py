"""The metrics of the probes of NIXL."""

from __future__ import annotations

from exporter.model import Kind, Metric

_TRANSFER = ("operation", "backend", "peer")
_UNKNOWN = "backend is the plugin that NIXL chose; it and operation are unknown for backends that are not probed."

TRANSFERS = Metric(
    "nixl.transfers",
    "Transfers that ended, by operation (read, write), backend, remote agent (peer, the first 63 bytes of its name) "
    "and status: success, error; released, before the process saw the end; unseen, posted again before that. "
    + _UNKNOWN,
    Kind.COUNTER,
    labels=(*_TRANSFER, "status"),
    process=True,
)
BYTES = Metric(
    "nixl.transfer",
    "Bytes of transfers that succeeded: the sum of their local descriptors. Transfers in nixl_transfers_unsized_total "
    "are not included.",
    Kind.COUNTER,
    "By",
    labels=_TRANSFER,
    process=True,
)
UNSIZED = Metric(
    "nixl.transfers.unsized",
    "Transfers that succeeded and have an unknown number of bytes: those of backends that are not probed, and those of "
    "more than 65536 descriptors, or with descriptors that could not be read.",
    Kind.COUNTER,
    labels=_TRANSFER,
    process=True,
)
DURATION = Metric(
    "nixl.transfer.duration",
    "Time from the call of postXferReq until a call returned to the process that the transfer has succeeded, which is "
    "later than its end by up to the interval at which the process calls getXferStatus.",
    Kind.HISTOGRAM,
    "s",
    labels=("operation", "backend"),
    process=True,
)
IN_FLIGHT = Metric(
    "nixl.transfers.in_flight",
    "Transfers that were posted, and of which the process has not seen the end. Those from before the exporter "
    "observed the process are not included.",
    Kind.GAUGE,
    labels=_TRANSFER,
    process=True,
)
ERRORS = Metric(
    "nixl.errors",
    "Calls of NIXL that failed, by function (api), number (code) and its nixl_status_t (error, where it has one). Each "
    "call of getXferStatus for a failed transfer is one.",
    Kind.COUNTER,
    labels=("api", "code", "error"),
    process=True,
)
LAST_ERROR = Metric(
    "nixl.last_error.timestamp",
    "Unix time of the newest call of NIXL that failed with this error.",
    Kind.GAUGE,
    "s",
    labels=("api", "code", "error"),
    process=True,
)
