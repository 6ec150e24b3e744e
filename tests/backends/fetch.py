"""The backends as their makers release them: fetched once into build/backends, and not installed."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import packages
from tests.packages import NotAvailable

FOLDER = Path(__file__).parents[2] / "build" / "backends"
SUITE = "sid"
"""Of Debian: the one that has Prometheus 3."""
DEBIAN = ("prometheus", "promtool", "victoria-metrics", "golang-opentelemetry-collector-dev")
"""The last one is the source of the collector's own components: Debian has no collector."""
PYTHON = {"phoenix": "arize-phoenix==20.26.1", "mlflow": "mlflow==3.17.2"}
"""By the name of the environment what pip installs there."""
CRIU_SUITE = "trixie"
CRIU = (
    "criu libbrotli1 libbsd0 libc6 libcap2 libdrm-amdgpu1 libdrm2 libedit2 libffi8 libgmp10 libgnutls30t64 "
    "libhogweed6t64 libidn2-0 libjansson4 libmd0 libmnl0 libnet1 libnettle8t64 libnftables1 libnftnl11 libnl-3-200 "
    "libp11-kit0 libprotobuf-c1 libtasn1-6 libtinfo6 libunistring5 libuuid1 libxtables12 libzstd1 zlib1g"
)
"""Of Debian, with all that it is linked to: bookworm's cannot read the vDSO of newer kernels."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SECONDS = 1200


def programs() -> Path:
    """The folder of Debian's programs. Skips the test, or fails it with REQUIRE_BACKENDS=1, where there are none."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    return _fetched(f"{SUITE}-{architecture}", " ".join(DEBIAN), _unpack) / "root" / "usr" / "bin"


def collector() -> Path:
    """The folder of the OpenTelemetry collector's source; or as `programs`."""
    return programs().parent / "share" / "gocode" / "src" / "go.opentelemetry.io" / "collector"


def criu() -> list[str]:
    """The command that runs CRIU, with its own C library; or as `programs`."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    root = _fetched(f"{CRIU_SUITE}-{architecture}", CRIU, _unpack) / "root" / "usr"
    libraries = root / "lib" / f"{platform.machine()}-linux-gnu"
    [loader] = libraries.glob("ld-linux-*.so.*")
    return [str(loader), "--library-path", str(libraries), str(root / "sbin" / "criu")]


def environment(name: str) -> Path:
    """The folder of programs of a Python environment of its own, with PYTHON's package; or as `programs`."""
    return _fetched(name, PYTHON[name], _install) / "bin"


def _fetched(name: str, wanted: str, fetch: Callable[[Path, str], None]) -> Path:
    """Return a fetched folder; fetch again unless its stamp file, which is written last, names the wanted version."""
    folder, stamp = FOLDER / name, FOLDER / name / ".fetched"
    with _alone(name):
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                fetch(folder, wanted)
            except NotAvailable as error:
                if os.environ.get("REQUIRE_BACKENDS") == "1":
                    pytest.fail(f"REQUIRE_BACKENDS=1, but {error}")
                pytest.skip(f"{name} cannot be fetched: {error}")
            stamp.write_text(wanted)
    return folder


@contextmanager
def _alone(name: str) -> Iterator[None]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(folder: Path, wanted: str) -> None:
    suite, _, architecture = folder.name.partition("-")
    packages.download(suite, architecture, wanted.split(), folder)
    for archive in folder.glob("*.deb"):
        archive.unlink()


def _install(folder: Path, wanted: str) -> None:
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotAvailable(f"{command[2]}: {error}") from error
        if done.returncode:
            raise NotAvailable(f"pip: {done.stderr.strip()[-500:]}")
