"""What a question of the doctor is answered with, and how the answers look at files."""

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
    """The answer to one question: `says` what is so and what that means, `do` what helps (empty: nothing to do)."""

    name: str
    status: Status
    says: str
    do: str = ""


Answer = tuple[Status, str] | tuple[Status, str, str]


def process_folders(settings: Settings) -> Iterator[Path]:
    return (folder for folder in settings.procfs.iterdir() if folder.name.isdecimal())


def text(path: Path, limit: int = 65_536) -> str:
    """A file's beginning; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def readable(path: Path) -> bool:
    return os.access(path, os.R_OK)
