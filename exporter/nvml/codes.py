"""Return codes of NVML (nvmlReturn_t), and classes of them."""

from __future__ import annotations

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4
NOT_FOUND, NO_DRIVER, TIMEOUT, NO_LIBRARY, NO_FUNCTION = 6, 9, 10, 12, 13
GPU_LOST, RESET_REQUIRED, OTHER_VERSION, STRUCTURE_VERSION = 15, 16, 18, 25

NEVER = frozenset({INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NO_FUNCTION, STRUCTURE_VERSION})
"""Codes of calls that will fail again, and are not repeated."""
WHOLE = frozenset({UNINITIALIZED, NO_DRIVER, NO_LIBRARY, OTHER_VERSION})
"""Codes that end NVML as a whole: only a new process finds the new driver."""
STATES = {GPU_LOST: "lost", RESET_REQUIRED: "reset_required"}
"""State of a GPU (snapshot.Gpu) by the return code of a call."""
