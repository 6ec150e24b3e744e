"""CPython as other releases of Debian build it, in a root of its own as in a container."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import pytest

from tests.packages import NotAvailable, Release

PACKAGES = {"sid": "python3.14"}
"""The package of a release. sid changes: what cannot be installed today is a skip, also where wheels are required."""
FOLDER = Path(__file__).parents[1] / "build" / "debian-interpreters"
_MERGED = ("bin", "lib", "lib64")
"""What a root of unpacked packages lacks: links into /usr, which a package's script makes."""


def program(suite: str) -> Path:
    """Return a program that becomes a release's interpreter. Skips where there is none, with the reason."""
    if platform.machine() != "x86_64" or os.geteuid() != 0:
        pytest.skip("packages are of x86-64, and only root may change into another root")
    folder, partial = FOLDER / suite, FOLDER / f"{suite}.partial"
    if not folder.exists():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            root = Release(suite, "amd64", partial).unpack_with_needs([PACKAGES[suite]])
        except NotAvailable as error:
            pytest.skip(str(error))
        for name in _MERGED:
            if not (root / name).exists():
                (root / name).symlink_to(f"usr/{name}")
        partial.rename(folder)
    start = folder / PACKAGES[suite]
    start.write_text(f'#!/bin/sh\nexec chroot {folder / "root"} /usr/bin/{PACKAGES[suite]} "$@"\n')
    start.chmod(0o755)
    return start
