"""The names of nixl_status_t, from nixl_types.h of NIXL 1.5."""

from __future__ import annotations

_NAMES = {
    -1: "NOT_POSTED",
    -2: "INVALID_PARAM",
    -3: "BACKEND",
    -4: "NOT_FOUND",
    -5: "MISMATCH",
    -6: "NOT_ALLOWED",
    -7: "REPOST_ACTIVE",
    -8: "UNKNOWN",
    -9: "NOT_SUPPORTED",
    -10: "REMOTE_DISCONNECT",
    -11: "CANCELED",
    -12: "NO_TELEMETRY",
}


def error_name(code: int) -> str:
    """Return the constant of a code; empty where nixl_types.h has none."""
    name = _NAMES.get(code)
    return f"NIXL_ERR_{name}" if name else ""
