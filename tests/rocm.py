"""AMD's libamdhip64 as Debian has it, for tests: fetched once into build/ and not installed."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
from pathlib import Path

import pytest

from tests.packages import NotAvailable, download

FOLDER = Path(__file__).parents[1] / "build" / "rocm"
RELEASE = "bookworm"
PACKAGES = (
    *("libamdhip64-5", "libamdhip64-dev", "libhsa-runtime64-1", "libhsakmt1"),
    *("libdrm-amdgpu1", "libdrm2", "libelf1", "libnuma1"),
)


def root() -> Path:
    """The root of the packages' files. Skips with the reason where they cannot be had; fails with REQUIRE_WHEELS=1."""
    partial = FOLDER.with_suffix(".partial")
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_suffix(".lock").open("w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not FOLDER.exists():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                if platform.machine() != "x86_64":
                    raise NotAvailable("libamdhip64 is fetched for x86-64 only")
                download(RELEASE, "amd64", PACKAGES, partial)
            except NotAvailable as error:
                (pytest.fail if os.environ.get("REQUIRE_WHEELS") == "1" else pytest.skip)(str(error))
            partial.rename(FOLDER)
    return FOLDER / "root"


def libraries() -> Path:
    """The folder of the libraries."""
    return root() / "usr/lib/x86_64-linux-gnu"


def hip() -> Path:
    """The file of libamdhip64."""
    return (libraries() / "libamdhip64.so.5").resolve()
