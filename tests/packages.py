"""Debian's packages of any release and architecture, unpacked without touching what this machine has installed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

_SECONDS = 240


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
        """What a package depends on first of all."""
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


def _mirror() -> str:
    """Where this machine gets Debian from."""
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
