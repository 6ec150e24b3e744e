"""Programs that read profiles and that nobody here wrote: Go's pprof and pprof's schema of Debian, packages of npm."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.packages import NotAvailable, download

READERS = Path(__file__).parents[1] / "build" / "profile-readers"
PACKAGES = ("golang-1.19-go", "golang-github-google-pprof-dev")
NPM = ("speedscope@1.25.0", "pprof-format@2.3.2")
SECONDS = 240


def go_pprof() -> Path:
    """Go's pprof, as in `go tool pprof`. Skips with the reason where Debian's package cannot be had."""
    return _had("debian", _debian) / "usr/lib/go-1.19/pkg/tool/linux_amd64/pprof"


def schema(folder: Path) -> ModuleType:
    """The Python module that protoc makes of pprof's public schema; `folder` is for the module's file."""
    proto = _had("debian", _debian) / "usr/share/gocode/src/github.com/google/pprof/proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto}", f"--python_out={folder}", "profile.proto"]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    spec = importlib.util.spec_from_file_location("pprof_profile_pb2", folder / "profile_pb2.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def npm(package: str) -> Path:
    """The folder of one of the packages NPM. Skips with the reason where npm is not installed or cannot get them."""
    if not shutil.which("npm"):  # Debian's takes some 400 packages with it: setup does not install it for this
        pytest.skip("npm is not installed")
    return _had("npm", _npm) / "node_modules" / package


def _had(name: str, fetch: Callable[[Path], None]) -> Path:
    folder, partial = READERS / name, READERS / f"{name}.partial"
    READERS.mkdir(parents=True, exist_ok=True)
    with (READERS / f"{name}.lock").open("w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                fetch(partial)
            except NotAvailable as error:
                (pytest.fail if os.environ.get("REQUIRE_WHEELS") == "1" else pytest.skip)(str(error))
            partial.rename(folder)
    return folder / "root" if name == "debian" else folder


def _debian(folder: Path) -> None:
    if platform.machine() != "x86_64":
        raise NotAvailable("Go's pprof is fetched for x86-64 only")
    download("bookworm", "amd64", PACKAGES, folder)


def _npm(folder: Path) -> None:
    command = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts", *NPM]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"npm: {error}") from error
    if done.returncode:
        raise NotAvailable(f"npm: {done.stderr.strip()[-500:]}")
