"""Whether custom probes could run here: for `accel-exporter doctor`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporter.custom import folder, headers
from exporter.custom.folder import FolderError, Refused, Source

_WITHIN = 20.0
_ASK = "import bcc; bcc.BPF; print(bcc.__version__)"


def examine(settings: Mapping[str, Any]) -> tuple[list[str], str]:
    """The probes that are refused, with the reason, and what is there, for the collector's settings.

    Raises FolderError or Unavailable when no probe could run.
    """
    found = folder.load(Path(str(settings["custom.dir"])))
    refused = [f"{it.name}: {it.reason}" for it in found if isinstance(it, Refused)]
    headers.find(str(settings["custom.kernel-headers"]))
    version = _bcc(str(settings["custom.python"]))
    names = ", ".join(it.definition.name for it in found if not isinstance(it, Refused)) or "none"
    return refused, f"bcc {version} and kernel headers are there; probes: {names}"


def on_tracepoints(settings: Mapping[str, Any]) -> list[str]:
    """Names the probes that are on tracepoints; none where the folder cannot be used."""
    try:
        found = folder.load(Path(str(settings["custom.dir"])))
    except FolderError:
        return []
    return [it.definition.name for it in found if isinstance(it, Source) and it.definition.tracepoints]


def _bcc(python: str) -> str:
    """The version of an interpreter's bcc; FolderError when it has none."""
    try:
        asked = subprocess.run(
            [python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=_WITHIN, check=False, encoding="utf-8"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FolderError(f"{python} cannot be run ({error}): name another Python with --custom.python") from error
    if asked.returncode:
        raise FolderError(
            f"{python} has no bcc: install python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora, RHEL), "
            "or say --custom.python"
        )
    return asked.stdout.strip()[:40]
