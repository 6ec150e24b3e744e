"""Errors that a limit on memory or on tasks causes, as a sentence with what to do.

Imports nothing that the interpreter has not loaded already: there may be no memory for it.
"""

from __future__ import annotations

import errno

MIB = 1 << 20
MODULES, START, ADVISED = 40 * MIB, 256 * MIB, 1024 * MIB
"""Address space in bytes: with less than the first not all modules can be loaded; less than the second is the cause of
any error of the start; the third suffices for children too."""
RESERVE = 2 * MIB
"""Memory that is held back from the start for the sentence: address space only, as long as nothing is written there."""
LIMITS = "/proc/self/limits"
_NO_THREAD = "can't start new thread"
_NOT_LOADED = ("failed to map segment", "annot allocate memory")


def foreseen(limits: str = LIMITS) -> str:
    """Return the sentence where an import would fail for certain, else nothing."""
    space = _address_space(limits)
    return f"there is not enough memory; {_raise(space)}" if space < MODULES else ""


def explain(error: Exception, limits: str = LIMITS) -> str:
    """Return the sentence, or nothing for an error of another cause. `limits` is the kernel's file of that name."""
    space, no_thread = _address_space(limits), _NO_THREAD in str(error)
    if not (no_thread or _no_memory(error) or space < START):
        return ""
    if space < ADVISED:
        remedy = _raise(space)
    elif no_thread:
        remedy = "raise the limit of tasks (TasksMax=, ulimit -u, pids.max of the container), or that of memory"
    else:
        remedy = "raise the limit of memory (MemoryMax=, resources.limits.memory of the container)"
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"there is not enough {'room for threads' if no_thread else 'memory'} ({what}); {remedy}"


def _raise(space: float) -> str:
    return f"raise the limit of address space from {int(space) // MIB} to {ADVISED // MIB} MiB (ulimit -v, LimitAS=)"


def _no_memory(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (
        isinstance(error, ImportError) and any(text in str(error) for text in _NOT_LOADED)
    )


def _address_space(limits: str) -> float:
    """Return the soft limit of address space in bytes; infinite where there is none or it is not known."""
    try:
        with open(limits, "rb") as file:  # noqa: PTH123 - pathlib may not be loaded
            lines = file.read().splitlines()
    except OSError:
        return float("inf")
    found = [line.split()[3] for line in lines if line.startswith(b"Max address space")]
    return int(found[0]) if found and found[0].isdigit() else float("inf")
