"""The version of this build. Packaging writes build.json (revision, date) into the package; a checkout has none."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path

from exporter import __version__


@dataclass(frozen=True)
class Build:
    version: str
    revision: str
    date: str
    python: str
    platform: str

    def __str__(self) -> str:
        return (
            f"accel-exporter {self.version} (revision {self.revision}, built {self.date}, "
            f"Python {self.python}, {self.platform})"
        )


def build() -> Build:
    """Return this build; revision and date are "unknown" outside of a package."""
    try:
        known = json.loads(Path(__file__).with_name("build.json").read_text())
    except (OSError, ValueError):
        known = {}
    return Build(
        __version__,
        known.get("revision", "unknown"),
        known.get("date", "unknown"),
        platform.python_version(),
        f"{platform.system().lower()}/{platform.machine()}",
    )
