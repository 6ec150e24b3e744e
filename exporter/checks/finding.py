"""The result of a check of the doctor, and access to files for checks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from exporter.settings import Settings


class Status(Enum):
    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The result of one check: `summary` is the state and its consequence, `remedy` the next step (empty: none)."""

    name: str
    status: Status
    summary: str
    remedy: str = ""


Answer = tuple[Status, str] | tuple[Status, str, str]


def process_folders(settings: Settings) -> Iterator[Path]:
    return (folder for folder in settings.procfs.iterdir() if folder.name.isdecimal())


def read(path: Path, limit: int) -> str:
    """Return the first `limit` bytes of a file as text. Raises OSError."""
    with path.open("rb") as file:
        return file.read(limit).decode("utf-8", "replace")


def text(path: Path, limit: int = 65_536) -> str:
    """Return the first `limit` bytes of a file as text, or an empty string when the file cannot be read."""
    try:
        return read(path, limit)
    except OSError:
        return ""


def readable(path: Path) -> bool:
    return os.access(path, os.R_OK)
