"""The C library's allocator, made to fit a process of many threads that mostly wait."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h


def share_one_arena() -> bool:
    """Every thread allocates from one arena: else each that renders a page keeps what that took, 5 to 10 MB in all.

    Call it before the first thread. False where the C library has no such setting (musl).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt and mallopt(_M_ARENA_MAX, 1))
