"""Names of C++ and of Rust's older scheme as people write them, by the C++ library that is there."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_LONGEST = 400


@cache
def _function() -> tuple[Any, Any] | None:
    try:
        found = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    found.restype = ctypes.c_void_p
    found.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    free = ctypes.CDLL(None).free
    free.restype, free.argtypes = None, (ctypes.c_void_p,)
    return found, free


def prepare() -> None:
    """Open the library, for a process that may not do so later."""
    _function()


def demangle(name: str) -> str:
    """Return the readable form of a mangled name, cut after 400 characters; other names as they are."""
    functions = _function() if name.startswith("_Z") else None
    if functions is None:
        return name[:_LONGEST]
    status = ctypes.c_int()
    text = functions[0](name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name[:_LONGEST]
    try:
        return ctypes.string_at(text).decode(errors="replace")[:_LONGEST]
    finally:
        functions[1](text)
