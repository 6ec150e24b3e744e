"""Debian's packages of any release and architecture, unpacked without touching what this machine has installed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_SECONDS = 240
_ROOTS = Path(__file__).parents[1] / "build" / "debian-roots"
_MERGED = ("bin", "lib", "lib64")
"""Links into /usr that a root of unpacked packages lacks, as the script of a package makes them."""


class NotAvailable(Exception):
    """The packages cannot be had here."""


class Release:
    """A Debian release for one architecture, with apt's state in an empty folder.

    Raises NotAvailable, with apt's words.
    """

    def __init__(self, suite: str, architecture: str, folder: Path) -> None:
        self._folder = folder
        for needed in ("state/lists/partial", "cache/archives/partial", "root"):
            (folder / needed).mkdir(parents=True)
        (folder / "debian.sources").write_text(
            f"Types: deb\nURIs: {_mirror()}\nSuites: {suite}\nComponents: main\n"
            f"Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        )
        settings = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Dir::Cache": str(folder / "cache"),
            "Dir::Etc::sourcelist": str(folder / "debian.sources"),
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": str(folder / "state"),
            "Dir::State::status": str(folder / "state/status"),
        }
        (folder / "state/status").touch()
        self._options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        _run(["apt-get", "-qq", *self._options, "update"], folder)

    def needs(self, package: str) -> list[str]:
        """Return the packages that a package depends on directly."""
        lines = _run(["apt-cache", *self._options, "depends", "--important", package], self._folder).splitlines()
        return [line.partition(":")[2].strip() for line in lines if line.strip().startswith("Depends:")]

    def unpack(self, packages: Sequence[str]) -> Path:
        """The root of their files."""
        _run(["apt-get", "-qq", *self._options, "download", *packages], self._folder)
        return self._unpacked(self._folder)

    def unpack_with_needs(self, packages: Sequence[str]) -> Path:
        """The root of their files and of those that they depend on. Scripts of the packages are not run."""
        choices = ("--yes", "--no-install-recommends", "--download-only")
        _run(["apt-get", "-qq", *self._options, *choices, "install", *packages], self._folder)
        return self._unpacked(self._folder / "cache/archives")

    def _unpacked(self, folder: Path) -> Path:
        for package in folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(self._folder / "root")], self._folder)
            package.unlink()
        return self._folder / "root"


def download(suite: str, architecture: str, packages: Sequence[str], folder: Path) -> Path:
    """Unpacks packages of a Debian release into a folder of their own, which is empty; returns their root.

    Raises NotAvailable, with apt's words.
    """
    return Release(suite, architecture, folder).unpack(packages)


def root_with(package: str, suite: str) -> Path:
    """Return a root with a package of a release and its needs, kept in build/. Skips, with the reason, if it cannot."""
    if platform.machine() != "x86_64" or os.geteuid() != 0:
        pytest.skip("packages are of x86-64, and only root may change into another root")
    folder, partial = _ROOTS / f"{suite}-{package}", _ROOTS / f"{suite}-{package}.partial"
    if not folder.exists():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            root = Release(suite, "amd64", partial).unpack_with_needs([package])
        except NotAvailable as error:
            pytest.skip(str(error))
        for name in _MERGED:
            if not (root / name).exists():
                (root / name).symlink_to(f"usr/{name}")
        partial.rename(folder)
    return folder / "root"


def _mirror() -> str:
    """Return the URI of this machine's Debian mirror."""
    found = _run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"], Path()
    )
    if not found.strip():
        raise NotAvailable("this machine has no source of Debian packages")
    return found.split()[0]


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"{command[0]}: {error}") from error
    if done.returncode:
        raise NotAvailable(f"{command[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout
