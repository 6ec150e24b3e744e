"""Reader of the files of /proc that show a process's memory: environ, cmdline, maps and map_files.

The kernel reads these under the process's mmap lock. A page fault on a file system that does not respond can hold that
lock, and any reader of these files waits until the process ends. comm, stat, status, cgroup, ns and fd take no such
lock. The files of memory are empty where the first thread has ended and others run; the folders of the other threads
show the same memory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from exporter.background.patience import Patience, Unanswered

SECONDS, LEAST_SECONDS = 1.0, 0.1
"""Time limit of a read from one process, in seconds; divided by 1 plus the number of processes that do not respond."""
_MOST_THREADS = 16
_STAT_BYTES = 4096
_ENDED = (b"Z", b"X", b"x")

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = Patience("process-memory")
"""One for the program: what it knows is which processes do not answer now, whoever reads them."""


def living(proc: Path, pid: int | str) -> Path:
    """Return the folder of a thread that has not ended: of the first one, of another where that has ended.

    Where none is found it is the folder of the process. Waits for nobody.
    """
    folder = proc / str(pid)
    if _state(folder) in _ENDED:
        try:
            with os.scandir(folder / "task") as threads:
                others = [proc / it.name for it in islice(threads, _MOST_THREADS) if it.name != str(pid)]
        except OSError:
            return folder
        return next((other for other in others if _state(other) not in (b"", *_ENDED)), folder)
    return folder


def patiently(proc: Path, pid: int, look: Callable[[Path], T]) -> T:
    """Return what `look` returns for the folder of a living thread of a process, or raise what it raises.

    Raises Unanswered, an OSError, where the kernel does not answer in time.
    """
    seconds = max(LEAST_SECONDS, SECONDS / (1 + len(PATIENCE.waiting)))
    try:
        return PATIENCE.call((proc, pid), partial(look, living(proc, pid)), seconds)
    except Unanswered as error:
        if error.new:
            log.warning("a process keeps its memory map locked; labels from it are missing", extra={"pid": pid})
        raise


def read(proc: Path, pid: int, name: str, limit: int) -> bytes:
    """Return the first `limit` bytes of a file of a process. Raises OSError, of which Unanswered is one."""
    return patiently(proc, pid, partial(_read, name, limit))


def _read(name: str, limit: int, folder: Path) -> bytes:
    with (folder / name).open("rb") as file:
        return file.read(limit)


def _state(folder: Path) -> bytes:
    """Return the letter of a thread's state (field 3 of /proc/PID/stat), nothing where it cannot be read."""
    try:
        file = os.open(folder / "stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, _STAT_BYTES).rpartition(b") ")[2][:1]
    except OSError:
        return b""
    finally:
        os.close(file)
