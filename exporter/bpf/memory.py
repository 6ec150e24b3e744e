"""The C library's allocator, made to fit a process of many threads that mostly wait."""

from __future__ import annotations

import ctypes
import gc

_OBJECTS = 20_000
"""New objects after which cycles among them are looked for: a scrape of 10,000 series makes about as many."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LARGE = 128 << 10


def give_back() -> bool:
    """Has memory that is no longer used go back to the system.

    Every thread allocates from one arena: else each that renders a page keeps what that took, 5 to 10 MB in all. Large
    blocks (symbol tables, the kernel's types while programs are loaded) are mappings of their own: by itself the
    allocator puts them among the small ones after the first was freed, which kept up to 10 MB.

    Call it before the first thread. False where the C library has no such settings (musl).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = {_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: _LARGE, _M_TRIM_THRESHOLD: _LARGE}
    return mallopt is not None and all([mallopt(name, value) for name, value in settings.items()])


def settle() -> None:
    """Give back what the start has left free, and look for cycles only among objects that are made from now on.

    Call it once everything has started: looking through what the program consists of takes 20 ms each time, and was
    done in most scrapes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS, 10, 10)
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
