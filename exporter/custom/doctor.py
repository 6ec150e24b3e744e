"""Checks for `accel-exporter doctor`: whether custom probes can run on this node."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporter.custom import folder, headers
from exporter.custom.folder import FolderError, ProbeSource, RefusedProbe

_WITHIN = 20.0
_PRINT_VERSION = "import bcc; bcc.BPF; print(bcc.__version__)"


def examine(settings: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return a sentence for each refused probe, and a summary of what is found, for the collector's settings.

    Raises FolderError or Unavailable when no probe can run.
    """
    found = folder.load(Path(str(settings["custom.dir"])))
    refused = [f"{probe.name}: {probe.reason}" for probe in found if isinstance(probe, RefusedProbe)]
    headers.find(str(settings["custom.kernel-headers"]))
    version = _bcc(str(settings["custom.python"]))
    names = ", ".join(probe.definition.name for probe in found if isinstance(probe, ProbeSource)) or "none"
    return refused, f"bcc {version} and kernel headers are there; probes: {names}"


def on_tracepoints(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the probes on tracepoints; none where the folder cannot be used."""
    try:
        found = folder.load(Path(str(settings["custom.dir"])))
    except FolderError:
        return []
    return [probe.definition.name for probe in found if isinstance(probe, ProbeSource) and probe.definition.tracepoints]


def _bcc(python: str) -> str:
    """Return the version of the interpreter's bcc. Raises FolderError when it has none."""
    try:
        result = subprocess.run(
            [python, "-I", "-c", _PRINT_VERSION],
            capture_output=True,
            text=True,
            timeout=_WITHIN,
            check=False,
            encoding="utf-8",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FolderError(f"{python} cannot be run ({error}): name another Python with --custom.python") from error
    if result.returncode:
        raise FolderError(
            f"{python} has no bcc: install python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora, RHEL), "
            "or set --custom.python"
        )
    return result.stdout.strip()[:40]
