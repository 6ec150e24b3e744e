"""The CPython interpreters of this machine, by version: for tests that read other interpreters' structures."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

MINORS = range(10, 15)
_FOLDERS = (
    *("~/.pyenv/versions/3.{}.*/bin", "~/.local/share/uv/python/cpython-3.{}.*/bin", "~/miniconda3/envs/*3.{}*/bin"),
    "build/interpreters/3.{}*/bin",
)


@cache
def interpreters() -> dict[str, Path]:
    """Return one interpreter of each version, such as 3.11.2; there may be several of one minor version."""
    found: dict[str, Path] = {}
    for minor in MINORS:
        name = f"python3.{minor}"
        candidates = [Path(it) for it in (shutil.which(name), f"/usr/bin/{name}") if it]
        for folder in _FOLDERS:
            candidates += sorted(_matching(folder.format(minor), name))
        for candidate in candidates:
            if version := _version(candidate):
                found.setdefault(version, candidate)
    return found


def _matching(folder: str, name: str) -> list[Path]:
    start = Path.home() if folder.startswith("~/") else Path.cwd()
    return list(start.glob(f"{folder.removeprefix('~/')}/{name}"))


def _version(program: Path) -> str:
    """Return the version of an interpreter; empty where it does not run, as a shim without a version behind it."""
    command = [program, "-I", "-c", "import sys, platform; print(platform.python_version(), sys.implementation.name)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    version, _, implementation = done.stdout.strip().partition(" ")
    return version if done.returncode == 0 and implementation == "cpython" else ""
