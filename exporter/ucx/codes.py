"""The names of ucs_status_t, from status.h of UCX 1.22."""

from __future__ import annotations

_NAMES = (
    *("NO_MESSAGE", "NO_RESOURCE", "IO_ERROR", "NO_MEMORY", "INVALID_PARAM", "UNREACHABLE", "INVALID_ADDR"),
    *("NOT_IMPLEMENTED", "MESSAGE_TRUNCATED", "NO_PROGRESS", "BUFFER_TOO_SMALL", "NO_ELEM", "SOME_CONNECTS_FAILED"),
    *("NO_DEVICE", "BUSY", "CANCELED", "SHMEM_SEGMENT", "ALREADY_EXISTS", "OUT_OF_RANGE", "TIMED_OUT"),
    *("EXCEEDS_LIMIT", "UNSUPPORTED", "REJECTED", "NOT_CONNECTED", "CONNECTION_RESET"),
)
"""Names of the codes from -1 down."""
_ENDPOINT_TIMEOUT = -80


def error_name(code: int) -> str:
    """Return the constant of a code; empty where status.h has none."""
    if code == _ENDPOINT_TIMEOUT:
        return "UCS_ERR_ENDPOINT_TIMEOUT"
    return f"UCS_ERR_{_NAMES[-code - 1]}" if 0 < -code <= len(_NAMES) else ""
