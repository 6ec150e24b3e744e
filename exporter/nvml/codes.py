"""What NVML's calls return (nvmlReturn_t), and what that means for us."""

from __future__ import annotations

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4
NOT_FOUND, NO_DRIVER, TIMEOUT, NO_LIBRARY, NO_FUNCTION = 6, 9, 10, 12, 13
GPU_LOST, RESET_REQUIRED, OTHER_VERSION, STRUCTURE_VERSION = 15, 16, 18, 25

NEVER = frozenset({INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NO_FUNCTION, STRUCTURE_VERSION})
"""What fails so will fail again: it is not asked for again."""
WHOLE = frozenset({UNINITIALIZED, NO_DRIVER, NO_LIBRARY, OTHER_VERSION})
"""NVML as a whole has ended: only a new process finds the new driver."""
STATES = {GPU_LOST: "lost", RESET_REQUIRED: "reset_required"}
"""The state of a GPU (snapshot.Gpu) about which a call returns that."""
