"""AMD's libamdhip64 as releases of Debian have it, for tests: fetched once into build/ and not installed."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packages import NotAvailable, download

FOLDER = Path(__file__).parents[1] / "build"
_LIBC = ("libc6", "libstdc++6", "libgcc-s1", "libzstd1", "zlib1g")


@dataclass(frozen=True)
class Rocm:
    """One release, as a release of Debian has it."""

    hip: str
    """The release of HIP."""
    debian: str
    folder: str
    packages: Sequence[str]
    loads: bool = True
    """True if the library needs no further packages."""

    def root(self) -> Path:
        """The root of the packages' files. Skips with the reason where there are none; fails with REQUIRE_WHEELS=1."""
        folder = FOLDER / self.folder
        partial = folder.with_suffix(".partial")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:  # tests run side by side
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                try:
                    if platform.machine() != "x86_64":
                        raise NotAvailable("libamdhip64 is fetched for x86-64 only")
                    download(self.debian, "amd64", self.packages, partial)
                except NotAvailable as error:
                    (pytest.fail if os.environ.get("REQUIRE_WHEELS") == "1" else pytest.skip)(str(error))
                partial.rename(folder)
        return folder / "root"

    def libraries(self) -> Path:
        """The folder of the libraries."""
        return self.root() / "usr/lib/x86_64-linux-gnu"

    def library(self) -> Path:
        """The file of libamdhip64."""
        [file] = {it.resolve() for it in self.libraries().glob("libamdhip64.so.*")}
        return file

    def loader(self) -> list[str]:
        """The command that starts a program with the C library among the packages; empty where there is none."""
        loader = self.libraries() / "ld-linux-x86-64.so.2"
        return [str(loader), "--library-path", str(self.libraries())] if loader.exists() else []


OLDEST = Rocm(
    "5.2",
    "bookworm",
    "rocm",
    (
        *("libamdhip64-5", "libamdhip64-dev", "libhsa-runtime64-1", "libhsakmt1"),
        *("libdrm-amdgpu1", "libdrm2", "libelf1", "libnuma1"),
    ),
)
MIDDLE = Rocm("5.7", "trixie", "rocm-trixie", ("libamdhip64-5", "libamdhip64-dev"), loads=False)
NEWEST = Rocm(
    "6.4",
    "forky",
    "rocm-forky",
    (
        *("libamdhip64-6", "libamdhip64-dev", "libhsa-runtime64-1"),
        *("libdrm-amdgpu1", "libdrm2", "libelf1t64", "libnuma1", *_LIBC),
    ),
)
RELEASES = (OLDEST, MIDDLE, NEWEST)
