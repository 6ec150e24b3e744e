"""CPython as other releases of Debian build it, in a root of its own as in a container."""

from __future__ import annotations

from pathlib import Path

from tests.packages import root_with

PACKAGES = {"sid": "python3.14"}
"""The package of a release. sid changes: what cannot be installed today is a skip, also where wheels are required."""


def program(suite: str) -> Path:
    """Return a program that becomes a release's interpreter. Skips where there is none, with the reason."""
    root = root_with(PACKAGES[suite], suite)
    start = root.parent / PACKAGES[suite]
    start.write_text(f'#!/bin/sh\nexec chroot {root} /usr/bin/{PACKAGES[suite]} "$@"\n')
    start.chmod(0o755)
    return start
