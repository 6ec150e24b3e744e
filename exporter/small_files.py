"""Small files that the kernel makes, as in sysfs. What is at their place may be something else: a FIFO, a folder."""

from __future__ import annotations

import os
from pathlib import Path

_MOST_BYTES = 4096


def content(path: Path) -> str:
    """Return the text of a file, 4 KiB of it at most, without waiting for a writer if it is a FIFO. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, _MOST_BYTES).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder, by name; nothing where it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
